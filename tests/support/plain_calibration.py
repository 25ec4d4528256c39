"""The arithmetic of osd.gamma.goodput.book and weighing once more, in plain objects: what the fast one must agree with.

A draft knows its largest probability ("peak") before a token is drawn. How often such tokens are accepted depends on
the draft, the target and the traffic, so it is counted: in bins of the peak, each pulled towards the peak itself while
it holds little, and all forgetting. Of each bin it is also counted in which bin the *next* token of the chain fell, so
that there is a guess of what one more draft pass will find before it is made.

Tokens that the request's own text said before have two bins of their own, by whether the peak is at least a half.

Requests differ where peaks do not: a row multiplies the odds by how much oftener than expected it was accepted. So do
the tokens that a draft follows, and what it says next; and of what comes after some tokens something is known before
its peak is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from osd.gamma.goodput.contexts import Peak

Following = Sequence[tuple[int, float, float]]
"""(bin, weight, chance)."""

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
PEAKS = len(EDGES) + 1
BINS = PEAKS + 2
START = BINS
"""In place of a bin: the row's own last token, before anything is drafted."""
_PRIOR = 4.0
"""Judged tokens that the peak itself counts as, in its bin."""
_ROW_PRIOR = 3.0
"""Accepted and rejected tokens that "this request is like the others" counts as."""
_MEMORY = 160.0
"""Tokens that a bin remembers: traffic changes, and with it what a peak is worth."""
_FIRST_MEMORY = 16.0
"""First passes of a round that are remembered."""
_FORGET_AFTER = 512
"""Judged tokens after which all counts are halved."""
_NEGLIGIBLE = 0.02
"""Share of a bin's successors below which one is left out of what may come next."""
_REFRESH = 16
"""Judged tokens after which what may come next is worked out again."""
_ROW_KEEPS = 0.97
"""What a row keeps of its own history with each judged token."""
_CONTEXT_KEEPS, _CONTEXT_PRIOR, _AHEAD_PRIOR = 0.97, 1.5, 0.7
_USUAL_KEEPS = 0.998
_SLOTS, _PAIRS, _TRIPLES = 8191, 7919, 6131
_SURE = 0.999

Around = tuple[int, int, int, int]
"""Three tokens, one after another, and the likeliest next."""
NOWHERE: Around = (-1, -1, -1, -1)


def lines_of(around: Around) -> list[int]:
    """By the last token, the last two, the last three, and by the last with the likeliest next."""
    third, second, last, token = around
    numbers = last, second * _PAIRS + last, (third * _TRIPLES + second) * _PAIRS + last, last * _PAIRS + token
    return [number % _SLOTS for number in numbers]


def bin_of(signal: float) -> int:
    """Which bin a peak falls into; of what the text said before, 1 + peak."""
    return bisect_right(EDGES, signal) if signal < 1 else PEAKS + (signal - 1 >= 0.5)


def guess_after(before: int) -> list[float]:
    """What may follow until something is known: a token of the same bin, or any peak; any peak at START."""
    even = [1.0 / PEAKS * (i < PEAKS) for i in range(BINS)]
    return even if before == START else [0.5 * weight + 0.5 * (i == before) for i, weight in enumerate(even)]


