"""Drafts while that pays: chooses draft lengths by batch size, from what steps of the traffic take and accept.

At length L a step brings  tokens(L) = 1 + Σ_{j ≤ L} P(at least j drafted tokens are accepted)  tokens a row. Its
time is compared with that of steps without a draft just before, in short turns: cost(b, L) is the quotient of the two
at batch size b. Drafting gains  tokens(L) ÷ cost(b, L);  a length above 0 is taken once that is proven to be above 1.
Turns of either kind, without a draft and with another length, cost ``LOSS`` of the time at most.

Standard library only: it runs in vLLM's engine process, and in simulators.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any

TURN, SETTLE = 8, 2
"""Steps of a turn, and those at its begin and after it that still verify what another length drafted."""
PROOF = 3
"""Turns from which a cost is known."""
KEPT = 24
"""Turns of which a cost is the mean: the newest."""
LOSS = 0.005
"""Share of the tokens that turns may cost."""
MOST = 0.2
"""Share of the steps that turns may take at most."""
FRESH = 3
"""Turns that follow each other closely once a new draft serves."""
WINDOW, CARRIED = 4096, 64
"""Judged steps of a row that acceptance is the mean of, and how many of them count for a newer draft."""
RARE = 0.2
"""Time of batches of a size ÷ that of the most frequent size, up to which they count for little."""
SURE = 2.0
"""Standard errors by which a gain must be above 1."""


@dataclass(slots=True)
class AcceptanceByPlace:
    """How many drafted tokens steps accept: P(at least j), by j from 1."""

    most: int
    tried: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tried, self.kept = [0.0] * self.most, [0.0] * self.most

    def add(self, drafted: int, accepted: int) -> None:
        """Count one row's step."""
        for place in range(min(drafted, self.most)):
            self.tried[place] += 1
            self.kept[place] += place < accepted
        if self.tried[0] > WINDOW:
            self.carry(WINDOW / 2)

    def carry(self, steps: float) -> None:
        """Let what was seen count as so many steps at most."""
        weight = min(1.0, steps / max(self.tried[0], 1.0))
        self.tried = [weight * each for each in self.tried]
        self.kept = [weight * each for each in self.kept]

    def tokens(self, length: int) -> tuple[float, float]:
        """Return the tokens that a step of this length brings a row, and their standard error."""
        chances = [(k + 0.1) / (t + 1) for t, k in zip(self.tried[:length], self.kept[:length], strict=True)]
        mean = sum(chances)
        spread = sum((2 * j + 1) * chance for j, chance in enumerate(chances)) - mean * mean
        return 1 + mean, math.sqrt(max(spread, 0.0) / (self.tried[length - 1] + 1)) if length else 0.0


@dataclass(slots=True)
class _Batch:
    """What is known of batches of about one size."""

    length: int = 0
    """The draft length that is taken."""
    ratios: dict[int, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=KEPT)))
    """Length → seconds of a step ÷ those of one without a draft, turn by turn."""
    before: deque[float] = field(default_factory=lambda: deque(maxlen=2 * TURN))
    """Seconds of the newest steps of the length that is taken."""
    turn: list[float] = field(default_factory=list)
    """Seconds of the steps of the turn that runs."""
    rested: deque[float] = field(default_factory=lambda: deque(maxlen=2 * TURN))
    """Seconds of the newest steps in which the draft rested."""
    woke: list[float] = field(default_factory=list)
    """Seconds of the first steps after it woke."""
    passes: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    """Seconds of a step of length 0 ÷ those of one in which the draft rests, each time that it woke."""
    seen: float = 0.0
    """Seconds that such batches took of late."""

    def awake(self, seconds: float) -> None:
        """Note a step of length 0 whose draft is awake: after a rest it tells what the draft's own pass takes."""
        self.before.append(seconds)
        if self.rested and len(self.woke) < TURN:
            self.woke.append(seconds)
            if len(self.woke) == TURN:
                self.passes.append(fmean(self.woke) / fmean(self.rested))

    @property
    def pass_cost(self) -> float:
        """Seconds of a step of length 0 ÷ those of one in which the draft rests: never below 1, and 1 until several
        wakes have told it, for a machine that changes its speed meanwhile says anything."""
        return max(1.0, median(self.passes)) if len(self.passes) >= PROOF else 1.0

    def cost(self, length: int) -> tuple[float, float]:
        """Return the quotient of times and its standard error; what was not tried is guessed from other lengths."""
        known = self.ratios[length]
        if length == 0 or len(known) >= PROOF:
            return (fmean(known), stdev(known) / math.sqrt(len(known))) if length else (1.0, 0.0)
        others = [(fmean(some) - 1) / other for other, some in self.ratios.items() if other and some]
        more = length * (fmean(others) if others else 0.1)
        return 1 + more, max(more, 0.1) / 2 if any(len(some) >= PROOF for some in self.ratios.values()) else 0.5


