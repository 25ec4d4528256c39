"""From measurements to figures. What each figure is: DEFINITIONS, and docs/bench-gamma.md."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import geometric_mean
from typing import Any

from osd.bench.contenders import ASSISTED
from osd.bench.gamma.measured import GammaMeasured
from osd.bench.gamma.plan import ALL, ALONE, MIX, ORACLE, Entrant, GammaPlan, GammaSetting
from osd.bench.gamma.scene import Figures, Scene
from osd.bench.gamma.told import told
from osd.bench.harness.report import DIGITS, plain

DEFINITIONS = {
    "throughput": "tokens a second: the median over turns, each turn's rates divided by the geometric mean of that "
    "turn (over those who take part in all turns) and multiplied by the geometric mean over all turns. So prompts that "
    "are slower do not move one contender against another. Seconds are told: every round counts as rounds of so many "
    "rows, draft passes and tokens usually do in the setting, and decisions as they were, so that minutes in which "
    "the machine is slower do not either",
    "by_clock": "the same ratios with the seconds that went by",
    "vs_best_fixed": "throughput ÷ that of the best of the fixed gammas asked for, chosen in hindsight for this data "
    "set, temperature and batch size (never gamma 0: that is vs_target_alone)",
    "vs_target_alone": "throughput ÷ that of osd's own loop without speculation",
    "vs_best_assisted": "throughput ÷ that of the best of transformers' three assisted modes; batch 1, temperature 0",
    "oracle_fraction": "throughput ÷ that of the oracle run in the same engine (SpecDec++, Theorem 4.1); temperature 0",
    "discard_rate": "(drafted − accepted) ÷ tokens that came out",
    "verification_rate": "rounds ÷ tokens that came out, a request's share in a pass counting as a round",
    "spread_over_initial_gamma": "(max − min) ÷ mean of the throughput over the initial gammas, in the main setting "
    "and over the turns that all of them took; overall: of the geometric mean over data sets at each initial gamma",
    "spread_deviation": "the same with the standard deviation instead of max − min, as in GammaTune's Table 2",
    "mean_over_initial_gamma": "mean of those throughputs ÷ that of the target alone",
    "decision_us": "microseconds of processor time in plan, steer and observe for each answer to a request: how far to "
    "draft, and after each drafted token whether to go on",
    "time_model_r2": "R² of T = t_draft · draft passes + t_target · target passes, without intercept, over the texts "
    "of the setting: all of them, and those of each controller; T: what a text's rounds usually take (SpecDec++, D.2)",
    "best_fixed_gamma": "the best of the fixed gammas by temperature and batch size; overall: with the best geometric "
    "mean over data sets",
    "overall": "geometric mean of ratios over the data sets, mean of the rest, the mix left out",
}
RATIOS = (
    "throughput",
    "vs_best_fixed",
    "vs_target_alone",
    "vs_best_assisted",
    "oracle_fraction",
    "mean_over_initial_gamma",
)
HEADINGS = {
    "vs_best_fixed": "÷ best fixed",
    "vs_target_alone": "÷ target alone",
    "vs_best_assisted": "÷ best assisted",
    "oracle_fraction": "of the oracle",
    "discard_rate": "discarded",
    "verification_rate": "verified",
    "spread_over_initial_gamma": "spread",
    "decision_us": "µs",
}


class Results:
    """All measurements of a plan."""

    def __init__(self, plan: GammaPlan, measured: Iterable[GammaMeasured]) -> None:
        self.plan = plan
        self.more: dict[str, Any] = {}
        """What else bench.json should hold."""
        by_setting: dict[GammaSetting, list[GammaMeasured]] = defaultdict(list)
        for each in measured:
            by_setting[each.job.setting].append(each)
        self.clock = {setting: Scene(setting, plan, some) for setting, some in by_setting.items()}
        """By the seconds that went by."""
        self.scenes = {setting: Scene(setting, plan, told(some)) for setting, some in by_setting.items()}

    @cached_property
    def main(self) -> dict[str, Scene]:
        """The main setting of each data set, the mix last."""
        names = [*self.plan.data_sets, MIX]
        return {name: self.scenes[self.plan.main(name)] for name in names if self.plan.main(name) in self.scenes}

    def figures(self) -> dict[str, Any]:
        """Return the figures of the main setting, per data set and overall."""
        sets = {name: self._data_set(name) for name in self.main}
        own = [sets[name] for name in self.plan.data_sets if name in sets]
        checked, differing = self.lossless()
        never_slower = self.never_slower()
        return {
            "overall": self._overall(own),
            "data_sets": sets,
            **({"never_slower": never_slower} if never_slower else {}),
            "texts_compared": checked,
            "texts_differing": differing,
        }

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return throughput by data set, analytic's sensitivity where it was simulated, and the figures overall."""
        found, first = self.figures(), self.plan.main("")
        sets, overall = found["data_sets"], found["overall"]
        kinds = [(kind, name) for kind in ("controllers", "references") for name in overall[kind]]
        speeds = [
            {"": name} | {each: sets[each][kind].get(name, {}).get("throughput") for each in sets}
            for kind, name in kinds
        ]
        changed = [
            {"data set": name, "h": h} | {f"γ_max {most}": rate for most, rate in rates.items()}
            for name, by_history in self.more.get("sensitivity", {}).items()
            for h, rates in by_history.items()
        ]
        shares = [
            {"": name} | {heading: figures.get(key) for key, heading in HEADINGS.items()}
            for name, figures in overall["controllers"].items()
        ]
        title = f"Tokens a second, T={first.temperature:g}, batch {first.batch}, initial γ {self.plan.initial}"
        simulated = "analytic, simulated: tokens a second by history length h and gamma_max"
        return {title: speeds, simulated: changed, "Overall": shares}

    def summary(self) -> dict[str, Any]:
        """Everything, for bench.json."""
        settings = {str(setting): self._setting(scene) for setting, scene in self.scenes.items()}
        facts = {"plan": self.plan.facts(), **self.figures(), "settings": settings, **self.more}
        return {**plain(facts, DIGITS), "definitions": DEFINITIONS}

    def best_fixed(self, data_set: str) -> dict[str, int | None]:
        """By temperature and batch size."""
        return {s.cell: scene.best_fixed_gamma for s, scene in self.scenes.items() if s.data_set == data_set}

    def never_slower(self) -> dict[str, dict[str, float | None]]:
        """Controllers against the target alone, with a draft of random weights and in large batches."""
        return {
            f"{setting.draft} draft, batch {setting.batch}": {
                name: scene.ratios(self._usual(name))["vs_target_alone"] for name in self.plan.adaptive
            }
            for setting, scene in self.scenes.items()
            if setting.data_set == ALL
        }

    def lossless(self) -> tuple[int, int]:
        """Greedy measurements held against the target alone's texts, and how many had another text."""
        checked = differing = 0
        for scene in self.scenes.values():
            plain = {(each.job.turn, each.job.part): each.digest for each in scene.of.get(ALONE, [])}
            for entrant, some in scene.of.items():
                held = [each for each in some if each.digest and entrant != ALONE]
                checked += len(held)
                differing += sum(each.digest != plain.get((each.job.turn, each.job.part)) for each in held)
        return checked, differing

    def _usual(self, name: str) -> Entrant:
        """A controller at the plan's own initial gamma."""
        return Entrant("rule", name, self.plan.initial)

    def _data_set(self, name: str) -> dict[str, Any]:
        scene = self.main[name]
        model = scene.time_model
        return {
            "controllers": {each: scene.figures(each) for each in self.plan.controllers},
            "references": _references(scene),
            "by_clock": {each: self.clock[scene.setting].ratios(self._usual(each)) for each in self.plan.controllers},
            "time_model_r2": model.r2 if model else None,
            "best_fixed_gamma": self.best_fixed(name),
        }

    def _overall(self, sets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if not sets:
            return {}
        kinds = {
            kind: {name: _across([each[kind].get(name, {}) for each in sets]) for name in sets[0][kind]}
            for kind in ("controllers", "references", "by_clock")
        }
        for name, figures in kinds["controllers"].items():
            figures.update(self._spread(name))
        r2 = average([each["time_model_r2"] for each in sets])
        return {**kinds, "time_model_r2": r2, "best_fixed_gamma": self._best_overall()}

    def _spread(self, name: str) -> Figures:
        """Over initial gammas, of the geometric mean over data sets."""
        swept = [self.main[data_set].over_initial(name) for data_set in self.plan.data_sets if data_set in self.main]
        if not swept or not all(swept):
            return {}
        means = [geometric_mean([each[gamma] for each in swept]) for gamma in self.plan.gammas]
        mean = statistics.mean(means)
        return {
            "spread_over_initial_gamma": (max(means) - min(means)) / mean,
            "spread_deviation": statistics.stdev(means) / mean,
        }

    def _best_overall(self) -> dict[str, int | None]:
        cells: dict[str, list[Scene]] = defaultdict(list)
        for setting, scene in self.scenes.items():
            if setting.data_set in self.plan.data_sets:
                cells[setting.cell].append(scene)
        return {
            cell: max(scenes[0].fixed, key=lambda gamma: geometric_mean([s.fixed[gamma] for s in scenes]), default=None)
            for cell, scenes in cells.items()
        }

    def _setting(self, scene: Scene) -> dict[str, Any]:
        speeds = {str(entrant): scene.speed(entrant) for entrant in scene.of}
        model = scene.time_model
        return {
            "throughput": {name: [s.rate, s.low, s.high] for name, s in speeds.items() if s},
            "counts": {str(entrant): scene.counts(entrant) for entrant in scene.of},
            "controllers": {
                name: scene.figures(name) for name in self.plan.controllers if scene.figures(name)["throughput"]
            },
            "time_model": {"draft_ms": model.draft_ms, "target_ms": model.target_ms, "r2": model.r2} if model else None,
            "best_fixed_gamma": scene.best_fixed_gamma,
        }


def _references(scene: Scene) -> dict[str, Figures]:
    """Who is no controller."""
    others = {"target_alone": ALONE, "oracle": ORACLE} | {name: Entrant("assisted", name) for name in ASSISTED}
    found = {name: entrant for name, entrant in others.items() if entrant in scene.of}
    return {
        name: {"throughput": scene.rate(entrant), **scene.ratios(entrant), **scene.counts(entrant)}
        for name, entrant in found.items()
    }


def _across(sets: Sequence[Figures]) -> Figures:
    """One contender's figures over data sets."""
    return {name: average([each.get(name) for each in sets], geometric=name in RATIOS) for name in sets[0]}


def average(values: Sequence[float | None], *, geometric: bool = False) -> float | None:
    """The mean of those that are known, geometric for ratios; None where none is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return geometric_mean(known) if geometric else statistics.mean(known)