class Calibration:
    """Shared by all requests of an engine."""

    def __init__(self) -> None:
        middles = [(low + high) / 2 for low, high in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)]
        middles += [0.8, 0.8]
        self._accepted = [_PRIOR * middle for middle in middles]
        self._judged = [_PRIOR] * BINS
        self._middles = middles
        self._guessed = [_PRIOR] * BINS
        """Of the judged tokens of a bin, those that were not seen but taken from its middle."""
        self._shared = Lean(keeps=0.99, prior=2.0)
        self._usually = [2.0, 4.0]
        """Accepted and judged, lately."""
        self.ahead: defaultdict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
        """Accepted and judged, by kind and line."""
        self.beside: defaultdict[tuple[int, int], Lean] = defaultdict(_context)
        """Beside what peaks say."""
        self._follows = [guess_after(before) for before in range(BINS + 1)]
        self._since = self._passed = 0
        self.judged = 0
        """Tokens judged so far."""
        self._known: list[Following | None] = [None] * (BINS + 1)

    def chance(self, peak_bin: int) -> float:
        """How often a token whose peak is in this bin is accepted; what is guessed of it leans as all bins do."""
        middle = self._middles[peak_bin]
        own = self._accepted[peak_bin] - self._guessed[peak_bin] * middle
        return (own + self._guessed[peak_bin] * self._shared.of(middle)) / self._judged[peak_bin]

    @property
    def usual(self) -> float:
        """How often drafted tokens are accepted."""
        return self._usually[0] / self._usually[1]

    def odds_next(self, before: int, tokens: tuple[int, int, int]) -> float:
        """Odds of what comes after these tokens ÷ those that are expected after a token of this bin."""
        if tokens[-1] < 0:
            return 1.0
        chance = self.usual
        for kind, line in list(enumerate(lines_of((*tokens, 0))))[:3]:
            accepted, judged = self.ahead[kind, line]
            chance = (accepted + _AHEAD_PRIOR * chance) / (judged + _AHEAD_PRIOR)
        expected = sum(weight * accepted for _, weight, accepted in self.following(before))
        chance, expected = min(chance, _SURE), float(np.clip(expected, 1 - _SURE, _SURE))
        return chance / (1 - chance) / (expected / (1 - expected))

    def beside_peak(self, around: Around, chance: float) -> float:
        """What the context makes of it."""
        for kind, line in enumerate(lines_of(around)):
            chance = self.beside[kind, line].of(chance)
        return chance

    def saw_at(self, around: Around, chance: float, accepted: float) -> None:
        """The verdict on a token of this chance, in its context; what one kind tells is not told by the next."""
        for kind, line in enumerate(lines_of(around)):
            counts, beside = self.ahead[kind, line], self.beside[kind, line]
            counts[:] = _CONTEXT_KEEPS * counts[0] + accepted, _CONTEXT_KEEPS * counts[1] + 1
            leant = beside.of(chance)
            beside.saw(chance, accepted)
            chance = leant

    def following(self, peak_bin: int) -> Following:
        """What the next draft pass may find, after an accepted token of this bin, or at START. The weights add up
        to 1."""
        known = self._known[peak_bin]
        if known is None:
            line = self._follows[peak_bin]
            total = sum(line)
            kept = [(i, weight, self.chance(i)) for i, weight in enumerate(line) if weight > _NEGLIGIBLE * total]
            total = sum([weight for _, weight, _ in kept])
            known = self._known[peak_bin] = [(i, weight / total, chance) for i, weight, chance in kept]
        return known

    def passed(self, before: int, peak_bin: int, rows: int = 1) -> None:
        """A draft pass over so many rows found a peak in this bin, after a token of the bin ``before``."""
        line = self._follows[before]
        line[peak_bin] += 1.0
        self._passed += 1
        if before == START:
            self._known[before] = None
        most = _FIRST_MEMORY * rows if before == START else _MEMORY
        if (before == START or self._passed % _REFRESH == 0) and (total := sum(line)) > most:
            keeps = max(most / total, 1 - 1 / most) if before == START else most / total
            self._follows[before] = [weight * keeps for weight in line]

    def saw(self, peak_bin: int, accepted: float) -> None:
        """The target's verdict on a token."""
        self.judged += 1
        keeps = 1.0 if self._judged[peak_bin] < _MEMORY else 1 - 1 / _MEMORY
        self._judged[peak_bin] = keeps * self._judged[peak_bin] + 1.0
        self._accepted[peak_bin] = keeps * self._accepted[peak_bin] + accepted
        self._guessed[peak_bin] *= keeps
        if peak_bin < PEAKS:
            self._shared.saw(self._middles[peak_bin], accepted)
        self._usually = [_USUAL_KEEPS * self._usually[0] + accepted, _USUAL_KEEPS * self._usually[1] + 1]
        self._since += 1
        if self._since % _REFRESH == 0 or self.judged <= _REFRESH:
            self._known = [None] * (BINS + 1)
        if self._since == _FORGET_AFTER:
            self._forget()

    def _forget(self) -> None:
        """Halve what was counted; what is not counted any more goes back to the peak itself."""
        self._since = 0
        for lean in self.beside.values():
            lean.halve()
        for counts in self.ahead.values():
            counts[:] = counts[0] / 2, counts[1] / 2
        for i, middle in enumerate(self._middles):
            self._accepted[i] = (self._accepted[i] + _PRIOR * middle) / 2
            self._judged[i] = (self._judged[i] + _PRIOR) / 2
            self._guessed[i] = (self._guessed[i] + _PRIOR) / 2
        self._follows = [
            [(weight + guess) / 2 for weight, guess in zip(line, guess_after(before), strict=True)]
            for before, line in enumerate(self._follows)
        ]


