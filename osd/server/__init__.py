"""`osd serve`: an engine behind OpenAI's HTTP API, in two processes.

process/api_server       the API server process: HTTP, forked by the other before it loads a model
  │ http/                routes: guard and keys, bodies, requests, answers, streams
  │ core/client          what decodes, as seen from here
  │
  │ core/ipc             the sockets between the two; messages: what they say
  v
process/engine_server    the engine process
  │ core/engine_thread   the one thread that steps the engine; queues: who is next, and who waits for a tick
  └ admin/               the admin port with the dashboard

start                    what a command asks for: pair, keys, ports; process/server: from its start to its end
processes                several servers behind one port
upstream/                the proxy over replicas, in place of an engine
"""
