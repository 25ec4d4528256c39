"""uvicorn, configured for this server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LAST_SECONDS = 5.0
"""Maximum seconds for answers under way at shutdown."""


class Listener(uvicorn.Server):
    """A uvicorn server that leaves signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def listener(app: FastAPI) -> Listener:
    """Create a server for an application."""
    return Listener(uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none", http=HttpToolsProtocol,
        timeout_graceful_shutdown=int(LAST_SECONDS),
    ))  # fmt: skip