class GainMeter:
    """Chooses the draft length of each step. Used by one thread."""

    def __init__(self, most: int) -> None:
        """``most``: num_speculative_tokens."""
        self.lengths = sorted({length for length in (1, 2, 3, 4, 6, 8, 12, 16, most) if length <= most})
        self.acceptance = AcceptanceByPlace(most)
        self._batches: dict[int, _Batch] = defaultdict(_Batch)
        self._arm: int | None = None
        """The length of the turn that runs; None between turns."""
        self._due = {"plain": 0, "other": 4 * TURN}
        """Steps until the next turn without a draft, and until that with another length."""
        self._left = self._settling = self._longest = 0
        """Steps until the turn ends; steps that are not looked at; steps until it ends whatever they tell."""
        self._fresh = 1
        self._tokens = self._seconds = self._others = self._waited = 0.0
        """Tokens and seconds of late, of these the seconds of steps that drafting does not change, as prefills, and
        rows × seconds."""
        self.turns = 0
        """Turns so far."""

    @property
    def drafts(self) -> bool:
        """Whether batches of any size are drafted for, or a turn is trying it."""
        return self._arm is not None or any(batch.length for batch in self._batches.values())

    @property
    def promising(self) -> bool:
        """Whether a length would pay, by what was seen of this draft, proven or not; a new one is first tried."""
        most = max((batch.seen for batch in self._batches.values()), default=0.0)
        seen = [batch for batch in self._batches.values() if batch.seen > RARE * most]
        return self._fresh > 0 or any(self.gain(batch, length)[0] > 1 for batch in seen for length in self.lengths)

    def woke(self) -> None:
        """The draft rested, and does so no longer: a turn follows soon."""
        self._due["other"] = min(self._due["other"], TURN)
        for batch in self._batches.values():
            batch.woke = []
            batch.before.clear()

    def rested(self, rows: int, seconds: float, tokens: int) -> None:
        """Note a step of length 0 in which every row decoded and the draft rested."""
        self.decoded(rows, seconds, tokens)
        self._batches[_size(rows)].rested.append(seconds)

    def waited(self, rows: int, seconds: float, tokens: int) -> None:
        """Note such a step in which the draft was awake, and could not be tried yet."""
        self.decoded(rows, seconds, tokens)
        self._batches[_size(rows)].awake(seconds)

    def new_draft(self) -> None:
        """Another draft serves: what the former had right counts little, and turns follow each other closely."""
        self.acceptance.carry(CARRIED)
        self._fresh = FRESH
        self._due["other"] = min(self._due["other"], TURN)

    def length(self, rows: int) -> int:
        """Return how many tokens to draft for a batch."""
        return self._batches[_size(rows)].length if self._arm is None else self._arm

    def accepted(self, drafted: int, accepted: int) -> None:
        """Note what a row's step accepted, of how many drafted tokens."""
        if drafted:
            self.acceptance.add(drafted, accepted)

    def decoded(self, rows: int, seconds: float, tokens: int) -> None:
        """Note the speed of a step in which every row decoded."""
        self._fade(rows, seconds, tokens)
        self._batches[_size(rows)].seen += seconds

    def other_step(self, rows: int, seconds: float, tokens: int) -> None:
        """Note a step that tells nothing of drafting: a prefill, or rows of several lengths."""
        self._fade(rows, seconds, tokens)
        self._others += seconds
        self._wait()

    def _fade(self, rows: int, seconds: float, tokens: int) -> None:
        """Count a step's speed, and let earlier ones count less."""
        self._tokens, self._seconds = 0.999 * self._tokens + tokens, 0.999 * self._seconds + seconds
        self._others, self._waited = 0.999 * self._others, 0.999 * self._waited + rows * seconds
        for batch in self._batches.values():
            batch.seen *= 0.999

    def _wait(self) -> None:
        """End a turn that other steps let last too long."""
        self._longest -= 1
        if self._arm is not None and self._longest <= 0:
            self._end()

    def step(self, rows: int, length: int, seconds: float, tokens: int) -> None:
        """Note a step in which every row decoded and verified ``length`` drafted tokens, and drafted as many."""
        batch = self._batches[_size(rows)]
        self.decoded(rows, seconds, tokens)
        if self._settling > 0 or length != self.length(rows):
            self._settling -= 1
        elif self._arm is None and length == 0:
            batch.awake(seconds)
        elif self._arm is None:
            batch.before.append(seconds)
        else:
            batch.turn.append(seconds)
        self._left -= 1
        if self._arm is None:
            self._begin_if_due(batch)
        elif self._left <= 0:
            self._end()
        else:
            self._wait()

    def _begin_if_due(self, batch: _Batch) -> None:
        """Begin a turn: without a draft, or with the length of which most is to be learned."""
        others = [length for length in self.lengths if length != batch.length]
        for kind, wanted in (("plain", batch.length > 0), ("other", bool(others))):
            self._due[kind] -= 1
            if wanted and self._arm is None and self._due[kind] <= 0:
                self._arm = 0 if kind == "plain" else max(others, key=lambda length: self._hope(batch, length))
                self._left, self._settling, self._longest = TURN, SETTLE, 4 * TURN

    def _end(self) -> None:
        arm, self._arm = self._arm, None
        assert arm is not None
        self.turns += 1
        self._fresh, self._settling = max(0, self._fresh - 1), SETTLE
        for batch in self._batches.values():
            if len(batch.turn) >= TURN // 3 and len(batch.before) >= TURN // 3 and arm != batch.length:
                self._compare(batch, arm, fmean(batch.turn) / fmean(batch.before))
            batch.turn = []
            self._choose(batch)
        self._due["other" if arm else "plain"] = self._pause(max(self._batches.values(), key=lambda one: one.seen), arm)

    def _pause(self, batch: _Batch, arm: int) -> int:
        """Return the steps until a turn with a length may come again, so that such turns cost no more than they may."""
        lost = self.gain(batch, batch.length)[0] / self.gain(batch, arm)[0] - 1
        return 2 * TURN if self._fresh else int(TURN / min(MOST, LOSS / max(lost, LOSS)))

    def _compare(self, batch: _Batch, arm: int, ratio: float) -> None:
        """Note the cost of a length: the turn's own, or after a turn without a draft, that of the length taken."""
        if arm == 0:
            batch.ratios[batch.length].append(1 / ratio)
        else:
            batch.ratios[arm].append(ratio * batch.cost(batch.length)[0])

    def _choose(self, batch: _Batch) -> None:
        known = [length for length in self.lengths if len(batch.ratios[length]) >= PROOF]
        best = max(known, key=lambda length: self.gain(batch, length)[0], default=0)
        gain, error = self.gain(batch, best)
        now, doubt = self.gain(batch, batch.length)
        sure, bar = (0.5, now) if batch.length else (SURE, 1.0)
        chosen = 0 if now + doubt < 1 else batch.length
        if best and gain - sure * error > bar:
            chosen = best
        if chosen != batch.length:
            batch.length = chosen
            batch.before.clear()

    def gain(self, batch: _Batch, length: int) -> tuple[float, float]:
        """Return tokens a second with a length ÷ those of a draft that rests, and the standard error."""
        (tokens, doubt), (cost, error) = self.acceptance.tokens(length), batch.cost(length)
        gain = tokens / cost / (batch.pass_cost if length else 1.0)
        return gain, gain * math.hypot(doubt / tokens, error / cost)

    def _hope(self, batch: _Batch, length: int) -> float:
        """Return what a length may gain at most."""
        gain, error = self.gain(batch, length)
        return gain + SURE * error

    def told(self) -> dict[str, Any]:
        """Return what was measured: tokens a second, a request's seconds per output token, gain and error over all
        steps, prefills among them; and by batch size ``rows`` (the largest), the ``length`` taken, ``gain`` and
        ``error`` of it, or where nothing is drafted of the length that would gain most, the ``break_even`` acceptance
        of drafted tokens there, and seconds of a step of length 0 ÷ those of one in which the draft rests, ``awake``.
        """
        tried, kept = self.acceptance.tried, self.acceptance.kept
        rows = [self._told(size, batch) for size, batch in sorted(self._batches.items()) if batch.seen]
        weight = self._others + sum(batch.seen for batch in self._batches.values()) or 1.0
        gains = [(batch.seen / weight, *self.gain(batch, batch.length)) for batch in self._batches.values()]
        return {
            "tokens_per_second": self._tokens / self._seconds if self._seconds else None,
            "seconds_per_token": self._waited / self._tokens if self._tokens else None,
            "gain": 1 + sum(share * (gain - 1) for share, gain, _ in gains) if gains else None,
            "error": math.sqrt(sum((share * error) ** 2 for share, _, error in gains)),
            "accepted": sum(kept) / sum(tried) if sum(tried) else None, "batches": rows,
        }  # fmt: skip

    def _told(self, size: int, batch: _Batch) -> dict[str, Any]:
        best = batch.length or max(self.lengths, key=lambda length: self.gain(batch, length)[0])
        gain, error = self.gain(batch, best)
        known, awake = len(batch.ratios[best]), batch.pass_cost
        return {
            "rows": 1 << size, "length": batch.length, "best": best, "gain": gain, "error": error, "turns": known,
            "break_even": (batch.cost(best)[0] * awake - 1) / best if known else None, "awake": awake,
        }  # fmt: skip


def _size(rows: int) -> int:
    """Return the batch size's class: 1, 2, up to 4, up to 8, …"""
    return max(0, (rows - 1).bit_length())