class Lean:
    """How one request leans: its odds of acceptance ÷ those that the calibration gives."""

    __slots__ = ("_accepted", "_back", "_expected", "_expected_not", "_keeps", "_prior", "_rejected", "odds")

    def __init__(self, keeps: float = _ROW_KEEPS, prior: float = _ROW_PRIOR) -> None:
        self._accepted = self._rejected = self._expected = self._expected_not = prior
        self._keeps, self._prior, self._back = keeps, prior, (1 - keeps) * prior
        self.odds = 1.0

    def of(self, chance: float) -> float:
        """The request's own chance where the calibration says ``chance``."""
        leaning = self.odds * chance
        return leaning / (leaning + (1.0 - chance))

    def saw(self, chance: float, accepted: float) -> None:
        """A token that the calibration gave this chance."""
        self._accepted = self._keeps * self._accepted + self._back + accepted
        self._rejected = self._keeps * self._rejected + self._back + 1 - accepted
        self._expected = self._keeps * self._expected + self._back + chance
        self._expected_not = self._keeps * self._expected_not + self._back + 1 - chance
        self._reckon()

    def halve(self) -> None:
        """Back to the prior by a half."""
        self._accepted, self._rejected = (self._accepted + self._prior) / 2, (self._rejected + self._prior) / 2
        self._expected, self._expected_not = (self._expected + self._prior) / 2, (self._expected_not + self._prior) / 2
        self._reckon()

    def _reckon(self) -> None:
        self.odds = self._accepted * self._expected_not / (self._rejected * self._expected)


def _context() -> Lean:
    return Lean(_CONTEXT_KEEPS, _CONTEXT_PRIOR)


