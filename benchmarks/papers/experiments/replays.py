"""γ rules on recorded rounds, under the costs of the machines that papers used.

The pair's rounds are recorded once (benchmarks/gamma/record.py) and replayed under each rule by the simulator, so every
rule meets the same texts, and a machine is a table of costs. At batch 1 the milliseconds of a text are the sum over its
rounds, so errors are over texts. All rules first serve WARM_REQUESTS requests that are not counted: Q-learning's
warm-up of 25 in the paper (D.1), and whatever else a rule has to learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gamma.costed import CostedRound, CostedText, CostedTexts, Floats
from benchmarks.gamma.costs import CostTable, find_costs
from benchmarks.gamma.record import RecordPlan, record_file
from benchmarks.gamma.rounds import RecordedText, Recording
from benchmarks.gamma.simulate import Make, Simulator, maker_of
from benchmarks.papers.experiment import PaperExperiment, PapersBench
from osd.gamma.rules.analytic import AnalyticController
from osd.models.pair import Pair
from storage.errors import BadInput

WARM_REQUESTS = 25
WARM_TEXTS = 3
"""Recorded texts of each data set that those requests are of, again and again; of a recording that is given, one, as it
has few."""
DEPTH = 24
"""Tokens of a recorded chain: the largest γ of GammaTune's list."""
PAPERS_H = 6
"""h of the analytic rule: the middle of on-the-fly adaptation's Table 12."""


@dataclass(frozen=True, slots=True)
class ReplayedTexts:
    """A recording that rules are replayed on."""

    warm: Sequence[RecordedText]
    texts: Sequence[RecordedText]
    table: CostTable

    @property
    def costs_told(self) -> str:
        """The machine, as titles tell it."""
        return f"costs of {self.table.name}"

    def replayed(self, make: Make, *, upper_bound: bool = False) -> list[CostedText]:
        """Replay a rule. ``upper_bound``: every drafted token is accepted (validation is skipped)."""
        texts = [_all_accepted(text) for text in self.texts] if upper_bound else list(self.texts)
        simulator = Simulator(make, self.table)
        simulator.run(list(islice(cycle(self.warm), WARM_REQUESTS if self.warm else 0)))
        return [
            CostedText(text.data_set, text.text.tolist(), [CostedRound(o.drafted, o.drafted, o.accepted) for o in seen])
            for text, seen in zip(texts, simulator.run(texts).by_request, strict=True)
        ]

    def under(self, make: Make, *, upper_bound: bool = False) -> CostedTexts:
        """Return what the texts came to under a rule."""
        return CostedTexts.of(self.replayed(make, upper_bound=upper_bound), self.table)

    def under_all(self, makes: Mapping[Any, Make]) -> dict[Any, CostedTexts]:
        """Replay several rules."""
        return {name: self.under(make) for name, make in makes.items()}


def _all_accepted(text: RecordedText) -> RecordedText:
    return replace(text, acceptance=np.ones_like(text.acceptance))


def record(bench: PapersBench, plan: PaperExperiment, path: Path, pair: Pair, temperature: float) -> Recording:
    """Return rounds of a pair over prompts of every data set, from their file where they are there."""
    prompts = bench.sets(WARM_TEXTS + plan.texts, plan.tokens)
    asked = RecordPlan(temperatures=(temperature,), new_tokens=plan.tokens, depth=DEPTH, seed=bench.seed)
    return record_file(path, pair, prompts, asked, bench.watch)


def recorded(bench: PapersBench, plan: PaperExperiment, temperature: float = 0.0) -> Recording:
    """Return the pair's rounds, recorded once, or those of a recording that is given. Raises BadInput where it has none
    at this temperature."""
    if bench.recording is not None:
        own = tuple(trace for trace in bench.recording.traces if trace.temperature == temperature)
        if not own:
            raise BadInput(reason=f"The recording has no texts at temperature {temperature:g}; give one that has.")
        return replace(bench.recording, traces=own)
    name = f"{plan.named(f'rounds-t{temperature:g}')}-s{bench.seed}"
    path = bench.folder("rounds") / f"{name}.parquet"
    return bench.once(name, lambda: record(bench, plan, path, bench.pair, temperature))


def replayed(bench: PapersBench, plan: PaperExperiment, costs: str, temperature: float = 0.0) -> ReplayedTexts:
    """Return the pair's texts under a machine's costs, by the name of a profile."""
    sets: dict[str, list[RecordedText]] = {}
    for text in recorded(bench, plan, temperature).traces:
        sets.setdefault(text.data_set, []).append(text)
    first = WARM_TEXTS if bench.recording is None else 1
    warm = [text for turn in zip(*(some[:first] for some in sets.values()), strict=False) for text in turn]
    texts = [text for some in sets.values() for text in some[first:]]
    return ReplayedTexts(warm, texts, find_costs(costs))


def deepest(bench: PapersBench) -> int:
    """Return the tokens of a chain: the most that a rule may draft."""
    return DEPTH if bench.recording is None else min(DEPTH, bench.recording.depth)


def rule(
    bench: PapersBench, name: str, initial: int = 4, most: int = DEPTH, tables: Mapping[str, Any] | None = None
) -> Make:
    """Return what makes a rule. ``most``: γ_max, where chains are as long; ``tables``: settings of rules, as
    ``{"gammatune": {"eta": 0.5}}``."""
    return maker_of(bench.settings, name, initial, min(most, deepest(bench)), tables)


def fixed(bench: PapersBench, gamma: int) -> Make:
    """Return a fixed γ; 0 is the target alone."""
    return rule(bench, "fixed", gamma)


def papers_analytic(most: int = DEPTH, history: int = PAPERS_H) -> Make:
    """Return the analytic rule with the paper's constants: Eq. 2 over h rounds of the request, and nothing beside."""
    return partial(AnalyticController, initial=4, maximum=most, history=history, prior_trials=0.0)


def best_on_other_half(ms: Mapping[Any, Floats]) -> Floats:
    """Return milliseconds of each text under the rule that is fastest on the other half of the texts, every second
    one: a constant that is chosen on the texts themselves would be in part the one that was lucky there."""
    even = np.arange(len(next(iter(ms.values())))) % 2 == 0
    best = [min(ms, key=lambda name: float(ms[name][half].sum())) for half in (~even, even)]
    return np.where(even, ms[best[0]], ms[best[1]])


def tuned(rules: Mapping[Any, CostedTexts]) -> Floats:
    """Return milliseconds of each text under the rule of several that is best on the other half."""
    return best_on_other_half({name: rule.ms for name, rule in rules.items()})
