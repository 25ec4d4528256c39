"""Gamma controllers: how many tokens to draft before the target looks. No torch here.

=================  ==================================================================================
``fixed``          the same every round
``analytic``       the most expected tokens a millisecond, from measured costs and recent acceptance
``gammatune``      a moving average of what was accepted
``gammatune_plus`` the same, and a draft stops where it is unsure
=================  ==================================================================================

Equations, schedule and settings: docs/gamma.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from osd.gamma.analytic import AnalyticController
from osd.gamma.base import CostModel, GammaController, Go, Observation, RowGamma, Signal
from osd.gamma.fixed import FixedController
from osd.gamma.gammatune import GammaTuneController
from osd.gamma.pace import Pace
from storage.errors import BadSetting
from storage.settings import ServeSettings

__all__ = [
    "CONTROLLERS", "CostModel", "GammaController", "Go", "Observation", "Pace", "RowGamma", "Signal", "make_controller",
    "make_pace",
]  # fmt: skip


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


CONTROLLERS: Mapping[str, Callable[[ServeSettings, CostModel], GammaController]] = {
    "fixed": _fixed,
    "analytic": _analytic,
    "gammatune": _gammatune,
    "gammatune_plus": _gammatune_plus,
}


def make_controller(settings: ServeSettings, costs: CostModel, name: str | None = None) -> GammaController:
    """The controller called ``name``; by default the one that ``settings.gamma`` names. Raises BadSetting for an
    unknown name, or when ``gamma_initial`` is more than ``gamma_max``."""
    name = name or settings.gamma
    if name not in CONTROLLERS:
        reason = f"there is no controller named {name!r}; known: {', '.join(CONTROLLERS)}"
        raise BadSetting(source="settings", key="serve.gamma", reason=reason)
    if settings.gamma_initial > settings.gamma_max:
        reason = f"{settings.gamma_initial} is more than serve.gamma_max ({settings.gamma_max}); lower it or raise that"
        raise BadSetting(source="settings", key="serve.gamma_initial", reason=reason)
    return CONTROLLERS[name](settings, costs)


def make_pace(settings: ServeSettings, costs: CostModel) -> Pace:
    """The engine's controllers: ``settings.gamma``, and one for each name in ``settings.gamma_routes``. Raises
    BadSetting as :func:`make_controller`."""
    shared = {
        name: make_controller(settings, costs, name) for name in {settings.gamma, *settings.gamma_routes.values()}
    }
    return Pace(shared[settings.gamma], {route: shared[name] for route, name in settings.gamma_routes.items()})
