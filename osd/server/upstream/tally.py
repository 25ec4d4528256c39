"""Tokens of an answer as its bytes pass: by its own usage, else by counting events."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

TAIL = 16_384
"""Bytes of a stream's end that are searched for its usage."""


class UsageCounts(NamedTuple):
    """Tokens that were read and written."""

    prompt: int
    output: int


class StreamTally:
    """Looks at a stream's bytes on their way. They pass as they are, but for a usage chunk that the client did not ask
    for (``hides_usage``)."""

    def __init__(self, *, hides_usage: bool = False) -> None:
        self._hides, self._held, self._tail = hides_usage, b"", b""
        self.events = 0
        """Events with data: at least so many tokens were written, nearly."""
        self.whole = True
        """Whether what passed ends with a whole event."""

    def push(self, chunk: bytes) -> bytes:
        """Take bytes that came; return those that pass now."""
        self.events += chunk.count(b"data: ")
        self._tail = (self._tail + chunk)[-TAIL:]
        if self._hides:
            chunk = self._without_usage(chunk)
        if chunk:
            self.whole = chunk.endswith((b"\n\n", b"\r\n\r\n"))
        return chunk

    def rest(self) -> bytes:
        """Return what is still held once the stream has ended."""
        held, self._held = self._held, b""
        return held

    def _without_usage(self, chunk: bytes) -> bytes:
        """Hold back a part of an event, and drop the event that has the usage and nothing else."""
        *events, self._held = (self._held + chunk).split(b"\n\n")
        return b"".join(event + b"\n\n" for event in events if not _is_usage(event))

    def counts(self) -> UsageCounts | None:
        """Return the tokens by the stream's own usage; None where it has said none."""
        for event in reversed(self._tail.split(b"\n\n")):
            data = next((line[6:] for line in event.splitlines() if line.startswith(b"data: {")), None)
            if data and b'"usage"' in data and (found := counts_in(data)):
                return found
        return None


def counts_in(body: bytes) -> UsageCounts | None:
    """Return the tokens by the usage in a JSON body of OpenAI's or Anthropic's form; None where there is none."""
    try:
        said = json.loads(body)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    places = [part.get("usage") for part in (said, said.get("response"), said.get("message")) if isinstance(part, dict)]
    usage: dict[str, Any] | None = next((one for one in places if isinstance(one, dict)), None)
    if usage is None:
        return None
    return UsageCounts(_count(usage, "prompt", "input"), _count(usage, "completion", "output"))


def _count(usage: dict[str, Any], *names: str) -> int:
    found = next((usage[f"{name}_tokens"] for name in names if f"{name}_tokens" in usage), 0)
    return found if isinstance(found, int) else 0


def _is_usage(event: bytes) -> bool:
    if not event.startswith(b"data: {") or b'"usage"' not in event:
        return False
    try:
        said = json.loads(event[6:])
    except ValueError:
        return False
    return bool(said.get("usage")) and not said.get("choices")
