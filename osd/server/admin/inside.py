"""The newest requests token by token, in memory only: accepted and rejected tokens, and their corrections.

Requests that may not be learned from are not held, and none where `server.inspect` is off.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from osd.engine.detokenizer import Detokenizer
from osd.engine.text_stream import TextStream
from osd.logits import RaggedLogits
from osd.sequence import Completion, RequestOutput, SequenceState
from osd.verification.result import VerifyResult
from storage.records import Round, now

NEWEST = 50
"""Maximum number of requests held."""


Refused = dict[int, int]
"""Round -> the drafted token that the target rejected."""


@dataclass(frozen=True, slots=True)
class InspectedRequest:
    """One request."""

    done: Completion
    refused: Refused
    at: float
    """Time at which it began."""

    def turns(self) -> Iterator[tuple[Round, tuple[int, ...], int | None]]:
        """Yield each round, its emitted tokens, and the rejected token if there is one."""
        begin = 0
        for number, turn in enumerate(self.done.rounds):
            yield turn, self.done.tokens[begin : begin + turn.emitted], self.refused.get(number)
            begin += turn.emitted


class Inside:
    """An engine listener that holds the newest requests.

    ``rounds`` runs on the decode thread, and reads only sequences with a rejected token or that have ended; text is
    made on demand.
    """

    def __init__(
        self, tokenizer: Any, allowed: Callable[[], bool], learnable: Callable[[Iterable[str]], set[str]],
        keep: int = NEWEST,
    ) -> None:  # fmt: skip
        """Hold at most ``keep`` requests.

        ``allowed`` returns whether text may be held at all; ``learnable`` returns which of these tenants allow it.
        """
        self._tokenizer, self._allowed, self._learnable, self._keep = tokenizer, allowed, learnable, keep
        self._lock = threading.Lock()
        self._refused: dict[str, Refused] = {}
        """Rejected tokens of running requests."""
        self._done: OrderedDict[str, InspectedRequest] = OrderedDict()

    @property
    def allowed(self) -> bool:
        """Whether text may be held now. Where it no longer may, what was held is deleted."""
        if self._allowed():
            return True
        with self._lock:
            self._refused.clear()
            self._done.clear()
        return False

    def rounds(
        self, rows: Sequence[SequenceState], progress: Sequence[RequestOutput], verdict: VerifyResult, _: RaggedLogits
    ) -> None:
        """Add a round of the batch."""
        if not self.allowed:
            return
        for row, step, drafted in zip(rows, progress, verdict.drafted, strict=True):
            if drafted and row.request.learn:
                self._judged(row, drafted)
            if step.completion and row.request.learn:
                self._keep_done(step.completion, rows)

    def _judged(self, row: SequenceState, drafted: Sequence[int]) -> None:
        last = row.rounds[-1]
        if last.rejected and last.accepted < min(len(drafted), last.emitted):
            self._refused.setdefault(row.request.id, {})[len(row.rounds) - 1] = drafted[last.accepted]

    def _keep_done(self, done: Completion, rows: Sequence[SequenceState]) -> None:
        with self._lock:
            seen = InspectedRequest(done, self._refused.pop(done.request.id, {}), now() - done.seconds)
            self._done[done.request.id] = seen
            while len(self._done) > self._keep:
                self._done.popitem(last=False)
            for gone in self._refused.keys() - {row.request.id for row in rows}:
                del self._refused[gone]  # cancelled

    def newest(self) -> list[dict[str, Any]]:
        """Return the finished requests, newest first, without text. Queries the tenants' permissions."""
        return [_line(seen) for seen in reversed(self._shown())]

    def _shown(self) -> list[InspectedRequest]:
        if not self.allowed:
            return []
        with self._lock:
            found = [*self._done.values()]
        tenants = self._learnable({seen.done.request.tenant for seen in found})
        return [seen for seen in found if seen.done.request.tenant in tenants]

    def show(self, request_id: str) -> dict[str, Any] | None:
        """Return a request with its text; None where it is not, or no longer, held."""
        seen = next((seen for seen in self._shown() if seen.done.request.id == request_id), None)
        if seen is None:
            return None
        prompt = str(self._tokenizer.decode(list(seen.done.request.prompt_tokens), skip_special_tokens=True))
        stream = TextStream(Detokenizer(self._tokenizer), replace(seen.done.request, stop=()), frozenset())
        return {**_line(seen), "prompt": prompt, "rounds": [self._round(*turn, stream) for turn in seen.turns()]}

    def _round(self, turn: Round, tokens: Sequence[int], refused: int | None, stream: TextStream) -> dict[str, Any]:
        """Return a round's tokens as text; an incomplete character comes with the token that completes it."""
        pieces = []
        for place, token in enumerate(tokens):
            kind = "accepted" if place < turn.accepted else "own" if refused is None else "corrected"
            pieces.append({"text": stream.push([token]), "kind": kind})
        instead = None if refused is None else str(self._tokenizer.decode([refused]))
        facts = {"gamma": turn.gamma, "drafted": turn.drafted, "accepted": turn.accepted, "version": turn.draft_version}
        return facts | {"pieces": pieces, "refused": instead}


def _line(seen: InspectedRequest) -> dict[str, Any]:
    done, turns = seen.done, seen.done.rounds
    return {
        "id": done.request.id, "at": seen.at, "route": done.route, "tenant": done.request.tenant,
        "tokens": len(done.tokens), "rounds_taken": len(turns), "seconds": done.seconds,
        "finish_reason": done.finish_reason, "accepted": sum(turn.accepted for turn in turns),
        "drafted": sum(turn.drafted for turn in turns), "version": turns[-1].draft_version,
    }  # fmt: skip