class PlainRow:
    """One request, one token after another."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration, self.lean, self.survival = calibration, Lean(), 1.0
        self.bins: list[int] = []
        self.chances: list[float] = []
        self.around: list[Around] = []

    def begin(self) -> None:
        """A round."""
        self.survival, self.bins, self.chances, self.around = 1.0, [], [], []

    def look(self, peak: float, around: Around = NOWHERE, rows: int = 1) -> None:
        """A draft pass found this peak, between these tokens; at NOWHERE no context counts."""
        found = bin_of(peak)
        self._calibration.passed(self.bins[-1] if self.bins else START, found, rows)
        self.bins.append(found)
        self.around.append(around)
        chance = self._calibration.chance(found)
        self.chances.append(chance if around == NOWHERE else self._calibration.beside_peak(around, chance))
        self.survival *= self.lean.of(self.chances[-1])

    def goes_on(self, outlook: Outlook, far: bool) -> float:
        """What it hopes of the next pass, knowing what that comes after."""
        third, second, last = self.around[-1][1:]
        return self.hope(outlook, far, self._calibration.odds_next(self.bins[-1], (third, second, last)))

    def hope(self, outlook: Outlook, far: bool, here: float = 1.0) -> float:
        """f: expected tokens from one more draft pass and, looking ``far``, what may follow, less their verifying;
        ``here``: the odds of what comes next ÷ those that are expected."""
        depth, expected = len(self.bins) + 1, self._calibration.following(self.bins[-1] if self.bins else START)
        worth = 0.0
        for found, weight, chance in expected:
            odds = here * self.lean.odds
            survival = self.survival * odds * chance / (odds * chance + 1 - chance)
            more = outlook.beyond(depth, survival, found) if far else 0.0
            worth += weight * max(0.0, survival - outlook.price(depth) + more)
        return worth

    def surplus(self, outlook: Outlook, far: bool) -> float:
        """What the newest token is worth more than verifying it costs."""
        depth = len(self.bins)
        more = outlook.beyond(depth, self.survival, self.bins[-1]) if far else 0.0
        return self.survival + more - outlook.price(depth)

    def judge(self, drafted: int, accepted: int, known: Sequence[float] = ()) -> None:
        """Verdicts end with the first rejection; where it is ``known`` how often one drawn there is accepted, that
        counts."""
        for i in range(min(accepted + 1, drafted, len(self.bins))):
            verdict = known[i] if i < len(known) else float(i < accepted)
            if self.around[i] != NOWHERE:
                self._calibration.saw_at(self.around[i], self._calibration.chance(self.bins[i]), verdict)
            self._calibration.saw(self.bins[i], verdict)
            self.lean.saw(self.chances[i], verdict)


class Outlook:
    """U_d(S, bin), what going on after d tokens may yet win: 0 where nothing is foreseen."""

    def __init__(self, calibration: Calibration, prices: Sequence[float], bar: float, levels: int, parts: int) -> None:
        """Verifying a d-th token costs ``prices[d - 1]``. U is worked out for ``levels`` d and S = 0, 1/parts, …, 1;
        between these it is straight."""
        self._prices, self._at = prices, [k / parts for k in range(parts + 1)]
        self._levels: dict[int, list[list[float]]] = {}
        for depth in range(levels, 0, -1):
            self._levels[depth] = [
                [self._worth(calibration.following(b), depth, survival) - bar for survival in self._at]
                for b in range(BINS)
            ]
            self._levels[depth] = [[max(0.0, value) for value in line] for line in self._levels[depth]]

    def _worth(self, following: Following, depth: int, survival: float) -> float:
        found = [(weight, survival * chance, next_bin) for next_bin, weight, chance in following]
        return sum(
            weight * max(0.0, then - self.price(depth + 1) + self.beyond(depth + 1, then, next_bin))
            for weight, then, next_bin in found
        )

    def price(self, depth: int) -> float:
        """θ_d."""
        return self._prices[min(depth, len(self._prices)) - 1]

    def beyond(self, depth: int, survival: float, peak_bin: int) -> float:
        """U_d(S, bin)."""
        level = self._levels.get(depth)
        return float(np.interp(survival, self._at, level[peak_bin])) if level else 0.0


def weigh_plainly(
    rows: Sequence[PlainRow], peaks: Sequence[Peak], outlook: Outlook, far: bool
) -> tuple[list[bool], float, float]:
    """Which rows keep their token, what those hope of another pass, and what all that they keep is worth. They go on
    where they hope for more than the bar."""
    surpluses, hopes = [], 0.0
    for row, peak in zip(rows, peaks, strict=True):
        value, *around, _ = peak
        row.look(value, (around[0], around[1], around[2], around[3]), len(rows))
        surpluses.append(row.surplus(outlook, far))
        hopes += row.goes_on(outlook, far) if surpluses[-1] >= 0 else 0.0
    return [surplus >= 0 for surplus in surpluses], hopes, sum(max(0.0, surplus) for surplus in surpluses)
