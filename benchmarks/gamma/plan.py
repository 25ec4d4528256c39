"""What ``python -m benchmarks gamma`` measures, and in which order.

A :class:`GammaSetting` is a data set at one temperature and batch size. Inside it :class:`Entrant` after entrant
decodes the same few prompts, A B C …, then all of them the next few in another order: a turn. So whatever else the
machine does falls on all alike, and a turn's prompts are the same for all.

The first setting of a data set (first temperature, first batch size) is the main one: it has all turns, transformers'
assisted modes, and the sweep over initial gammas. The others, the sweep and the mix take half as many turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from osd.bench.contenders import ASSISTED
from osd.bench.harness.plan import Count, PairPlan
from osd.bench.harness.prompts import choose
from osd.bench.harness.turns import shifted
from osd.gamma.factory import CONTROLLERS
from storage.settings import GammaSettings, Settings

MIX, ALL = "mix", "all"
"""Names of the data sets made of all files: one whose domain changes now and then, one that takes them in turn."""
LARGE_BATCH = 32
"""Rows that decode together where it is tried whether speculation ever loses (``--random-draft``)."""

Draft = Literal["given", "random"]


@dataclass(frozen=True, slots=True)
class GammaSetting:
    """Where contenders meet. Only figures of one setting are compared with each other."""

    data_set: str
    temperature: float
    batch: int
    draft: Draft = "given"

    def __str__(self) -> str:
        words = [self.data_set, f"T={self.temperature:g}", f"batch {self.batch}"]
        return " ".join([*words, "random draft"] if self.draft == "random" else words)

    @property
    def cell(self) -> str:
        """Temperature and batch size as one word, the same for every data set."""
        return f"t{self.temperature:g}_b{self.batch}"


@dataclass(frozen=True, slots=True)
class Entrant:
    """A way to decode."""

    kind: Literal["rule", "oracle", "assisted"]
    name: str
    """A controller, or one of transformers' assisted modes."""
    gamma: int = 0
    """Initial gamma of a controller (every round's, for fixed)."""

    def __str__(self) -> str:
        return f"{self.name} {self.gamma}" if self.kind == "rule" else self.name


ALONE = Entrant("rule", "fixed", 0)
"""The target without speculation, in osd's own loop."""
ORACLE = Entrant("oracle", "oracle")
REFERENCES = {"target_alone": ALONE, "oracle": ORACLE} | {name: Entrant("assisted", name) for name in ASSISTED}
"""Who is no controller."""


@dataclass(frozen=True, slots=True)
class GammaJob:
    """One measurement: an entrant decodes the prompts of one turn."""

    setting: GammaSetting
    entrant: Entrant
    turn: int
    part: int = 0
    """Which stretch of the turn; only the mix has several."""

    def __str__(self) -> str:
        return f"{self.setting}, {self.entrant}"


@dataclass(frozen=True, kw_only=True)
class GammaPlan(PairPlan):
    """Every gamma controller against fixed gammas, the target alone, transformers' assisted modes and the oracle.

    All decode the same prompts by turns, and each has an engine's cost model of its own. Leaves figures, a picture,
    recorded rounds and costs in a folder. Ctrl-C stops it; the same command with --out goes on. With --simulate it
    replays recorded rounds under any costs, without a model.

    Example: `python -m benchmarks gamma --target ./target --draft ./draft --prompts sql.jsonl --mix 20`
    """

    controllers: tuple[str, ...] = ("all",)
    """Controllers. all: every one that this pair can be served with."""
    initial_gammas: tuple[Count, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24)
    """Fixed gammas everywhere, and every controller's initial gamma in the main setting: GammaTune's own list."""
    temperatures: tuple[Annotated[float, Ge(0)], ...] = (0.0, 1.0)
    """The first one is the main setting's."""
    batch_sizes: tuple[Count, ...] = (1, 8)
    """The first one is the main setting's."""
    count: Count = 2
    """Prompts of a file in a turn; at least as many as the batch has rows."""
    max_tokens: Annotated[int, Ge(2)] = 48
    """Tokens to generate a prompt."""
    turns: Count = 4
    """Turns of the main setting; other settings and initial gammas take half as many."""
    mix: Annotated[int, Ge(0)] = 0
    """Add a stream over all files that changes file after so many requests."""
    random_draft: bool = False
    """Also against the target alone with a random draft, and at batch 32."""
    simulate: Path | None = None
    """Replay a recording instead of decoding; needs --costs."""
    costs: str | None = None
    """Costs for --simulate: costs.json of a run, or a profile by name."""
    seed: int = 0
    """Which prompts of a file are drawn."""
    threads: Annotated[int | None, Ge(1)] = None
    """Torch threads, for every contender alike."""
    out: Path | None = None
    """Folder of the run; one that was stopped goes on. Default: out/bench-gamma-…"""

    @property
    def named(self) -> tuple[str, ...]:
        """The controllers that are asked for. Raises BadSetting for one that there is not."""
        found = choose(self.controllers, ["all", *CONTROLLERS], "--controllers")
        return tuple(CONTROLLERS) if "all" in found else found

    @property
    def insists(self) -> bool:
        """Whether a controller that cannot serve the pair is an error."""
        return "all" not in self.controllers


