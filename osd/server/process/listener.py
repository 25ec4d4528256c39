"""uvicorn, configured for this server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from osd.server.workers.peers import Peers

LAST_SECONDS = 5.0
"""Maximum seconds for answers under way at shutdown."""
LEAD_SECONDS = 0.2
"""Interval at which a process behind a shared port checks whether the admin port became free."""


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


async def serve_leading(server: Listener, port: socket.socket, peers: Peers | None) -> None:
    """Serve the admin port, which one process of several (``peers``) holds, from the moment at which this one does."""
    while peers and not peers.leads():
        if server.should_exit:
            return
        await asyncio.sleep(LEAD_SECONDS)
    await server.serve([port])
