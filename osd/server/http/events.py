"""Server-sent events: how they are written, and the response that sends them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

ENCODE = json.JSONEncoder(ensure_ascii=False).encode
MARK = "\x00osd\x00"
"""A text that no name in a chunk is."""


def event(body: Any) -> str:
    """One, whose data is JSON."""
    return f"data: {ENCODE(body)}\n\n"


class Mold(NamedTuple):
    """A chunk without its text."""

    before: str
    after: str

    @classmethod
    def of(cls, chunk: str) -> Mold:
        """Made of a chunk whose text is MARK."""
        return cls(*chunk.split(ENCODE(MARK)))

    def join_text(self, text: str) -> str:
        """The chunk with this text."""
        return f"{self.before}{ENCODE(text)}{self.after}"


class EventStream(StreamingResponse):
    """Server-sent events, with something to be closed whatever becomes of them."""

    def __init__(self, events: AsyncIterator[str], stack: AsyncExitStack, headers: dict[str, str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        async with self._stack:
            await self.stream_response(send)  # Starlette would watch the client beside it; the flight does already
