"""uvicorn as this server runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LAST_SECONDS = 5.0
"""How long answers that are on their way may take to leave."""


class Listener(uvicorn.Server):
    """But for signals, which are not its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def listener(app: FastAPI) -> Listener:
    """Serves an application."""
    return Listener(uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none", http=HttpToolsProtocol,
        timeout_graceful_shutdown=int(LAST_SECONDS),
    ))  # fmt: skip
