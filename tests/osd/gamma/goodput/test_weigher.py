"""The weighing that serves, interpreted and compiled, against the plain one: the same answers after any history."""

from __future__ import annotations

import math
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osd.gamma.base import DraftDecision, Observation
from osd.gamma.goodput import book, contexts, held, weighing
from osd.gamma.goodput.compiled import COMPILER, Compiler
from osd.gamma.goodput.contexts import Peak, peak_of
from osd.gamma.goodput.goodput_row import GoodputRow
from osd.gamma.goodput.weigher import WORTH_COMPILING, Weigher
from osd.gamma.goodput.weighing import FORESEEN, GRID
from tests.support.plain_calibration import BINS, START, Calibration, Outlook, PlainRow, weigh_plainly

DEPTH = 6
VOCABULARY = 5
"""So few tokens that contexts come again."""


class Pair:
    """A batch under a weigher, and the same under the plain one."""

    def __init__(self, weigher: Weigher, seed: int, count: int) -> None:
        self.weigher, self.chance = weigher, random.Random(seed)
        self.calibration = Calibration()
        self.outlook = self.foresee()
        self.rows: list[tuple[GoodputRow, PlainRow]] = []
        self.come(count)

    def come(self, count: int) -> None:
        """So many requests."""
        rows = [self.weigher.start() for _ in range(count)]
        self.weigher.loaded([], rows)
        self.rows += [(row, PlainRow(self.calibration)) for row in rows]

    def foresee(self) -> Outlook:
        """Other prices."""
        prices = sorted(self.chance.choice([0.0, 0.1, 0.3, 0.5]) for _ in range(DEPTH))
        pass_price = self.chance.choice([0.0, 0.05, 0.2])
        self.weigher.foresee(prices, pass_price)
        return Outlook(self.calibration, prices, pass_price, FORESEEN, GRID)

    def round(self) -> None:
        """Drafts, answers compared after each pass, and verdicts."""
        bar = self.chance.choice([0.05, 0.3, 0.8])
        hopes = self.weigher.begin([row for row, _ in self.rows])
        for _, plain in self.rows:
            plain.begin()
        assert [self.weigher.odds(row) for row, _ in self.rows] == pytest.approx([p.lean.odds for _, p in self.rows])
        assert hopes == pytest.approx(
            [plain.hope(self.outlook, True, self.here(row)) for row, plain in self.rows], rel=1e-9
        )
        self.pays_from(bar)
        if self.chance.random() < 0.3:
            self.outlook = self.foresee()
        drafted, going = [0] * len(self.rows), list(range(len(self.rows)))
        jump = self.chance.choice([0.0, 0.5, 2.0])
        for depth in range(1, DEPTH + 1):
            going = self.passed(going, drafted, bar, jump if depth == 1 else 0.0)
            if not going:
                break
        self.judge(drafted)

    def here(self, row: GoodputRow) -> float:
        """What is known after a row's last tokens, if it is alone."""
        after = self.calibration.odds_next(START, row.before)
        assert self.weigher.odds_after(row) == pytest.approx(after)
        return after if len(self.rows) == 1 else 1.0

    def pays_from(self, bar: float) -> None:
        """The odds from which on a draft pays."""
        row, plain = self.rows[0]
        wanted = (odds for odds in (1.0, 2.0, 4.0, 8.0, 16.0) if plain.hope(self.outlook, True, odds) > bar)
        assert self.weigher.pays_from(row, bar) == next(wanted, math.inf)

    def peak(self) -> Peak:
        """Of some token after another; now and then it is not known which."""
        value = self.chance.betavariate(0.7, 0.7) + (self.chance.random() < 0.3)
        third, second, last, token = (self.chance.randrange(VOCABULARY) for _ in range(4))
        if self.chance.random() < 0.1:
            return peak_of(value)
        return peak_of(value, (third, second, last, token), self.chance.choice([token, -1]))

    def passed(self, going: list[int], drafted: list[int], bar: float, jump: float) -> list[int]:
        """One draft pass of these rows; those that go on."""
        peaks, alone = [self.peak() for _ in going], len(self.rows) == 1
        answers = self.weigher.weigh([self.rows[i][0] for i in going], peaks, bar, jump)
        kept, hopes, worth = weigh_plainly([self.rows[i][1] for i in going], peaks, self.outlook, alone)
        worth += max(0.0, hopes - bar)
        none = not alone and worth < jump
        if abs(hopes - bar) > 1e-9 and abs(worth - jump) > 1e-9:
            goes = DraftDecision.ON if hopes > bar else DraftDecision.LAST
            assert answers == [DraftDecision.DECLINE if none or not keeps else goes for keeps in kept]
        for i, go, peak in zip(going, answers, peaks, strict=True):
            drafted[i] += go != DraftDecision.DECLINE
            assert self.rows[i][0].declined == (peak[-1] if go == DraftDecision.DECLINE else -1)
        return [i for i, go in zip(going, answers, strict=True) if go == DraftDecision.ON]

    def judge(self, drafted: list[int]) -> None:
        """Some prefix of each draft is accepted."""
        in_places = sorted(zip(self.rows, drafted, strict=True), key=lambda each: each[0][0].place)
        for (row, plain), length in in_places:
            accepted = min(length, int(self.chance.expovariate(0.5)))
            declined, own = row.declined, self.chance.randrange(VOCABULARY)
            known = self.known(length, accepted)
            row.observe(Observation(DEPTH, length, accepted, [7, own], known))
            assert row.before == (-1, 7, own)
            if declined >= 0 and accepted == length:
                plain.judge(length + 1, accepted + (own == declined))
            elif length:
                plain.judge(length, accepted, known)

    def known(self, drafted: int, accepted: int) -> list[float]:
        """How often tokens are accepted where these were judged; most rows are greedy."""
        count = min(drafted, accepted + 1) if self.chance.random() < 0.3 else 0
        return [self.chance.random() for _ in range(count)]

    def change(self) -> None:
        """A request ends; perhaps another comes."""
        gone, _ = self.rows.pop(self.chance.randrange(len(self.rows)))
        self.weigher.loaded([gone], [])
        if self.chance.random() < 0.6 or not self.rows:
            self.come(self.chance.choice([1, 1, 9]))


