"""Numbers for Prometheus: of the store (``store``), of an engine (``engine``), over HTTP (``server``)."""
