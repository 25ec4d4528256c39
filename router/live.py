"""The router that the settings name, over the routes in the store. It follows changes of them without a restart.

    fixed         names only                       router.fixed
    pinned        names, pins                      router.fixed
    classifier    names, pins, rules               router.classifier
    auto          the same, and then the draft     router.auto

One thread polls the newest change's number every few seconds. When it has risen, a new router is built aside and
then takes the old one's place by one assignment; a request sees the one or the other, never half of both. When the
store does not answer, or contains unusable routes, the last known routes stay in use.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from router.auto import AutoRouter
from router.base import Decision, Router
from router.classifier import ClassifierRouter
from router.classifier_models import ClassifierModels, model_folder
from router.draft_predictor import CostsOf
from router.fixed import FixedRouter
from storage.errors import OsdError
from storage.records import Outcome, Request
from storage.routes.routes import RoutePlan
from storage.settings import RouterSettings
from storage.store import Store

log = logging.getLogger("osd.router")

Build = Callable[[RoutePlan], Router]


class LiveRouter:
    """A router over the newest plan. Thread-safe; :meth:`close` ends its thread."""

    def __init__(self, store: Store, build: Build, poll_seconds: float) -> None:
        """Build the first router and start polling. ``build`` makes a router of a plan.

        Raises what ``build`` raises, and StoreError, before the thread starts.
        """
        self._store, self._build, self._every = store, build, poll_seconds
        plan = store.routes.plan()
        self._within, self._revision = build(plan), plan.revision
        self._troubled = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="osd-routes", daemon=True)
        self._thread.start()

    @property
    def reads_text(self) -> bool:
        """Whether a route's rule asks for the prompt's text now."""
        return bool(getattr(self._within, "reads_text", False))

    @property
    def revision(self) -> int:
        """Revision of the routes in use."""
        return self._revision

    def route(self, request: Request) -> Decision:
        """Return the route. See :meth:`router.base.Router.route`."""
        return self._within.route(request)

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """Pass the outcomes on. See :meth:`router.base.Router.observe`."""
        self._within.observe(request, decision, outcomes)

    def refresh(self) -> bool:
        """Poll now; return whether anything had changed. Raises StoreError, and what building raises; the routes stay
        then."""
        if self._store.routes.revision() == self._revision:
            return False
        plan = self._store.routes.plan()
        self._within = self._build(plan)
        self._revision = plan.revision
        log.info("routes of revision %d", plan.revision, extra={"action": "routes_changed", "revision": plan.revision})
        return True

    def close(self) -> None:
        """Stop polling; doing it twice is fine."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self.refresh()
                self._troubled = False
            except Exception as error:  # whatever it is, routing and polling must go on
                self._tell(error)

    def _tell(self, error: Exception) -> None:
        """Log an error once, not at every poll."""
        if not self._troubled:
            facts = {"action": "routes_look_failed"}
            log.warning("no look at the routes: %s", error, extra=facts, exc_info=not isinstance(error, OsdError))
        self._troubled = True


def make_router(store: Store, settings: RouterSettings, costs: CostsOf = lambda _: None) -> LiveRouter | AutoRouter:
    """Create a running router; ``close()`` ends its thread. ``costs`` returns a draft's costs as the engine measures
    them.

    Raises StoreError, and the errors of the classifiers' files.
    """
    live = live_router(store, settings)
    return AutoRouter(live, costs, settings, model_folder(store)) if settings.kind == "auto" else live


def live_router(store: Store, settings: RouterSettings) -> LiveRouter:
    """Create a running router that leaves the choice among a route's drafts to others. Raises as
    :func:`make_router`."""
    return LiveRouter(store, builder(store, settings), settings.poll_seconds)


def builder(store: Store, settings: RouterSettings, *, guess_all: bool = False) -> Build:
    """Return a function that makes routers of plans. With ``guess_all`` language and topic are guessed even where no
    rule uses them."""
    if settings.kind == "fixed":
        return lambda plan: FixedRouter(plan.routes, aliases=plan.aliases)
    if settings.kind == "pinned":
        return lambda plan: FixedRouter(plan.routes, plan.pins, plan.aliases)
    models = ClassifierModels(store, settings)
    return lambda plan: ClassifierRouter(plan, models, settings, guess_all=guess_all)