@dataclass(frozen=True, kw_only=True)
class Contested(GammaPlan):
    """A plan with all that decides what is measured. Kept in the run's folder, where a later run must find the same."""

    data_sets: tuple[str, ...] = ()
    prompts_digest: str = ""
    initial: int = 0
    """Initial gamma of a controller wherever initial gammas are not swept."""
    head: str | None = None
    """Folder of the draft's acceptance head."""

    @classmethod
    def of(cls, plan: GammaPlan, gamma: GammaSettings) -> Contested:
        """Return what a plan asks for, still without data sets. Raises BadSetting."""
        nearest = min(plan.initial_gammas, key=lambda swept: abs(swept - gamma.initial))
        head = str(gamma.specdecpp.head) if gamma.specdecpp.head else None
        return cls(**vars(plan) | {"controllers": plan.named, "initial": nearest, "head": head})

    def main(self, data_set: str) -> GammaSetting:
        """The main setting of a data set."""
        return GammaSetting(data_set, self.temperatures[0], self.batch_sizes[0])

    def deepest(self, settings: Settings) -> int:
        """Tokens of a draft at most, so many as any controller may draft."""
        return max(settings.gamma.max, *self.initial_gammas)

    @property
    def fewer_turns(self) -> int:
        """Turns of whatever is not the main setting."""
        return max(1, self.turns // 2)

    def is_main(self, setting: GammaSetting) -> bool:
        """Whether it is some data set's main setting."""
        return setting.data_set in self.data_sets and setting == self.main(setting.data_set)

    def turns_of(self, setting: GammaSetting) -> int:
        """Turns that a setting takes; the mix is one long one."""
        if setting.data_set == MIX:
            return 1
        return self.turns if self.is_main(setting) or setting.data_set == ALL else self.fewer_turns

    def size(self, setting: GammaSetting) -> int:
        """Prompts of one job."""
        return self.mix if setting.data_set == MIX else max(self.count, setting.batch)

    def settings(self) -> list[GammaSetting]:
        """Every setting, the main ones first."""
        cells = [(t, b) for t in self.temperatures for b in self.batch_sizes]
        found = [GammaSetting(name, *cell) for cell in cells for name in self.data_sets]
        if self.mix:
            found.append(self.main(MIX))
        if self.random_draft:
            warm, batches = self.temperatures[0], sorted({*self.batch_sizes, LARGE_BATCH})
            found += [GammaSetting(ALL, warm, batch, "random") for batch in batches]
            found.append(GammaSetting(ALL, warm, LARGE_BATCH))
        return found

    def entrants(self, setting: GammaSetting, turn: int) -> list[Entrant]:
        """Who decodes in a turn of this setting, in order; nobody when it has fewer turns."""
        if turn >= self.turns_of(setting):
            return []
        is_main = self.is_main(setting)
        found = [ALONE, *(Entrant("rule", name, self.initial) for name in self.adaptive)]
        if setting.data_set == ALL:
            return found
        found += [Entrant("rule", "fixed", gamma) for gamma in self.initial_gammas if gamma]
        if setting.temperature == 0:
            found.append(ORACLE)
        if is_main and setting.batch == 1 and setting.temperature == 0:
            found += [REFERENCES[name] for name in ASSISTED]
        if is_main and turn < self.fewer_turns:
            found += [
                Entrant("rule", name, g) for name in self.adaptive for g in self.initial_gammas if g != self.initial
            ]
        return found

    def turn_prompts(self, setting: GammaSetting, turn: int, part: int = 0) -> list[tuple[str, int]]:
        """What a turn decodes: data sets, and numbers of prompts within them."""
        size, names = self.size(setting), self.data_sets
        numbers = range(turn * size, (turn + 1) * size)
        if setting.data_set == ALL:
            return [(names[i % len(names)], i // len(names)) for i in numbers]
        name = names[part] if setting.data_set == MIX else setting.data_set
        return [(name, i) for i in numbers]

    def warm_prompts(self, setting: GammaSetting) -> list[tuple[str, int]]:
        """A batch of prompts that no turn decodes."""
        return self.turn_prompts(setting, self.turns_of(setting))[: setting.batch]

    def prompts_needed(self) -> int:
        """Prompts of each data set that all of it takes."""
        last = [self.warm_prompts(setting)[-1] for setting in self.settings()]
        return 1 + max(number for _, number in last)

    @property
    def adaptive(self) -> tuple[str, ...]:
        """The controllers that are not a fixed gamma."""
        return tuple(name for name in self.controllers if name != "fixed")

    def jobs(self) -> Iterator[GammaJob]:
        """All of it in order: turn by turn, setting by setting, entrants in shifted order: for prompts of lengths
        that are new to the process kernels are made, and that is a tenth or two of what the first one takes."""
        for turn in range(self.turns):
            for setting in self.settings():
                entrants = shifted(self.entrants(setting, turn), turn)
                for part in range(len(self.data_sets) if setting.data_set == MIX else 1):
                    yield from (GammaJob(setting, entrant, turn, part) for entrant in entrants)

    def work(self, job: GammaJob) -> float:
        """Roughly how long a job takes, beside others: passes over the target, wider ones longer."""
        batch = job.setting.batch
        slower = 2.5 if job.entrant.kind == "assisted" else 1.3 if job.setting.temperature else 1.0
        return slower * self.size(job.setting) * self.max_tokens / batch * (0.75 + 0.25 * batch)


def engine_settings(settings: Settings, plan: Contested, batch: int, length: int) -> Settings:
    """Return an engine's settings: room for every gamma of the plan and for texts of ``length`` tokens."""
    serve = {"max_batch": batch, "max_length": length}
    return settings.changed(serve=serve, gamma={"max": plan.deepest(settings), "routes": {}})
