"""osd's part in vLLM's process: middleware that harvests, routes that publish, a worker extension that loads."""

__version__ = "0.1.0"