def compiled() -> Weigher:
    assert COMPILER.wait(), "Numba could not compile the weighing"
    return Weigher(DEPTH)


def interpreted() -> Weigher:
    return Weigher(DEPTH, None)


def seated(weigher: Weigher, count: int) -> list[GoodputRow]:
    """New rows, at some prices."""
    rows = [weigher.start() for _ in range(count)]
    weigher.loaded([], rows)
    weigher.foresee([0.1] * DEPTH, 0.05)
    return rows


@pytest.mark.parametrize("make", [compiled, interpreted])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 9), rounds=st.integers(1, 120))
def test_it_answers_as_the_plain_one_after_any_history(make: object, seed: int, count: int, rounds: int) -> None:
    assert callable(make)
    pair = Pair(make(), seed, count)
    for _ in range(rounds):
        pair.round()
        if pair.chance.random() < 0.1:
            pair.change()


@pytest.mark.parametrize("make", [compiled, interpreted])
@pytest.mark.parametrize("times", [1, 9])
def test_verdicts_learned_in_one_call_are_learned_one_after_another(make: object, times: int) -> None:
    """Even more of them than there are lines."""
    assert callable(make)
    known: list[tuple[list[float], list[float]]] = []
    for at_once in (True, False):
        weigher, chance = make(), random.Random(11)
        rows = seated(weigher, 5)
        for _ in range(20):
            weigher.begin(rows)
            weigher.weigh(rows, [peak_of(chance.random(), (1, 2, chance.randrange(VOCABULARY), 3)) for _ in rows], -1.0)
            chances = [[chance.random()][: chance.randrange(2)] for _ in rows]
            for row, told in list(zip(rows, chances, strict=True)) * times:
                weigher.verdict(row.place, 1, chance.randrange(2), told)
                if not at_once:
                    weigher.loaded([], [])
        known.append((weigher.begin(rows), [weigher.odds(row) for row in rows]))
    assert known[0] == known[1]


