"""Server-sent events: formatting, and the response that sends them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

ENCODE = json.JSONEncoder(ensure_ascii=False).encode
MARK = "\x00osd\x00"
"""A placeholder text that no name in a chunk contains."""


def event(body: Any) -> str:
    """Format an event with a JSON body."""
    return f"data: {ENCODE(body)}\n\n"


class ChunkTemplate(NamedTuple):
    """A chunk's template: everything but its text."""

    before: str
    after: str

    @classmethod
    def of(cls, chunk: str) -> ChunkTemplate:
        """Make a template from a chunk whose text is MARK."""
        return cls(*chunk.split(ENCODE(MARK)))

    def join_text(self, text: str) -> str:
        """Return the chunk with this text."""
        return f"{self.before}{ENCODE(text)}{self.after}"


class EventStream(StreamingResponse):
    """A response of server-sent events that always closes its source."""

    def __init__(self, events: AsyncIterator[str], stack: AsyncExitStack, headers: dict[str, str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with self._stack:
            await self.stream_response(send)  # Starlette would watch for a disconnect as well; the call does already
