"""The newest requests token by token, in memory only: what was accepted, refused, and put in its place.

Nothing is kept of requests that may not be learned from, and nothing at all where `server.inspect` says no.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from osd.engine import Engine
from osd.row import Completion, Progress, Row
from osd.stream import TextStream
from osd.verdict import Verdict
from storage.records import Request, now

NEWEST = 50
"""Requests kept."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One round: γ, what was drafted, what came out."""

    gamma: int
    drafted: int
    accepted: int
    tokens: tuple[int, ...]
    refused: int | None
    """The drafted token that the target refused."""
    version: str


@dataclass(slots=True)
class Seen:
    """One request."""

    request: Request
    at: float = field(default_factory=now)
    turns: list[Turn] = field(default_factory=list)
    done: Completion | None = None


class Inside:
    """A listener of the engine. ``rounds`` runs on the decode thread and only appends; text is made when asked for."""

    def __init__(
        self, tokenizer: Any, allowed: Callable[[], bool], learnable: Callable[[Iterable[str]], set[str]],
        keep: int = NEWEST,
    ) -> None:  # fmt: skip
        """``allowed``: whether text may be kept at all; ``learnable``: which of these tenants allow it."""
        self._tokenizer, self._allowed, self._learnable, self._keep = tokenizer, allowed, learnable, keep
        self._lock = threading.Lock()
        self._open: dict[str, Seen] = {}
        self._done: OrderedDict[str, Seen] = OrderedDict()

    @property
    def allowed(self) -> bool:
        """Whether text may be kept now. Where it no longer may, what there was is gone."""
        if self._allowed():
            return True
        with self._lock:
            self._open.clear()
            self._done.clear()
        return False

    def attach(self, engine: Engine) -> None:
        """Hear what the engine does, after whoever hears it already."""
        before = engine.listener

        def both(rows: Sequence[Row], progress: Sequence[Progress], verdict: Verdict, logits: Tensor) -> None:
            if before:
                before(rows, progress, verdict, logits)
            self.rounds(rows, progress, verdict)

        engine.listener = both

    def rounds(self, rows: Sequence[Row], progress: Sequence[Progress], verdict: Verdict) -> None:
        """A round of the batch."""
        if not self.allowed:
            return
        with self._lock:
            self._rounds(rows, progress, verdict)

    def _rounds(self, rows: Sequence[Row], progress: Sequence[Progress], verdict: Verdict) -> None:
        for i, (row, step) in enumerate(zip(rows, progress, strict=True)):
            if row.request.learn:
                self._take(row, step, verdict.drafted[i])
        here = {row.request.id for row in rows}
        for gone in [name for name in self._open if name not in here]:
            self._open.pop(gone, None)  # cancelled

    def _take(self, row: Row, step: Progress, drafted: Sequence[int]) -> None:
        seen = self._open.setdefault(row.request.id, Seen(row.request))
        last = row.rounds[-1]
        refused = drafted[last.accepted] if last.rejected and last.accepted < len(drafted) else None
        seen.turns.append(
            Turn(last.gamma, last.drafted, last.accepted, step.tokens, refused, last.draft_version)
        )
        if step.completion:
            seen.done = step.completion
            self._done[row.request.id] = self._open.pop(row.request.id)
            while len(self._done) > self._keep:
                self._done.popitem(last=False)

    def newest(self) -> list[dict[str, Any]]:
        """The finished ones, newest first, without text. Asks the store what tenants allow."""
        return [_line(seen) for seen in reversed(self._shown())]

    def _shown(self) -> list[Seen]:
        if not self.allowed:
            return []
        with self._lock:
            found = [*self._done.values()]
        tenants = self._learnable({seen.request.tenant for seen in found})
        return [seen for seen in found if seen.request.tenant in tenants]

    def show(self, request_id: str) -> dict[str, Any] | None:
        """One of them with its text; None where it is not (or no longer) there."""
        seen = next((seen for seen in self._shown() if seen.request.id == request_id), None)
        if seen is None:
            return None
        prompt = str(self._tokenizer.decode(list(seen.request.prompt_tokens), skip_special_tokens=True))
        stream = TextStream(self._tokenizer, ())
        return {**_line(seen), "prompt": prompt, "rounds": [self._round(turn, stream) for turn in seen.turns]}

    def _round(self, turn: Turn, stream: TextStream) -> dict[str, Any]:
        """Its tokens as text; half a character comes with the token that completes it."""
        pieces = []
        for place, token in enumerate(turn.tokens):
            kind = "accepted" if place < turn.accepted else "own" if turn.refused is None else "corrected"
            pieces.append({"text": stream.push([token]), "kind": kind})
        refused = None if turn.refused is None else str(self._tokenizer.decode([turn.refused]))
        facts = {"gamma": turn.gamma, "drafted": turn.drafted, "accepted": turn.accepted, "version": turn.version}
        return facts | {"pieces": pieces, "refused": refused}


def _line(seen: Seen) -> dict[str, Any]:
    done, turns = seen.done, seen.turns
    assert done is not None
    return {
        "id": seen.request.id, "at": seen.at, "route": done.route, "tenant": seen.request.tenant,
        "tokens": len(done.tokens), "rounds_taken": len(turns), "seconds": done.seconds,
        "finish_reason": done.finish_reason, "accepted": sum(turn.accepted for turn in turns),
        "drafted": sum(turn.drafted for turn in turns), "version": turns[-1].version,
    }  # fmt: skip