def test_rows_that_begin_in_another_order_have_their_own_answers() -> None:
    weigher, chance = compiled(), random.Random(13)
    rows = seated(weigher, 4)
    for _ in range(40):
        weigher.begin(rows)
        weigher.weigh(rows, [peak_of(chance.random()) for _ in rows], -1.0)
        for i, row in enumerate(rows):
            weigher.verdict(row.place, 1, i % 2)
    hopes = weigher.begin(rows)
    assert len(set(hopes)) == 4
    assert weigher.begin([rows[2]]) == [pytest.approx(hopes[2])]
    for order in ([3, 1, 0, 2], [2, 0], [0, 1, 2, 3]):
        assert weigher.begin([rows[i] for i in order]) == [hopes[i] for i in order]


def test_what_is_foreseen_is_near_to_what_whole_drafts_of_so_many_tokens_may_win() -> None:
    """U is straight between some S; against U at every S that a draft may have, of three tokens after one."""
    chance, seen = random.Random(5), Calibration()
    for _ in range(400):
        found = chance.randrange(BINS)
        seen.passed(chance.choice([found, chance.randrange(BINS)]), found)
        seen.saw(found, chance.random() < found / BINS)
    prices, bar = [0.1, 0.1, 0.4, 0.0, 0.05], 0.06
    outlook = Outlook(seen, prices, bar, 3, GRID)

    def exactly(depth: int, survival: float, before: int) -> float:
        if depth > 3:
            return 0.0
        gains = [
            weight * max(0.0, survival * p - prices[depth] + exactly(depth + 1, survival * p, found))
            for found, weight, p in seen.following(before)
        ]
        return max(0.0, sum(gains) - bar)

    for found in range(BINS):
        for survival in (0.15, 0.33, 0.7, 0.95):
            assert outlook.beyond(1, survival, found) == pytest.approx(exactly(1, survival, found), abs=0.03)


class Late(Compiler):
    """Is ready when it is told to be."""

    def start(self) -> None:
        pass

    def arrive(self) -> None:
        self.ready = COMPILER.wait()


def test_nothing_is_forgotten_when_the_compiled_one_takes_over() -> None:
    compiler = Late()
    pair = Pair(Weigher(DEPTH, compiler), 7, 3)
    for _ in range(40):
        pair.round()
    compiler.arrive()
    for _ in range(40):
        pair.round()
    assert pair.weigher.judged > 40


def test_without_a_compiler_it_goes_on_interpreted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none() -> None:
        raise ImportError("no compiler here")

    monkeypatch.setattr("osd.gamma.goodput.compiled.compile_weighing", none)
    compiler = Compiler()
    assert compiler.wait() is None
    assert "no compiler here" in caplog.text
    pair = Pair(Weigher(DEPTH, compiler), 3, 2)
    for _ in range(20):
        pair.round()


class Asked(Compiler):
    """Counts how often it is asked for."""

    times = 0

    def start(self) -> None:
        self.times += 1


def test_the_compiler_is_asked_for_once_it_is_worth_it() -> None:
    compiler = Asked()
    weigher = Weigher(DEPTH, compiler)
    for _ in range(WORTH_COMPILING - 1):
        weigher.begin([])
    assert compiler.times == 0
    for _ in range(2 * WORTH_COMPILING):
        weigher.begin([])
    assert compiler.times == 1


def test_it_is_compiled_once_in_a_process() -> None:
    compiler = Compiler()
    compiler.start()
    first = [thread for thread in threading.enumerate() if thread.name == "osd-compile-gamma"]
    compiler.start()
    assert len([t for t in threading.enumerate() if t.name == "osd-compile-gamma"]) <= max(1, len(first))
    assert compiler.wait() is compiler.wait() is not None


def test_what_is_compiled_together_has_no_name_twice() -> None:
    """The functions of these modules share their names there: one of another meaning would take another's place."""
    meant: dict[str, object] = {}
    for module in (book, contexts, weighing, held):
        for name, value in vars(module).items():
            if not name.startswith("__"):
                assert meant.setdefault(name, value) is value or meant[name] == value, name
