"""The measurements of one setting, and the figures that follow from them.

The time model is SpecDec++'s, T = t_draft · N_draft + t_target · N_target (Eq. 3.1), fitted over texts.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.gamma.measured import GammaMeasured, draft_passes
from benchmarks.gamma.plan import ALONE, ORACLE, REFERENCES, Contested, Entrant, GammaSetting
from osd.bench.contenders import ASSISTED

Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Speed:
    """Throughput of an entrant in a setting, tokens a second."""

    rate: float
    low: float
    high: float
    """Least and most over turns, levelled."""


@dataclass(frozen=True, slots=True)
class TimeModel:
    """Eq. 3.1, fitted."""

    draft_ms: float
    """t_draft: milliseconds of a draft pass."""
    target_ms: float
    """t_target: milliseconds of a target pass."""
    r2: float
    """1 − Σ(T − fitted)² ÷ Σ(T − mean T)², at most 1; below 0 where the model says less than the mean does."""


def fit_time_model(texts: Sequence[tuple[int, int, float]]) -> TimeModel | None:
    """Return least squares without an intercept and with no negative time (section 5.2 and D.2), over N_draft, N_target
    and T of each text; None for fewer than three texts, or times that are all the same."""
    from scipy.optimize import nnls

    if len({ms for _, _, ms in texts}) < 2 or len(texts) < 3:
        return None
    facts = np.array(texts, float)
    times = facts[:, 2]
    (draft_ms, target_ms), residual = nnls(facts[:, :2], times)
    return TimeModel(float(draft_ms), float(target_ms), 1 - float(residual) ** 2 / float(times.var() * len(times)))


class Scene:
    """The measurements of one setting."""

    def __init__(self, setting: GammaSetting, plan: Contested, measured: Iterable[GammaMeasured]) -> None:
        self.setting, self.plan = setting, plan
        self.of: dict[Entrant, list[GammaMeasured]] = defaultdict(list)
        for each in measured:
            self.of[each.job.entrant].append(each)

    def rates(self, entrant: Entrant) -> dict[int, float]:
        """Tokens a second, a turn."""
        tokens: dict[int, int] = defaultdict(int)
        seconds: dict[int, float] = defaultdict(float)
        for each in self.of.get(entrant, []):
            tokens[each.job.turn] += each.tokens
            seconds[each.job.turn] += each.seconds
        return {turn: tokens[turn] / seconds[turn] for turn in tokens}

    @cached_property
    def levels(self) -> dict[int, float]:
        """What a turn did to everybody: its geometric mean rate ÷ that of all turns."""
        rates = [self.rates(entrant) for entrant in self.of]
        turns = max(rates, key=len)
        steady = [each for each in rates if each.keys() == turns.keys()]
        means = {turn: statistics.geometric_mean([each[turn] for each in steady]) for turn in turns}
        whole = statistics.geometric_mean(means.values())
        return {turn: mean / whole for turn, mean in means.items()}

    def speed(self, entrant: Entrant, turns: Iterable[int] | None = None) -> Speed | None:
        """Throughput over these turns (all); None when the entrant was not there."""
        rates = self.rates(entrant)
        levelled = [rates[t] / self.levels[t] for t in (rates if turns is None else turns) if t in rates]
        return Speed(statistics.median(levelled), min(levelled), max(levelled)) if levelled else None

    def rate(self, entrant: Entrant) -> float | None:
        """Throughput over all turns."""
        speed = self.speed(entrant)
        return speed.rate if speed else None

    @cached_property
    def fixed(self) -> dict[int, float]:
        """Throughput of each fixed gamma from 1 on."""
        rates = {gamma: self.rate(Entrant("rule", "fixed", gamma)) for gamma in self.plan.initial_gammas}
        return {gamma: rate for gamma, rate in rates.items() if rate is not None}

    @property
    def best_fixed_gamma(self) -> int | None:
        """The best of them."""
        return max(self.fixed, key=self.fixed.__getitem__, default=None)

    def over_initial(self, name: str) -> dict[int, float]:
        """Throughput at each initial gamma, over the turns that all of them took; empty where none were swept."""
        swept = range(self.plan.fewer_turns)
        speeds = {gamma: self.speed(Entrant("rule", name, gamma), swept) for gamma in self.plan.initial_gammas}
        rates = {gamma: speed.rate for gamma, speed in speeds.items() if speed}
        return rates if len(rates) == len(self.plan.initial_gammas) > 1 else {}

    @cached_property
    def time_model(self) -> TimeModel | None:
        """Fitted over all texts of osd's engine, whoever decoded them; over whole measurements in a replay."""
        return fitted(each for some in self.of.values() for each in some)

    def time_model_of(self, name: str) -> TimeModel | None:
        """Fitted over the texts of one controller, as the paper does for each method."""
        return fitted(each for entrant, some in self.of.items() if entrant.name == name for each in some)

    def figures(self, name: str) -> Figures:
        """A controller's figures at the plan's own initial gamma."""
        entrant = Entrant("rule", name, self.plan.initial)
        swept = list(self.over_initial(name).values())
        alone, model = self.rate(ALONE), self.time_model_of(name)
        return {
            "throughput": self.rate(entrant),
            **self.ratios(entrant),
            **self.counts(entrant),
            "spread_over_initial_gamma": (max(swept) - min(swept)) / statistics.mean(swept) if swept else None,
            "spread_deviation": statistics.stdev(swept) / statistics.mean(swept) if swept else None,
            "mean_over_initial_gamma": statistics.mean(swept) / alone if swept and alone else None,
            "time_model_r2": model.r2 if model else None,
        }

    def ratios(self, entrant: Entrant) -> Figures:
        """Its throughput against the others'."""
        assisted = [self.rate(REFERENCES[name]) for name in ASSISTED]
        best = self.fixed[self.best_fixed_gamma] if self.best_fixed_gamma else None
        against = {
            "vs_best_fixed": best,
            "vs_target_alone": self.rate(ALONE),
            "vs_best_assisted": max((rate for rate in assisted if rate), default=None),
            "oracle_fraction": self.rate(ORACLE),
        }
        mine = self.rate(entrant)
        return {name: mine / other if mine and other else None for name, other in against.items()}

    def counts(self, entrant: Entrant) -> Figures:
        """What it discarded, verified, and took to decide."""
        mine = self.of.get(entrant, [])
        tokens, rounds, drafted, accepted = (
            sum(getattr(each, name) for each in mine) for name in ("tokens", "rounds", "drafted", "accepted")
        )
        decisions, spent = sum(each.decisions for each in mine), sum(each.decision_ns for each in mine)
        return {
            "discard_rate": (drafted - accepted) / tokens if rounds else None,
            "verification_rate": rounds / tokens if rounds else None,
            "decision_us": spent / decisions / 1000 if decisions else None,
        }


def fitted(measured: Iterable[GammaMeasured]) -> TimeModel | None:
    """Fit what passes take over the texts of measurements; None where there are too few."""
    return fit_time_model([point for each in measured for point in _points(each)])


def _points(each: GammaMeasured) -> list[tuple[int, int, float]]:
    """Draft passes, target passes and milliseconds of each text; of all in one where they were not told apart."""
    if not each.texts_ms:
        return [(each.draft_passes, each.target_passes, each.clock_ms)] if each.clock_ms else []
    return [
        (sum(count * draft_passes(kind) for kind, count in text.items()), sum(text.values()), ms)
        for text, ms in zip(each.texts, each.texts_ms, strict=True)
    ]
