"""The HTTP client of the replicas: connections are kept, nothing is buffered, unpacked or followed elsewhere."""

from __future__ import annotations

import socket

import aiohttp

from storage.files.secrets import read_secret
from storage.settings import UpstreamSettings

KEEP_SECONDS = 4.0
"""How long an idle connection is kept: less than vLLM and uvicorn keep theirs (5 s), which would close it as it is
taken up again."""
SILENT_SECONDS = 10
"""Seconds of silence after which a connection is probed, and between probes: a machine that has gone is noticed while
its answer is awaited, however long answers may take."""
PROBES = 3


def upstream_headers(settings: UpstreamSettings) -> dict[str, str]:
    """Return what replicas are asked with: their API key, where they want one. Raises BadSetting."""
    if settings.api_key is None:
        return {}
    key = read_secret(settings.api_key, "upstream.api_key", "the replicas' API key").strip()
    return {"Authorization": f"Bearer {key}"}


def upstream_client(settings: UpstreamSettings) -> aiohttp.ClientSession:
    """Make the client. Belongs to the running event loop; close it."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_SECONDS, socket_factory=_watched)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_seconds),
        headers={"Accept-Encoding": "identity"},
        skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _watched(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    """Return a socket whose other end is probed while it is silent."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", SILENT_SECONDS), ("TCP_KEEPINTVL", SILENT_SECONDS), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, name):  # macOS names the first otherwise
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
