"""`osd serve`: an engine behind OpenAI's HTTP API, in two processes.

front ──> app               HTTP: the API's port, forked by the other before it loads a model
  │         │ guard         keys, rates, sizes, safe headers
  │         │ wire, chat    bodies, and prompts of chats
  │         │ flight        the requests of one call
  │         v
  │       far_thread        what decodes, as seen from here
  │
  │ link, message, cargo    what the two say to each other; post: the end of a thread without an event loop
  v
run ──> engine_thread       decoding: the one thread that steps the engine; line: who is next; served: what has come of
  │                         each; outbox: who waits for a tick
  ├──> relay                everything between the two that is no job
  └──> admin                the admin port; dashboard: its page
"""
