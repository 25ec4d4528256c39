"""`osd serve`: an engine behind OpenAI's HTTP API, in two processes.

front ──> app               HTTP: the API's port, forked by the other before it loads a model
  │         │ guard         keys, rates, sizes, safe headers
  │         │ wire, chat    bodies, and prompts of chats
  │         │ flight        the requests of one call
  │         v
  │       far_thread        what decodes, as seen from here
  │
  │ process/ipc             what the two say to each other; ipc_codec: as bytes; jobs: requests and their outputs
  v
run ──> engine_thread       decoding: the one thread that steps the engine; line: who is next; outbox: who waits for
  │                         a tick
  └──> admin                the admin port; dashboard: its page

start                       what a command asks for: pair, keys, ports; workers/: several servers behind one port
"""
