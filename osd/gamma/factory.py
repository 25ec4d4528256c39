"""Gamma rules by name: osd's own, and those that installed packages bring by the entry point group ``osd.gamma``.

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

Equations, schedule and settings: docs/gamma.md; how to add one: docs/extending.md.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from osd.gamma.base import CostModel, GammaController, GammaRule
from osd.gamma.goodput.goodput import GoodputController
from osd.gamma.planner import GammaPlanner
from osd.gamma.rules.analytic import AnalyticController
from osd.gamma.rules.confidence import ConfidenceController
from osd.gamma.rules.fsm import CacheFsmController, FixedController, FsmController, HeuristicController
from osd.gamma.rules.gammatune import GammaTuneController
from osd.gamma.rules.moving_average import MovingAverageController
from osd.gamma.rules.q_learning import QLearningController
from osd.gamma.rules.specdecpp import SpecDecController
from storage.errors import BadSetting
from storage.settings import GammaSettings, Registry
from storage.settings.drafting import (
    AnalyticSettings,
    ConfidenceSettings,
    GammaTunePlusSettings,
    GammaTuneSettings,
    GoodputSettings,
    QLearningSettings,
    SpecDecSettings,
)


def _analytic(gamma: GammaSettings, own: AnalyticSettings, costs: CostModel) -> GammaController:
    return AnalyticController(
        costs,
        initial=gamma.initial,
        maximum=gamma.max,
        history=own.history,
        estimator=own.estimator,
        prior_trials=own.prior_trials,
    )


def _q_learning(gamma: GammaSettings, own: QLearningSettings, costs: CostModel) -> GammaController:
    return QLearningController(gamma.initial, gamma.max, random.Random(own.seed), own)


def _gammatune(gamma: GammaSettings, own: GammaTuneSettings, costs: CostModel) -> GammaController:
    return GammaTuneController(gamma.initial, gamma.max, eta=own.eta, delta=own.delta)


def _gammatune_plus(gamma: GammaSettings, own: GammaTunePlusSettings, costs: CostModel) -> GammaController:
    return GammaTuneController(gamma.initial, gamma.max, eta=own.eta, delta=own.delta, tau=own.threshold)


def _confidence(gamma: GammaSettings, own: ConfidenceSettings, costs: CostModel) -> GammaController:
    return ConfidenceController(min(own.tokens, gamma.max), tau=own.threshold, adapts=own.adapts)


def _specdecpp(gamma: GammaSettings, own: SpecDecSettings, costs: CostModel) -> GammaController:
    return SpecDecController(own.threshold, initial=gamma.initial, maximum=gamma.max, costs=costs)


CONTROLLERS: Mapping[str, GammaRule] = {
    "goodput": GammaRule(
        lambda gamma, own, costs: GoodputController(costs, maximum=gamma.max, settings=own),
        GoodputSettings,
        weighs_costs=True,
    ),
    "fixed": GammaRule(lambda gamma, *_: FixedController(gamma.initial)),
    "analytic": GammaRule(_analytic, AnalyticSettings, weighs_costs=True),
    "fsm": GammaRule(lambda gamma, *_: FsmController(gamma.initial, gamma.max)),
    "cache_fsm": GammaRule(lambda gamma, *_: CacheFsmController(gamma.initial, gamma.max)),
    "q_learning": GammaRule(_q_learning, QLearningSettings),
    "gammatune": GammaRule(_gammatune, GammaTuneSettings),
    "gammatune_plus": GammaRule(_gammatune_plus, GammaTunePlusSettings),
    "heuristic": GammaRule(lambda gamma, *_: HeuristicController(gamma.initial, gamma.max)),
    "confidence": GammaRule(_confidence, ConfidenceSettings),
    "moving_average": GammaRule(lambda gamma, *_: MovingAverageController(gamma.initial, gamma.max)),
    "specdecpp": GammaRule(_specdecpp, SpecDecSettings, needs_head=True),
}
"""The rules that ship with osd."""
RULES = Registry("gamma", "gamma.rule", "osd.gamma", GammaRule, CONTROLLERS)


def make_controller(gamma: GammaSettings, costs: CostModel, name: str | None = None) -> GammaController:
    """Return a new controller of the rule ``name``; by default of ``gamma.rule``. Raises BadSetting for an unknown
    name, for the rule's own table, or when ``gamma.initial`` is more than ``gamma.max``."""
    name = name or gamma.rule
    rule = RULES.entry(name)
    if gamma.initial > gamma.max:
        reason = f"{gamma.initial} is more than gamma.max ({gamma.max}); lower it or raise that"
        raise BadSetting(source="settings", key="gamma.initial", reason=reason)
    return rule.make(gamma, RULES.table(name, gamma), costs)


def require_rules(gamma: GammaSettings) -> None:
    """Raise BadSetting where a rule's name or table is wrong, or a table belongs to no rule."""
    RULES.require_known(gamma)
    routes = {f"gamma.routes.{route}": name for route, name in gamma.routes.items()}
    for key, name in {RULES.key: gamma.rule, **routes}.items():
        RULES.entry(name, key)
        RULES.table(name, gamma)


def make_planner(gamma: GammaSettings, costs: CostModel) -> GammaPlanner:
    """Return the engine's controllers: that of ``gamma.rule``, and one for each name in ``gamma.routes``. Raises
    BadSetting as :func:`make_controller` and :func:`require_rules`."""
    require_rules(gamma)
    shared = {name: make_controller(gamma, costs, name) for name in gamma.rules}
    by_route = {route: shared[name] for route, name in gamma.routes.items()}

    def make(name: str, of: CostModel | None) -> GammaController:
        return make_controller(gamma, costs if of is None else of, name)

    return GammaPlanner(shared[gamma.rule], by_route, make)


def weighs_costs(gamma: GammaSettings) -> bool:
    """Return whether a rule of these settings weighs what passes cost. Raises BadSetting for an unknown rule."""
    return any(RULES.entry(name).weighs_costs for name in gamma.rules)


def needs_head(gamma: GammaSettings) -> bool:
    """Return whether a rule of these settings asks an acceptance head. Raises BadSetting for an unknown rule."""
    reads = gamma.goodput.head and "goodput" in gamma.rules
    return reads or any(RULES.entry(name).needs_head for name in gamma.rules)
