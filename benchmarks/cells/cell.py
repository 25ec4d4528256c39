"""A cell: one recorded pair under one table of costs, at one batch size and temperature, cold start included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product, zip_longest
from typing import NamedTuple, Protocol

from benchmarks.cells.ablations import ABLATIONS, WHOLE
from benchmarks.gamma.costs import CostTable
from benchmarks.gamma.rounds import RecordedText, Recording
from benchmarks.gamma.simulate import Simulator
from osd.gamma.base import CostModel, GammaController
from osd.gamma.factory import RULES, make_controller
from storage.errors import BadSetting
from storage.settings import GammaSettings, Settings


@dataclass(frozen=True, slots=True)
class GammaCell:
    """See the module."""

    table: str
    pair: str
    batch: int
    temperature: float

    def __str__(self) -> str:
        return f"{self.pair} under {self.table}, {self.batch} rows, T={self.temperature:g}"


@dataclass(frozen=True, slots=True)
class Arm:
    """Who decides in a cell."""

    rule: str
    key: str = ""
    """A setting of the rule's own table, ``initial``, or the name of an ablation; none: the rule as it is."""
    value: float | None = None
    """That setting's value."""

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.rule} {self.key}".strip()
        return f"{self.rule} {self.key}={self.value:g}"


NOT_DRAFTING = Arm("fixed", "initial", 0)


def fixed_arms(most: int) -> list[Arm]:
    """Return not drafting, and every fixed gamma up to ``most``."""
    return [Arm("fixed", "initial", gamma) for gamma in range(most + 1)]


class CellJob(NamedTuple):
    """One replay."""

    cell: GammaCell
    arm: Arm

    def __str__(self) -> str:
        return f"{self.cell}: {self.arm}"


@dataclass(frozen=True, slots=True)
class CellMeasured:
    """What a replay came to."""

    job: CellJob
    tokens_per_second: float
    decision_us: float
    """Microseconds of processor time a decision on one row."""


class Replayed(Protocol):
    """How cells are replayed: requests of each, the standard deviation of a timing's logarithm, a seed."""

    @property
    def count(self) -> int: ...
    @property
    def noise(self) -> float: ...
    @property
    def seed(self) -> int: ...


class CellReplay:
    """The cells of some recordings and tables, and how one is replayed."""

    def __init__(
        self, settings: Settings, recordings: Mapping[str, Recording], tables: Sequence[CostTable], replayed: Replayed
    ) -> None:
        """``recordings``: by the pair's name. Raises BadSetting where a recording holds fewer texts."""
        self._settings, self._recordings = settings, recordings
        self._noise, self._seed = replayed.noise, replayed.seed
        self._tables = {table.name: table for table in tables}
        self.depth = min(recording.depth for recording in recordings.values())
        self._texts = {
            (name, warm): _mixed(name, recording, warm, replayed.count)
            for name, recording in recordings.items()
            for warm in sorted({text.temperature for text in recording.traces})
        }

    def cells(self, batches: Sequence[int]) -> Iterator[GammaCell]:
        """Yield every cell."""
        for table, (pair, warm), batch in product(self._tables, self._texts, batches):
            yield GammaCell(table, pair, batch, warm)

    def measure(self, job: CellJob) -> CellMeasured:
        """Replay a cell with a fresh controller."""
        cell, arm = job
        make = partial(_controller, self._settings.gamma.model_copy(update={"max": self.depth}), arm)
        ablation = ABLATIONS.get(arm.key, WHOLE)
        with ablation.in_force():
            simulator = Simulator(make, self._tables[cell.table], batch=cell.batch, noise=self._noise, seed=self._seed)
            if ablation.probes:
                simulator.probe()
            seen = simulator.run(self._texts[cell.pair, cell.temperature])
        return CellMeasured(job, seen.tokens_per_second, 1e6 * seen.decision_seconds / max(1, seen.decisions))


def _mixed(name: str, recording: Recording, temperature: float, count: int) -> list[RecordedText]:
    """Return the first texts of the recording's data sets in turn."""
    sets = dict.fromkeys(text.data_set for text in recording.traces)
    turns = zip_longest(*(recording.of(each, temperature) for each in sets))
    texts = [text for text in chain.from_iterable(turns) if text is not None][:count]
    if len(texts) < count:
        reason = f"{name} holds {len(texts)} texts at temperature {temperature:g} and {count} are asked for"
        raise BadSetting(source="option", key="--count", reason=f"{reason}; ask for fewer, or record more")
    return texts


def require_arm(arm: Arm) -> None:
    """Raise BadSetting where a rule has no such setting, or not this value."""
    if arm.key not in ABLATIONS:
        _controller(GammaSettings(), arm, CostModel())


def _controller(gamma: GammaSettings, arm: Arm, costs: CostModel) -> GammaController:
    if arm.key in ABLATIONS:
        table = RULES.table(arm.rule, gamma)
        return ABLATIONS[arm.key].make(costs, gamma.max, table)
    if arm.value is None:
        return make_controller(gamma, costs, arm.rule)
    value = int(arm.value) if arm.value == int(arm.value) else arm.value
    own = {arm.key: value} if arm.key == "initial" else {arm.rule: {arm.key: value}}
    return make_controller(Settings(gamma=gamma).changed(gamma=own).gamma, costs, arm.rule)
