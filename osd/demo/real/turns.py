"""The demo's loop: answers are gathered at eight rows, from which the heads learn; then one question is answered at one
row twice, with drafts and without, in the same engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from osd.engine.engine import Engine
from osd.prompts import encode
from osd.sequence import Completion
from storage.records import Request, ratio

Look = Callable[[], None]
"""Called after each step, between what is timed."""


@dataclass(frozen=True, slots=True)
class GainTurn:
    """One question, answered with drafts and without."""

    at: float
    """Seconds since the run began."""
    answers: int
    """Answers that had been gathered."""
    domain: str
    version: str
    same: bool
    """Whether both texts are the same, token for token."""
    tokens: int
    seconds: float
    plain_seconds: float
    rounds: int
    drafted: int
    accepted: int


def figures(turns: Sequence[GainTurn]) -> dict[str, Any]:
    """Return turns as one figure each, ratios of sums; None where there is none yet."""
    named = ("tokens", "seconds", "plain_seconds", "rounds", "drafted", "accepted")
    tokens, seconds, plain, rounds, drafted, accepted = (sum(getattr(t, name) for t in turns) for name in named)
    return {
        "turns": len(turns), "drafted_rate": ratio(tokens, seconds), "plain_rate": ratio(tokens, plain),
        "gain": ratio(plain, seconds), "acceptance": ratio(accepted, drafted), "tokens_a_round": ratio(tokens, rounds),
    }  # fmt: skip


@dataclass
class RealTrace:
    """What has come of a run so far."""

    seconds: float
    """For which it is to last."""
    turns: list[GainTurn] = field(default_factory=list)
    answers: int = 0
    gathered_tokens: int = 0
    gathered_seconds: float = 0.0
    swaps: list[tuple[float, str]] = field(default_factory=list)
    """When serving went over to which version."""
    published: int = 0
    rejected: int = 0
    domain: str = ""
    doing: str = ""
    question: str = ""
    """The one that is answered at one row."""
    spoken: list[tuple[str, bool]] = field(default_factory=list)
    """Its answer so far, in pieces, each with whether its tokens were drafted and accepted."""
    interrupted: bool = False
    begun: float = field(default_factory=time.perf_counter)

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.begun

    def quarter(self, number: int) -> list[GainTurn]:
        """Return the turns of a quarter of the time, from 0; what came late is the last one's."""
        return [turn for turn in self.turns if min(3, int(4 * turn.at / self.seconds)) == number]


class GainLoop:
    """Steps an engine: gathers, and measures."""

    def __init__(self, engine: Engine, trace: RealTrace, max_tokens: int, look: Look) -> None:
        self._engine, self._trace, self._max_tokens, self._look = engine, trace, max_tokens, look
        self._first = self._version = engine.draft_version

    @property
    def _gamma(self) -> int | None:
        """No drafts while there are random weights alone; then as many as the rule finds worth it."""
        return 0 if self._version == self._first else None

    def gather(self, questions: Iterator[str], until: float) -> None:
        """Answer questions at as many rows as there are, new ones up to ``until`` (seconds of the run); what is not
        finished when the run's time is over is left."""
        trace, engine, begun = self._trace, self._engine, time.perf_counter()
        trace.doing = f"gathering answers, {engine.settings.serve.max_batch} at a time"
        while trace.now < until or (engine.busy and trace.now < trace.seconds):
            while engine.room and trace.now < until:
                engine.submit(self._request(next(questions), self._gamma))
            for output in self._step()[0]:
                trace.gathered_tokens += len(output.tokens)
                trace.answers += output.completion is not None
        trace.gathered_seconds += time.perf_counter() - begun

    def measure(self, question: str) -> None:
        """Answer a question with drafts and without; every other time the other way round. Neither is learned from."""
        trace, both = self._trace, {}
        trace.question = question
        for drafts in (False, True) if len(trace.turns) % 2 else (True, False):
            trace.doing = f"one question at one row, {'with' if drafts else 'without'} drafts"
            request = self._request(question, self._gamma if drafts else 0, learn=False)
            both[drafts] = self._answer(request, shown=drafts)
        (done, seconds), (plain, plain_seconds) = both[True], both[False]
        counts = (sum(getattr(o, name) for o in done.outcomes) for name in ("rounds", "drafted", "accepted"))
        facts = (trace.now, trace.answers, trace.domain, done.outcomes[-1].draft_version, done.tokens == plain.tokens)
        trace.turns.append(GainTurn(*facts, len(done.tokens), seconds, plain_seconds, *counts))

    def _request(self, question: str, gamma: int | None, **how: Any) -> Request:
        return Request(encode(self._engine.pair.tokenizer, question), self._max_tokens, gamma=gamma, **how)

    def _answer(self, request: Request, *, shown: bool) -> tuple[Completion, float]:
        """Serve one request; return the seconds of its steps."""
        total, tokens, spoken = 0.0, [], self._trace.spoken
        if shown:
            spoken.clear()
        self._engine.submit(request)
        while True:
            progress, seconds = self._step()
            total += seconds
            for output in progress:
                for some, accepted in ((output.tokens[:-1], True), (output.tokens[-1:], False)) if shown else ():
                    tokens += some
                    self._speak(tokens, accepted)
                if output.completion:
                    return output.completion, total

    def _speak(self, tokens: list[int], accepted: bool) -> None:
        """Add what the text has grown by; a character of several tokens that is not whole waits."""
        tokenizer: Any = self._engine.pair.tokenizer
        text = str(tokenizer.decode(tokens, skip_special_tokens=True))
        said = sum(len(piece) for piece, _ in self._trace.spoken)
        if len(text) > said and not text.endswith("\ufffd"):
            self._trace.spoken.append((text[said:], accepted))

    def _step(self) -> tuple[Sequence[Any], float]:
        begun = time.perf_counter()
        progress = self._engine.step()
        seconds = time.perf_counter() - begun
        if self._engine.draft_version != self._version:
            self._version = self._engine.draft_version
            self._trace.swaps.append((self._trace.now, self._version))
        self._look()
        return progress, seconds
