"""`osd attach --proxy`: stands in front of one vLLM that has no plugin, and harvests what passes.

It is the plugin's middleware around a forwarder, and is told the same variables. It has no store: the `osd attach` that
has may stop, start and fail, and answers pass.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import MutableMapping
from typing import Any

import uvicorn

from osd.attached.forwarder import Forwarder
from osd.attached.vllm.plugin.osd_vllm.harvest import HarvestMiddleware, Receive, Send
from osd.attached.vllm.plugin.osd_vllm.options import Options
from osd.attached.vllm.plugin.osd_vllm.sender import Sender

log = logging.getLogger(__name__)
POLL_SECONDS = 1.0
"""Seconds between two questions which draft serves."""


class HarvestProxy:
    """ASGI application in front of a vLLM."""

    def __init__(self, upstream: str, options: Options) -> None:
        """``upstream``: URL of vLLM. ``options.engine`` and ``options.collector`` are given."""
        self.options, self.sender = options, Sender(options)
        self._harvest = HarvestMiddleware(Forwarder(upstream), self.sender)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve a request, or the application's life."""
        if scope["type"] != "lifespan":
            await self._harvest(scope, receive, send)
            return
        following = asyncio.ensure_future(self._follow_draft())
        try:
            await self._harvest(scope, receive, send)
        finally:
            following.cancel()

    async def _follow_draft(self) -> None:
        """Keep what the sender knows of the draft fresh; while nobody can tell, answers name none and are not learned
        from."""
        while True:
            try:
                self.sender.serving = await asyncio.to_thread(self.sender.ask_collector)
            except Exception as error:  # whatever it says, it is asked again
                self.sender.serving = None
                log.debug("which draft serves is not known: %s", error)
            await asyncio.sleep(POLL_SECONDS)


def run(proxy: HarvestProxy, bound: socket.socket) -> None:
    """Serve on a bound socket until SIGTERM or Ctrl-C; answers that are under way are finished first."""
    config = uvicorn.Config(
        proxy, http="httptools", ws="none", log_level="warning", server_header=False, date_header=False
    )
    uvicorn.Server(config).run(sockets=[bound])
