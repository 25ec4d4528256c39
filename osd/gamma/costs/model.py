"""What drafting and verifying cost here and now: a(B) and b(B, N), learned while serving.

B rows share a pass, and N tokens are in it, of all rows together. Each cell (batch, tokens) keeps the median of its
last few timings; a line through the cells fills in those never timed. Both forget, and a stray timing moves neither.
The rule goodput takes the same timings as curves with an error (:mod:`osd.gamma.costs.pass_times`).
"""

from __future__ import annotations

import math
from collections import deque

from osd.gamma.costs.pass_times import CostCurve, PassTimes
from osd.gamma.costs.surface import TRUSTED, WINDOW, Surface, lower_median

__all__ = ["TRUSTED", "WINDOW", "CostModel", "MachineLoad"]

_LATE_ENOUGH = 3
"""Late drafts (with text to read first), and no others, after which their times count as the cost of drafting."""
_LOAD_WINDOW = 7
_LOAD_ANCHOR = 0.98


def nearly(tokens: int) -> int:
    """Round a number of tokens so that similar passes share a cell: eight cells from one power of two to the next."""
    step = 1 << max(0, tokens.bit_length() - 4)
    return (tokens + step // 2) // step * step


def rounds_left(at: int, now: int, most: int) -> int:
    """Return the rounds for which costs looked up in round ``at`` still hold: ``most``, fewer while little was
    timed."""
    return at + min(most, 1 + at // 4) - now


def _doubled(steps: int) -> int:
    """Round steps up to a power of two: drafts that share a cell cost nearly the same a step."""
    return 1 << (steps - 1).bit_length()


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
    """Costs of verifying, and the time spent: the same for all drafts of an engine."""

    def __init__(self) -> None:
        self.rounds = self.plain_rounds = 0
        self.spent_ms = 0.0
        self.context = 0
        """Positions in the caches of the rows of the newest round."""
        self.drafts = 0
        """Number of cost models that share it."""
        self.load = MachineLoad()
        self.forget_verifying()

    def forget_verifying(self) -> None:
        """Forget what target passes took, when it no longer predicts what they will take."""
        self.verify = Surface(lambda batch, tokens: tokens, by_rows=True)
        self.verify_times = PassTimes()
        self.beyond = Surface(lambda batch, tokens: tokens)
        """What passes that verified drafts took more than plain ones did just then."""


class CostModel:
    """Milliseconds of drafting and verifying. One for each set of draft weights of an engine, shared by the rows that
    it drafts for and updated by every step; the costs of verifying are common to all of them."""

    def __init__(self, whole: CostModel | None = None) -> None:
        """Start empty. ``whole``: cost model of the engine's first draft, when this one is :meth:`of` another."""
        self._common: _Common = _Common() if whole is None else whole._common
        self._common.drafts += 1
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

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        self._common.rounds = rounds

    @property
    def clock(self) -> tuple[int, float]:
        """Rounds timed, and milliseconds of all drafting and verifying in them, read together."""
        common = self._common
        return common.rounds, common.spent_ms

    @property
    def plain_rounds(self) -> int:
        """Number of rounds without drafted tokens."""
        return self._common.plain_rounds

    @property
    def whole_ms(self) -> float:
        """Milliseconds of all drafting and verifying seen."""
        return self._common.spent_ms

    @property
    def spent_ms(self) -> float:
        """This draft's equal part of ``whole_ms`` where several drafts serve."""
        return self._common.spent_ms / self._common.drafts

    @spent_ms.setter
    def spent_ms(self, ms: float) -> None:
        self._common.spent_ms = ms * self._common.drafts

    def drafting(self, batch: int) -> int:
        """Return how many of a batch's rows share this draft's passes."""
        return self.sharing or batch

    def observe_draft(self, batch: int, steps: int, ms: float) -> None:
        """Add the time ``ms`` of ``steps`` draft passes over ``batch`` rows. A timing that is not above 0 is
        ignored."""
        if steps < 1 or batch < 1 or not 0 < ms < math.inf:
            return
        if self.unread:
            self._observe_late(batch, steps, ms)
        else:
            self.timely += 1
            self._observe("draft", self._draft, batch, _doubled(steps), ms, steps)
            self._draft_times.add(batch, steps, ms / steps / self.load, self.rounds)

    def forget_drafts(self) -> None:
        """Forget what drafting costs, when something else drafts from now on."""
        self.timely = 0
        """Drafts that were timed and did not begin late."""
        self._draft = Surface(lambda batch, steps: batch)  # a cell holds milliseconds a step
        self._late_draft = Surface(lambda batch, steps: batch)
        self._late_drafts = 0
        self._extras: deque[float] = deque([0.0], maxlen=WINDOW)
        self._a_token: deque[float] = deque(maxlen=WINDOW)
        self._draft_times = PassTimes(per_pass=True)

    def forget_verifying(self) -> None:
        """Forget what target passes cost, when they take another time from now on."""
        self._common.forget_verifying()

    def _observe_late(self, batch: int, steps: int, ms: float) -> None:
        self._common.spent_ms += ms
        self._late_drafts += 1
        self._late_draft.add(batch, steps, ms / steps / self.load, self.rounds)
        usual = self._draft.estimate(batch, _doubled(steps))
        if usual is not None:
            self._extras.append(max(0.0, ms / self.load - steps * usual))
            self._a_token.append(self._extras[-1] / self.unread)

    def observe_verify(self, batch: int, tokens: int, ms: float, context: int = 0) -> None:
        """Add the time ``ms`` of one target pass of ``tokens`` tokens (γ + 1 a row) over ``batch`` rows, accepting
        included; ``context``: positions in their caches, of all rows together."""
        self._common.rounds += 1
        self._common.plain_rounds += tokens == batch
        plain = self._common.verify.cell(batch, nearly(batch))
        if plain is not None and tokens > batch and 0 < ms < math.inf:
            more = max(0.0, ms / self.load - plain.typical)
            self._common.beyond.add(batch, nearly(tokens), more, self.rounds)
        self._observe("verify", self._common.verify, batch, nearly(tokens), ms, 1)
        if batch >= 1 and tokens >= 1 and 0 < ms < math.inf:
            self._common.context = context
            self._common.verify_times.add(batch, nearly(tokens), ms / self.load, self.rounds, context)

    def _observe(self, kind: str, surface: Surface, batch: int, tokens: int, ms: float, passes: int) -> None:
        if batch < 1 or tokens < 1 or not 0 < ms < math.inf:
            return
        self._common.spent_ms += ms
        cell = surface.cell(batch, tokens)
        if cell is not None and cell.count >= TRUSTED:
            self._common.load.observe(kind, ms / passes / cell.typical, self.rounds)
        surface.add(batch, tokens, ms / passes / self._common.load.factor, self.rounds)

    @property
    def catch_up_ms(self) -> float:
        """Milliseconds by which a draft that begins late is usually longer; 0 while none was timed."""
        return lower_median(self._extras) * self.load

    @property
    def reading_ms(self) -> float:
        """Milliseconds of ``catch_up_ms`` for each token that had to be read."""
        return lower_median(self._a_token) * self.load if self._a_token else 0.0

    @property
    def load(self) -> float:
        """How much slower than usual everything is just now; 1 is as usual."""
        return self._common.load.factor

    @property
    def known(self) -> bool:
        """Whether both drafting and verifying were timed, so that there are curves."""
        return bool(self._draft_times) and bool(self._common.verify_times)

    @property
    def changes(self) -> int:
        """How often what passes take has changed, so that curves of before no longer hold."""
        return self._draft_times.changes + self._common.verify_times.changes

    def draft_curve(self, batch: int, most: int) -> CostCurve:
        """Return what each of 1 to ``most`` draft passes takes over the rows of a batch that this draft serves, load
        left out."""
        return self._draft_times.curve(self.drafting(batch), 1, most, 0, self.rounds)

    def verify_curve(self, batch: int, most: int) -> CostCurve:
        """Return target passes over ``batch`` rows by their tokens, from a plain pass to ``most``, load left out."""
        return self._common.verify_times.curve(batch, batch, most, self._common.context, self.rounds)

    def probe_draft(self, rows: int, passes: int, unread: int, ms: float, error: float) -> None:
        """Add the time of draft passes before the first request; ``unread``: tokens read before them; ``error``: its
        standard error ÷ it."""
        if not unread:
            self._draft.add(rows, _doubled(passes), ms / passes, 0)
            self._draft_times.probe(rows, passes, ms / passes, error)
        elif usual := self._draft.estimate(rows, _doubled(passes)):
            self._a_token.append(max(0.0, ms - passes * usual) / unread)

    def probe_verify(self, rows: int, tokens: int, ms: float, error: float, context: int) -> None:
        """Add the time of a target pass before the first request; as :meth:`probe_draft`."""
        self._common.verify.add(rows, nearly(tokens), ms, 0)
        self._common.verify_times.probe(rows, nearly(tokens), ms, error, context)

    def draft_ms(self, batch: int, steps: int) -> float | None:
        """Return the milliseconds of ``steps`` draft passes over the rows of a batch that this draft serves, None if
        unknown."""
        return self.passes_ms(self.drafting(batch), steps)

    def passes_ms(self, rows: int, steps: int) -> float | None:
        """Return the milliseconds of ``steps`` draft passes over exactly ``rows`` rows, whatever the batch."""
        step = self._draft.estimate(rows, _doubled(steps))
        if step is None and self._late_drafts >= _LATE_ENOUGH:
            step = self._late_draft.estimate(rows, steps)
        return None if step is None else step * steps * self.load

    def draft_step_ms(self, batch: int) -> float | None:
        """Return a(B): milliseconds of one draft pass over ``batch`` rows; None while no draft was timed."""
        return self.draft_ms(batch, 1)

    def verify_ms(self, batch: int, tokens: int) -> float | None:
        """Return b(B, N): milliseconds of one target pass of N tokens in all; None while no pass was timed."""
        value = self._common.verify.estimate(batch, tokens)
        return None if value is None else value * self.load

    def verified_ms(self, batch: int) -> list[tuple[int, float, float]]:
        """Return (tokens, milliseconds, weight) of the timed target passes over ``batch`` rows. Those that verified
        drafts and were timed often count as a plain one now and what they took more than plain ones did then: a machine
        that has become faster since must not make drafts look dear."""
        plain, timed = self.verify_ms(batch, batch), []
        for tokens, ms, weight in self._common.verify.row(batch):
            cell = self._common.beyond.cell(batch, tokens)
            if plain is not None and cell is not None and cell.count >= TRUSTED:
                timed.append((tokens, plain + cell.typical * self.load, weight))
            else:
                timed.append((tokens, ms * self.load, weight))
        return timed

    def round_ms(self, batch: int, gamma: int) -> float | None:
        """Return the denominator of Eq. 1 for B rows of γ drafted tokens, γ·a(B) + b(B, B (γ + 1)), in milliseconds;
        None while too little is known. Where this draft serves b of the rows, their part: γ·a(b) + b/B·b(B, B (γ +
        1))."""
        verify = self.verify_ms(batch, batch * (gamma + 1))
        draft = self.draft_ms(batch, gamma) if gamma else 0.0
        return None if verify is None or draft is None else draft + verify * (self.drafting(batch) / batch)

    def verified(self, batch: int, tokens: int) -> tuple[int, int]:
        """Return how often a pass of this shape was timed, and in which round last (0, 0 for never)."""
        cell = self._common.verify.cell(batch, nearly(tokens))
        return (cell.count, cell.seen_at) if cell else (0, 0)
