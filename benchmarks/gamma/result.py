"""From measurements to figures. What each figure is: docs/simulator.md."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from statistics import geometric_mean
from typing import Any

from benchmarks.gamma.measured import GammaMeasured, told
from benchmarks.gamma.plan import ALL, ALONE, MIX, REFERENCES, Contested, Entrant, GammaSetting
from benchmarks.gamma.scene import Figures, Scene
from osd.bench.harness.plan import facts_of

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

    def __init__(self, plan: Contested, measured: Iterable[GammaMeasured], more: Mapping[str, Any]) -> None:
        """``more``: what else bench.json should hold."""
        self.plan, self._more = plan, more
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
        """Return throughput by data set, and the figures overall."""
        found, first = self.figures(), self.plan.main("")
        sets, overall = found["data_sets"], found["overall"]
        kinds = [(kind, name) for kind in ("controllers", "references") for name in overall[kind]]
        speeds = [
            {"": name} | {each: sets[each][kind].get(name, {}).get("throughput") for each in sets}
            for kind, name in kinds
        ]
        shares = [
            {"": name} | {heading: figures.get(key) for key, heading in HEADINGS.items()}
            for name, figures in overall["controllers"].items()
        ]
        title = f"Tokens a second, T={first.temperature:g}, batch {first.batch}, initial γ {self.plan.initial}"
        return {title: speeds, "Overall": shares}

    def summary(self) -> dict[str, Any]:
        """Everything, for bench.json."""
        settings = {str(setting): self._setting(scene) for setting, scene in self.scenes.items()}
        return {"plan": facts_of(self.plan), **self.figures(), "settings": settings, **self._more}

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
        means = [geometric_mean([each[gamma] for each in swept]) for gamma in self.plan.initial_gammas]
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
            "time_model": asdict(model) if model else None,
            "best_fixed_gamma": scene.best_fixed_gamma,
        }


def _references(scene: Scene) -> dict[str, Figures]:
    return {
        name: {"throughput": scene.rate(entrant), **scene.ratios(entrant), **scene.counts(entrant)}
        for name, entrant in REFERENCES.items() if entrant in scene.of
    }  # fmt: skip


def _across(sets: Sequence[Figures]) -> Figures:
    """One contender's figures over data sets."""
    return {name: average([each.get(name) for each in sets], geometric=name in RATIOS) for name in sets[0]}


def average(values: Sequence[float | None], *, geometric: bool = False) -> float | None:
    """The mean of those that are known, geometric for ratios; None where none is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return geometric_mean(known) if geometric else statistics.mean(known)
