"""One request while it decodes, and its completion."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from osd.logits import Scores
from router.base import Decision
from storage.names import lossy_name
from storage.records import Outcome, Request, Round, now

LAG = 4
"""Tokens by which a drafter may lag behind a row's text and still share the batch's first draft pass."""
AHEAD = 64
"""Uniform numbers drawn at once: asking for them takes longer than drawing them."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request."""

    request: Request
    route: str
    tokens: tuple[int, ...]
    """The output, the end token included."""
    text: str | None
    """The output as text, without special and end tokens and before any stop string; None without a tokenizer."""
    finish_reason: str
    """``stop`` (end token or stop string), ``length`` or ``cancelled``."""
    rounds: tuple[Round, ...]
    outcomes: tuple[Outcome, ...]
    """Totals, one for each draft version that served it."""
    seconds: float
    """Seconds from admission to the last token."""
    prompt_scores: Scores | None = None
    """The log-probabilities of the prompt's tokens but the first, where they were asked for."""
    start: tuple[int, ...] = ()
    """The token that stands between what an encoder read and the output; none without an encoder."""
    first_seconds: float | None = None
    """Seconds from admission to the first token; None where none came."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens before the output: the request's, and an encoder-decoder's start token."""
        return self.request.prompt_tokens + self.start


class RequestOutput(NamedTuple):
    """What a step brought one request."""

    request: Request
    tokens: tuple[int, ...]
    """New tokens; empty when a request is cancelled."""
    length: int
    """Tokens of its text now, prompt included."""
    completion: Completion | None = None
    """The finished request; None while it goes on."""

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.id


class ServingDraft(Protocol):
    """A draft in memory, as far as a sequence needs to know it."""

    draft: str
    """Its name."""
    version: str
    """The version of its weights."""

    @property
    def limit(self) -> int:
        """Positions that it can draft at."""


