"""What drafting and verifying cost here and now: a(B) and b(B, N), learned while serving.

B rows share a pass, and N tokens are in it, of all rows together. :class:`~osd.gamma.costs.pass_times.PassTimes` says
what a pass of any shape takes; gamma rules, routers and tree pruning ask :class:`CostModel`, each in its own terms.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from osd.gamma.costs.pass_times import WINDOW, CostCurve, PassTimes, lower_median

__all__ = ["CostModel", "MachineLoad", "nearly"]

_LATE_ENOUGH = 3
"""Late drafts (with text to read first), and no others, after which their times count as the cost of drafting."""
_LATE_ERROR = 0.3
"""Standard error of a late draft's time, ÷ it."""
_DEEPEST = 32
"""Draft passes up to which single costs are looked up; deeper drafts cost as much a pass."""
_LOAD_WINDOW = 7
_LOAD_ANCHOR = 0.98


def nearly(tokens: int) -> int:
    """Round a number of tokens so that similar passes share a cell: eight cells from one power of two to the next."""
    step = 1 << max(0, tokens.bit_length() - 4)
    return (tokens + step // 2) // step * step


class MachineLoad:
    """How much slower than usual the machine is just now, as a factor on every cost.

    A trainer that shares the processor slows all cells at once, and only some are being timed. So it is what
    drafting and verifying agree on: where only one of them changed, it is that one's cells that have to learn. The
    factor leans back to 1 over some hundred rounds, so that a lasting change ends up in the cells, too.
    """

    def __init__(self) -> None:
        self._recent: dict[str, tuple[deque[float], int]] = {}
        self.factor = 1.0

    def observe(self, kind: str, ratio: float, at: int) -> None:
        """Add the ratio of a timing to its cell's typical value, in round ``at``."""
        ratios, _ = self._recent.get(kind) or (deque[float](maxlen=_LOAD_WINDOW), at)
        ratios.append(ratio)
        self._recent[kind] = ratios, at
        middles = [lower_median(ratios) for ratios, seen_at in self._recent.values() if at - seen_at < _LOAD_WINDOW]
        least, most = min(middles), max(middles)
        agreed = least if least > 1 else most if most < 1 else 1.0
        self.factor = agreed**_LOAD_ANCHOR


class _Common:
    """Costs of verifying, and rounds: the same for all drafts of an engine."""

    def __init__(self) -> None:
        self.rounds = self.plain_rounds = 0
        self.context = 0
        """Positions in the caches of the rows of the newest round."""
        self.load = MachineLoad()
        self.forget()

    def forget(self) -> None:
        """Forget what target passes cost."""
        self.verify_times = PassTimes()

    def add(self, kind: str, times: PassTimes, shape: tuple[int, int], ms: float, context: int = 0) -> None:
        """Add the milliseconds of a pass of this shape, and what they say of the machine's load."""
        usual = times.usual_ms(*shape)
        if usual is not None:
            self.load.observe(kind, ms / usual, self.rounds)
        times.add(*shape, ms / self.load.factor, self.rounds, context)


class CostModel:
    """Milliseconds of drafting and verifying. One for each set of draft weights of an engine, shared by the rows that
    it drafts for and updated by every step; the costs of verifying are common to all of them."""

    def __init__(self, whole: CostModel | None = None) -> None:
        """Start empty. ``whole``: cost model of the engine's first draft, when this one is :meth:`of` another."""
        self._common: _Common = _Common() if whole is None else whole._common
        self._others: dict[str, CostModel] = {}
        self.sharing: int | None = None
        """Rows of the batch that this draft drafts for, while others draft for the rest; None where it is alone."""
        self.unread = 0
        """Tokens that the drafter reads before its next draft, whose timing is then not that of a draft step."""
        self.forget_drafts()

    def of(self, draft: str) -> CostModel:
        """Return the cost model of further draft weights, known by this name; nothing of it is forgotten."""
        if draft not in self._others:
            self._others[draft] = CostModel(self)
        return self._others[draft]

    @property
    def rounds(self) -> int:
        """Number of rounds timed."""
        return self._common.rounds

    @property
    def plain_rounds(self) -> int:
        """Number of rounds without drafted tokens."""
        return self._common.plain_rounds

    @property
    def load(self) -> float:
        """How much slower than usual everything is just now; 1 is as usual."""
        return self._common.load.factor

    def share(self, rows: int | None) -> None:
        """Note for how many rows of a batch this draft drafts, while others draft for the rest; None where it is
        alone."""
        self.sharing = rows

    def begin_draft(self, unread: int) -> None:
        """Note how many tokens the drafter reads before its next draft."""
        self.unread = unread

    def drafting(self, batch: int) -> int:
        """Return how many of a batch's rows share this draft's passes."""
        return self.sharing or batch

    def forget_drafts(self) -> None:
        """Forget what drafting costs, when something else drafts from now on."""
        self.timely = 0
        """Drafts that were timed and did not begin late."""
        self._late = 0
        self._a_token: deque[float] = deque(maxlen=WINDOW)
        self._draft_times = PassTimes(per_pass=True)

    def forget_verifying(self) -> None:
        """Forget what target passes cost, when they take another time from now on."""
        self._common.forget()

    def observe_draft(self, batch: int, steps: int, ms: float) -> None:
        """Add the time ``ms`` of ``steps`` draft passes over ``batch`` rows. A timing that is not above 0 is
        ignored."""
        if steps < 1 or batch < 1 or not 0 < ms < math.inf:
            return
        if self.unread:
            self._observe_late(batch, steps, ms)
        else:
            self.timely += 1
            self._common.add("draft", self._draft_times, (batch, steps), ms / steps)

    def _observe_late(self, batch: int, steps: int, ms: float) -> None:
        self._late += 1
        if self.timely:
            usual = self.passes_ms(batch, steps) or 0.0
            self._a_token.append(max(0.0, ms - usual) / self.load / self.unread)
        elif self._late >= _LATE_ENOUGH:
            self._draft_times.probe(batch, steps, ms / steps / self.load, _LATE_ERROR)

    def observe_verify(self, batch: int, tokens: int, ms: float, context: int = 0) -> None:
        """Add the time ``ms`` of one target pass of ``tokens`` tokens (γ + 1 a row) over ``batch`` rows, accepting
        included; ``context``: positions in their caches, of all rows together."""
        common = self._common
        common.rounds += 1
        common.plain_rounds += tokens == batch
        if batch >= 1 and tokens >= 1 and 0 < ms < math.inf:
            common.context = context
            common.add("verify", common.verify_times, (batch, nearly(tokens)), ms, context)

    def probe_draft(self, rows: int, passes: int, unread: int, ms: float, error: float) -> None:
        """Add the time of draft passes before the first request; ``unread``: tokens read before them; ``error``: its
        standard error ÷ it."""
        if not unread:
            self._draft_times.probe(rows, passes, ms / passes, error)
        elif usual := self.passes_ms(rows, passes):
            self._a_token.append(max(0.0, ms - usual) / unread)

    def probe_verify(self, rows: int, tokens: int, ms: float, error: float, context: int) -> None:
        """Add the time of a target pass before the first request; as :meth:`probe_draft`."""
        self._common.verify_times.probe(rows, nearly(tokens), ms, error, context)

    @property
    def known(self) -> bool:
        """Whether both drafting and verifying were timed, so that there are curves."""
        return bool(self._draft_times) and bool(self._common.verify_times)

    @property
    def changes(self) -> int:
        """How often what passes take has changed, so that curves of before no longer hold."""
        return self._draft_times.changes + self._common.verify_times.changes

    @property
    def reading_ms(self) -> float:
        """Milliseconds by which a draft is longer for each token that the drafter has to read before it."""
        return lower_median(self._a_token) * self.load if self._a_token else 0.0

    def draft_curve(self, batch: int, most: int) -> CostCurve:
        """Return what each of 1 to ``most`` draft passes takes over the rows of a batch that this draft serves, load
        left out."""
        return self._draft_times.curve(self.drafting(batch), 1, most, 0, self.rounds)

    def verify_curve(self, batch: int, most: int) -> CostCurve:
        """Return target passes over ``batch`` rows by their tokens, from a plain pass to ``most``, load left out."""
        return self._common.verify_times.curve(batch, batch, most, self._common.context, self.rounds)

    def draft_ms(self, batch: int, steps: int) -> float | None:
        """Return the milliseconds of ``steps`` draft passes over the rows of a batch that this draft serves, None if
        unknown; of one pass: a(B)."""
        return self.passes_ms(self.drafting(batch), steps)

    def passes_ms(self, rows: int, steps: int) -> float | None:
        """Return the milliseconds of ``steps`` draft passes over exactly ``rows`` rows, whatever the batch."""
        if not self._draft_times:
            return None
        curve = self._draft_times.curve(rows, 1, _DEEPEST, 0, self.rounds)
        return float(np.interp(steps, curve.size, curve.ms)) * steps * self.load

    def verify_ms(self, batch: int, tokens: int) -> float | None:
        """Return b(B, N): milliseconds of one target pass of N tokens in all; None while no pass was timed."""
        if not self._common.verify_times:
            return None
        curve = self.verify_curve(batch, max(2 * batch, 1 << tokens.bit_length()))
        return float(np.interp(tokens, curve.size, curve.ms)) * self.load

    def rounds_ms(self, batch: int, most: int) -> list[float] | None:
        """Return the denominator of Eq. 1 for B rows of γ = 0 to ``most`` drafted tokens, γ·a(B) + b(B, B (γ + 1)), in
        milliseconds; None while too little is known. Where this draft serves b of the rows, their part: γ·a(b) + b/B ·
        b(B, B (γ + 1)). More tokens take no less."""
        if not self.known:
            return None
        gammas = np.arange(most + 1)
        drafting, verifying = self.draft_curve(batch, max(most, 1)), self.verify_curve(batch, batch * (most + 2))
        draft = gammas * np.interp(gammas, drafting.size, drafting.ms)
        verify = np.interp(batch * (gammas + 1), verifying.size, verifying.ms) * (self.drafting(batch) / batch)
        return [float(ms) for ms in np.maximum.accumulate(draft + verify) * self.load]


SECONDS = 0.1
"""Time that probes may take; a turn that has begun is ended, and there is one at least beside the first."""
MOST_TURNS = 8
READ = 64
"""Tokens that the drafter reads before one of the drafts."""
ALONE = 0.3
"""Standard error, ÷ it, of what was timed once."""

TimePass = Callable[[int, int], float]
"""Milliseconds of a target pass over (rows, tokens of each)."""
TimeDraft = Callable[[int, int, int], float]
"""Milliseconds of a draft over (rows, passes, tokens to read first)."""


def probe(costs: CostModel, rows: int, at: int, time_pass: TimePass, time_draft: TimeDraft | None) -> None:
    """Time target passes, and drafts, of one row and of ``rows``, whose caches hold ``at`` positions each.

    The first turn is not counted, for first passes make what others use. Of the others each shape's least time counts:
    whatever else the machine does makes passes slower, never faster. How far the second least is from it is its error.
    """
    passes = list(dict.fromkeys([(rows, 1), (rows, 2), (rows, 5), (1, 1), (1, 2), (1, 5)]))
    drafts = list(dict.fromkeys([(rows, 1, 0), (rows, 4, 0), (1, 1, 0), (1, 4, 0), (1, 1, READ)])) if time_draft else []
    until, turns = time.perf_counter() + SECONDS, list[list[float]]()
    while len(turns) < 2 or (len(turns) <= MOST_TURNS and time.perf_counter() < until):
        taken = [time_pass(*shape) for shape in passes]
        turns.append(taken + [time_draft(*shape) for shape in drafts if time_draft])
    least = [_least(list(times)) for times in zip(*turns[1:], strict=True)]
    for (count, each), (ms, error) in zip(passes, least, strict=False):
        costs.probe_verify(count, count * each, ms, error, count * at)
    for draft, (ms, error) in zip(drafts, least[len(passes) :], strict=True):
        costs.probe_draft(*draft, ms, error)


def _least(times: list[float]) -> tuple[float, float]:
    """Return the least time, and its standard error ÷ it."""
    times.sort()
    return times[0], times[1] / times[0] - 1 if len(times) > 1 else ALONE
