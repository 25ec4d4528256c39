"""What an answer's bytes say as they pass: whether it is whole, and its tokens, by its usage or by counting events."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

TAIL = 16_384
"""Bytes of a stream's end that are searched for its usage."""


ENDS = ("response.completed", "response.failed", "response.incomplete", "message_stop", "error")
"""Types of the events that end streams of `/v1/responses` and `/v1/messages`."""


class UsageCounts(NamedTuple):
    """Tokens that were read and written."""

    prompt: int
    output: int


class StreamTally:
    """Looks at a stream's bytes on their way. They pass as they are, but for a usage chunk that the client did not ask
    for (``hides_usage``)."""

    def __init__(self, *, hides_usage: bool = False) -> None:
        self._hides, self._open, self._last, self._tail = hides_usage, b"", b"", b""
        self.events = 0
        """Events with data: at least so many tokens were written, nearly."""
        self.whole = True
        """Whether what passed ends with a whole event."""

    def push(self, chunk: bytes) -> bytes:
        """Take bytes that came; return those that pass now."""
        self.events += chunk.count(b"data: ")
        self._tail = (self._tail + chunk)[-TAIL:]
        *events, self._open = (self._open + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        self._last = next((event for event in reversed(events) if b"data:" in event), self._last)
        if self._hides:  # a part of an event is held back
            chunk = b"".join(left + b"\n\n" for event in events if (left := _without_usage(event)))
        if chunk:
            self.whole = chunk.endswith((b"\n\n", b"\r\n\r\n"))
        return chunk

    @property
    def ended(self) -> bool:
        """Whether the newest event says that the stream is over, `[DONE]` or an error, and nothing follows it."""
        data = b"".join(line[5:] for line in self._last.split(b"\n") if line.startswith(b"data:")).strip()
        said = parsed(data)
        over = data == b"[DONE]" or (isinstance(said, dict) and (bool(said.get("error")) or said.get("type") in ENDS))
        return over and not self._open.strip()

    def counts(self) -> UsageCounts | None:
        """Return the tokens by the stream's own usage; None where it has said none."""
        for event in reversed(self._tail.replace(b"\r\n", b"\n").split(b"\n\n")):
            data = next((line[6:] for line in event.splitlines() if line.startswith(b"data: {")), None)
            if data and b'"usage"' in data and (found := counts_in(parsed(data))):
                return found
        return None


def parsed(body: bytes) -> Any:
    """Return what a JSON body says; None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def counts_in(said: Any) -> UsageCounts | None:
    """Return the tokens by the usage in an answer of OpenAI's or Anthropic's form; None where there is none."""
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


def _without_usage(event: bytes) -> bytes:
    """Return an event without the usage that a chunk without choices tells; nothing where it tells no metrics, which
    come where they were asked for."""
    if not event.startswith(b"data: {") or b'"usage"' not in event:
        return event
    said = parsed(event[6:]) or {}
    if not said.get("usage") or said.get("choices"):
        return event
    del said["usage"]
    return b"data: " + json.dumps(said).encode() if "metrics" in said else b""
