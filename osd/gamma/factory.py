"""Gamma rules: how many tokens to draft before the target verifies. No torch here.

=================  ==================================================================================
``goodput``        the most tokens a second of the whole batch; osd's own
``fixed``          the same every round
``analytic``       the most expected tokens a millisecond, from measured costs and recent acceptance
``fsm``            one up or one down
``cache_fsm``      the same, with an eye on tokens that the text has had before
``q_learning``     a table of what each gamma was worth after the one before it
``gammatune``      a moving average of what was accepted
``gammatune_plus`` the same, and a draft stops where it is unsure
``heuristic``      transformers': two up or one down
``confidence``     transformers': until the draft is unsure
``moving_average`` SGLang's: a moving average picks one of a few gammas for the whole batch
``specdecpp``      until a token was probably refused, by the draft's trained acceptance head
=================  ==================================================================================

Equations, schedule and settings: docs/gamma.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from osd.gamma.base import CostModel, GammaController, Go, Observation, RowGamma, Signal
from osd.gamma.goodput.goodput import GoodputController
from osd.gamma.planner import GammaPlanner
from osd.gamma.rules.analytic import AnalyticController
from osd.gamma.rules.cache_fsm import CacheFsmController
from osd.gamma.rules.confidence import ConfidenceController
from osd.gamma.rules.fixed import FixedController
from osd.gamma.rules.fsm import FsmController
from osd.gamma.rules.gammatune import GammaTuneController
from osd.gamma.rules.heuristic import HeuristicController
from osd.gamma.rules.moving_average import MovingAverageController
from osd.gamma.rules.q_learning import QLearningController
from osd.gamma.rules.specdecpp import SpecDecController
from storage.errors import BadSetting
from storage.settings import ServeSettings

__all__ = [
    "CONTROLLERS",
    "CostModel",
    "GammaController",
    "GammaPlanner",
    "Go",
    "Observation",
    "RowGamma",
    "Signal",
    "make_controller",
    "make_planner",
]  # fmt: skip


def _goodput(settings: ServeSettings, costs: CostModel) -> GammaController:
    return GoodputController(costs, initial=settings.gamma_initial, maximum=settings.gamma_max)


def _fixed(settings: ServeSettings, costs: CostModel) -> GammaController:
    return FixedController(settings.gamma_initial)


def _analytic(settings: ServeSettings, costs: CostModel) -> GammaController:
    return AnalyticController(
        costs,
        initial=settings.gamma_initial,
        maximum=settings.gamma_max,
        history=settings.gamma_history,
        estimator=settings.gamma_estimator,
    )


def _fsm(settings: ServeSettings, costs: CostModel) -> GammaController:
    return FsmController(settings.gamma_initial, settings.gamma_max)


def _cache_fsm(settings: ServeSettings, costs: CostModel) -> GammaController:
    return CacheFsmController(settings.gamma_initial, settings.gamma_max)


def _q_learning(settings: ServeSettings, costs: CostModel) -> GammaController:
    chance = random.Random(settings.gamma_seed)
    return QLearningController(settings.gamma_initial, settings.gamma_max, chance, warmup=settings.gamma_warmup)


def _gammatune(settings: ServeSettings, costs: CostModel) -> GammaController:
    return GammaTuneController(
        settings.gamma_initial, settings.gamma_max, eta=settings.gamma_eta, delta=settings.gamma_delta
    )


def _gammatune_plus(settings: ServeSettings, costs: CostModel) -> GammaController:
    return GammaTuneController(
        settings.gamma_initial,
        settings.gamma_max,
        eta=settings.gamma_eta,
        delta=settings.gamma_delta,
        tau=settings.gamma_confidence,
    )


def _heuristic(settings: ServeSettings, costs: CostModel) -> GammaController:
    return HeuristicController(settings.gamma_initial, settings.gamma_max)


def _confidence(settings: ServeSettings, costs: CostModel) -> GammaController:
    return ConfidenceController(
        settings.gamma_max, tau=settings.gamma_confidence, adapts=settings.gamma_confidence_adapts
    )


def _moving_average(settings: ServeSettings, costs: CostModel) -> GammaController:
    return MovingAverageController(settings.gamma_initial, settings.gamma_max)


def _specdecpp(settings: ServeSettings, costs: CostModel) -> GammaController:
    return SpecDecController(settings.gamma_head_threshold, initial=settings.gamma_initial, maximum=settings.gamma_max)


CONTROLLERS: Mapping[str, Callable[[ServeSettings, CostModel], GammaController]] = {
    "goodput": _goodput,
    "fixed": _fixed,
    "analytic": _analytic,
    "fsm": _fsm,
    "cache_fsm": _cache_fsm,
    "q_learning": _q_learning,
    "gammatune": _gammatune,
    "gammatune_plus": _gammatune_plus,
    "heuristic": _heuristic,
    "confidence": _confidence,
    "moving_average": _moving_average,
    "specdecpp": _specdecpp,
}


def make_controller(settings: ServeSettings, costs: CostModel, name: str | None = None) -> GammaController:
    """Make the gamma rule called ``name``; by default the one that ``settings.gamma`` names.

    Raises BadSetting for an unknown name, or when ``gamma_initial`` is more than ``gamma_max``.
    """
    name = name or settings.gamma
    if name not in CONTROLLERS:
        reason = f"there is no controller named {name!r}; known: {', '.join(CONTROLLERS)}"
        raise BadSetting(source="settings", key="serve.gamma", reason=reason)
    if settings.gamma_initial > settings.gamma_max:
        reason = f"{settings.gamma_initial} is more than serve.gamma_max ({settings.gamma_max}); lower it or raise that"
        raise BadSetting(source="settings", key="serve.gamma_initial", reason=reason)
    return CONTROLLERS[name](settings, costs)


def make_planner(settings: ServeSettings, costs: CostModel) -> GammaPlanner:
    """Make the engine's planner: the rule ``settings.gamma``, and one for each name in ``settings.gamma_routes``.

    Raises BadSetting as :func:`make_controller`.
    """
    shared = {
        name: make_controller(settings, costs, name) for name in {settings.gamma, *settings.gamma_routes.values()}
    }
    by_route = {route: shared[name] for route, name in settings.gamma_routes.items()}
    return GammaPlanner(shared[settings.gamma], by_route, lambda name, costs: make_controller(settings, costs, name))
