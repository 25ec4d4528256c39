"""`osd serve`: an engine behind OpenAI's HTTP API.

run ──> app, admin          two FastAPI applications, on two ports; dashboard: the admin port's page
          │ guard           keys, rates, sizes, safe headers
          │ wire, chat      bodies, and prompts of chats
          │ flight          the requests of one call
          v
        engine_thread ──>   the one thread that steps the engine; line: who is next; outbox: what waits for a tick
"""
