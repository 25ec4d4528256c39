"""Construction of the router that the settings name, over the routes in the store.

    fixed         names only                       router.fixed
    pinned        names, pins                      router.pinned
    classifier    names, pins, rules               router.classifying
    auto          the same, and then the draft     router.auto, router.keeping

All of them follow changes while they run (:mod:`router.book`).
"""

from __future__ import annotations

from router.asking import CostsOf
from router.auto import AutoRouter
from router.book import Build, LiveRouter
from router.classifiers import Classifiers, model_folder
from router.classifying import ClassifierRouter
from router.fixed import FixedRouter
from router.keeping import RouterStateKeeper
from router.pinned import PinnedRouter
from router.throughput import Costs
from storage.routes.routes import RoutePlan
from storage.settings import Settings
from storage.store import Store


def unknown(_: str) -> Costs | None:
    """Return None, as the costs of a draft before anything was measured."""
    return None


def make_router(store: Store, settings: Settings, costs: CostsOf = unknown) -> LiveRouter | AutoRouter:
    """Create a running router; ``close()`` ends its thread. ``costs`` returns a draft's costs as the engine measures
    them.

    Raises StoreError, and the errors of the classifiers' files.
    """
    wanted, live = settings.router, live_router(store, settings)
    if wanted.kind != "auto":
        return live
    router = AutoRouter(
        live, costs, by=wanted.choose_by, dimensions=wanted.choose_dimensions, warm_up=wanted.choose_warm_up
    )
    router.keeper = RouterStateKeeper(router, model_folder(store))
    return router


def live_router(store: Store, settings: Settings) -> LiveRouter:
    """Create a running router that leaves the choice among a route's drafts to others. Raises as
    :func:`make_router`."""
    return LiveRouter(store, builder(store, settings), settings.router.poll_seconds)


def builder(store: Store, settings: Settings, *, look: bool = False) -> Build:
    """Return a function that makes routers of plans. ``look`` guesses language and topic even where no rule uses
    them."""
    if settings.router.kind == "fixed":
        return lambda plan: FixedRouter(plan.routes, plan.aliases)
    if settings.router.kind == "pinned":
        return lambda plan: PinnedRouter(plan.routes, plan.pins, plan.aliases)
    classifiers = Classifiers(store, settings)

    def build(plan: RoutePlan) -> ClassifierRouter:
        return ClassifierRouter(
            plan.routes, plan.pins, plan.aliases, languages=classifiers.languages(plan, look),
            topics=classifiers.topics(plan, look), least=settings.router.min_confidence,
            precedence=settings.router.precedence, look=look,
        )  # fmt: skip

    return build
