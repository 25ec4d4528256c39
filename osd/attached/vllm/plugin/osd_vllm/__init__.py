"""osd's part in vLLM's process: middleware that harvests, routes that publish, a worker extension that loads."""

__version__ = "0.1.0"
KNOWN = ("0.32.",)
"""Versions of vLLM whose scheduler was looked at: draft lengths can be changed live with these alone."""