class SequenceState:
    """The state of one request, first waiting and then in the batch, where a draft and a gamma rule serve it."""

    loaded: ServingDraft
    """The draft that serves it, as long as it lives."""
    controller: Any
    """The gamma rule that sizes its drafts: an :class:`osd.gamma.base.GammaController`."""
    gamma_state: Any
    """What that rule knows of this sequence."""
    lossy = ""
    """The lossy mode in which its drafts are accepted; empty where its text is the target's own."""
    has_proposer = False
    """Whether tokens are drafted for it beyond its draft's positions, too."""

    def __init__(
        self, request: Request, seen: Request, decision: Decision, limit: int, start: tuple[int, ...] = ()
    ) -> None:
        """Prepare a request for decoding. ``seen`` is the request as the router sees it; ``limit`` the number of
        tokens, prompt included, at which the sequence must end; ``start`` the token with which a decoder begins behind
        what an encoder reads, none without one."""
        self.request, self.seen, self.decision, self.start = request, seen, decision, start
        self.tokens = [*request.prompt_tokens, *start]
        self.prompt_len = len(self.tokens)
        self.encoded = len(request.prompt_tokens) if start else 0
        """Number of leading tokens that an encoder reads, in one piece; the decoder's own text begins behind them."""
        self.end = min(limit, self.prompt_len + request.max_new_tokens)
        self.processors: list[Any] = []
        """What changes its logits, in order: :class:`osd.verification.logits_processors.LogitsProcessor`."""
        self.drafter_seen = 0
        """Number of leading tokens whose keys and values the drafter's cache holds."""
        self.drafter_version = ""
        """The draft version that prefilled the prompt."""
        self.prompt_scores: Scores | None = None
        """The log-probabilities of the prompt's tokens but the first, where they are asked for."""
        self.stream: Any = None
        """Its text as it grows, an :class:`osd.engine.text_stream.TextStream`; None where it has no stop strings."""
        self.rounds: list[Round] = []
        self.started = time.perf_counter()
        self._first_seconds: float | None = None
        self._chance = np.random.Generator(np.random.Philox(request.sampling.seed))
        self._drawn, self._used = np.empty(0), 0
        """Uniform numbers, and how many of them were taken."""

    @property
    def route(self) -> str:
        """The name of its route."""
        return self.decision.name

    @property
    def greedy(self) -> bool:
        """Whether it is at temperature 0."""
        return self.request.sampling.greedy

    def begin(self, controller: Any, lossy: str = "") -> None:
        """Start decoding: it has a draft, and this rule sets its draft length; ``lossy`` names the mode in which drafts
        are accepted, which changes nothing at temperature 0."""
        self.controller, self.gamma_state = controller, controller.start()
        self.lossy = "" if self.greedy else lossy
        self.rule = lossy_name(controller.name, self.lossy)

    @property
    def length(self) -> int:
        """Number of tokens so far, prompt included."""
        return len(self.tokens)

    @property
    def decoded(self) -> list[int]:
        """Tokens that the model itself reads and continues: all, or those behind what an encoder reads."""
        return self.tokens[self.encoded :] if self.encoded else self.tokens

    @property
    def output(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[self.prompt_len :]

    def add_round(self, done: Round) -> None:
        """Note a round that brought tokens."""
        if not self.rounds:
            self._first_seconds = time.perf_counter() - self.started
        self.rounds.append(done)

    def room(self) -> int:
        """Return how many tokens may be drafted: a round emits one more than it drafts."""
        left = self.end - self.length - 1
        return max(0, left if self.has_proposer else min(left, self.draft_room()))

    def draft_room(self) -> int:
        """Return how many tokens its draft may draft, whose positions are limited."""
        return max(0, self.loaded.limit - self.length)

    def unread(self) -> int:
        """Return how many tokens the drafter must prefill before it can draft: 0 where its first draft pass takes them
        along, and where it never drafts again."""
        behind = self.length - self.drafter_seen
        late = behind > LAG or self.drafter_seen < self.encoded
        return behind if late and self.draft_room() else 0

    def chances(self, count: int) -> npt.NDArray[np.float64]:
        """Return the sequence's next uniform numbers in [0, 1): its own stream, whatever else is in the batch."""
        if self._used + count > len(self._drawn):
            self._drawn = np.concatenate([self._drawn[self._used :], self._chance.random(max(count, AHEAD))])
            self._used = 0
        self._used += count
        return self._drawn[self._used - count : self._used]

    def complete(self, reason: str, text: str | None) -> Completion:
        """Return the finished request."""
        return Completion(
            self.request, self.route, tuple(self.output), text, reason, tuple(self.rounds),
            self._outcomes(), time.perf_counter() - self.started, self.prompt_scores, self.start,
            self._first_seconds,
        )  # fmt: skip

    def _outcomes(self) -> tuple[Outcome, ...]:
        by_version: dict[str, list[Round]] = {}
        for r in self.rounds:
            by_version.setdefault(r.draft_version, []).append(r)
        last = len(by_version) - 1
        parts = enumerate(by_version.items())
        return tuple(self._outcome(version, rounds, i == last) for i, (version, rounds) in parts)

    def _outcome(self, version: str, rounds: Sequence[Round], last: bool) -> Outcome:
        return Outcome(
            request_id=self.request.id,
            route=self.route,
            tenant=self.request.tenant,
            draft_version=version,
            controller=self.rule,
            finished_at=now(),
            requests=int(last),
            rounds=len(rounds),
            drafted=sum(r.drafted for r in rounds),
            accepted=sum(r.judged_right for r in rounds),
            rejections=sum(r.rejected for r in rounds),
            emitted=sum(r.emitted for r in rounds),
            prompt_tokens=self.prompt_len if last else 0,
            draft_ms=sum(r.draft_ms for r in rounds),
            verify_ms=sum(r.verify_ms for r in rounds),
            positions=by_position(rounds),
        )


def by_position(rounds: Sequence[Round]) -> tuple[tuple[int, int, int], ...]:
    """Count how often each place in a draft was drafted, accepted, refused; see Outcome.positions."""
    counts = [[0, 0, 0] for _ in range(max((r.places for r in rounds), default=0))]
    for r in rounds:
        for place, count in enumerate(counts[: r.places]):
            count[0] += 1
            count[1] += place < r.judged_right
        if r.rejected:
            counts[r.judged_right][2] += 1
    return tuple((drafted, accepted, refused) for drafted, accepted, refused in counts)
