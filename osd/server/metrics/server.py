"""`/metrics` over HTTP, read only, on this machine unless another address is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from storage.errors import BadSetting


def registry(collectors: Sequence[Collector]) -> CollectorRegistry:
    """Create a registry of these collectors and nothing else."""
    made = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        made.register(collector)
    return made


@contextmanager
def exporting(collectors: Sequence[Collector], host: str, port: int) -> Iterator[int]:
    """Serve until the context ends; yield the port (``port`` 0 takes a free one). Raises BadSetting."""
    try:
        server, thread = start_http_server(port, host, registry(collectors))
    except (OSError, OverflowError) as error:
        reason = f"cannot listen on {host}:{port} ({error}); give another --port or --host"
        raise BadSetting(source="option", key="--port", reason=reason) from error
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
