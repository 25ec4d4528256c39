"""vLLM: the client of its plugin's routes, and what runs inside its process (exchange, middleware, plugin)."""
