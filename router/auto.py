"""Choice among a route's drafts by the throughput expected of each.

    prompt ─> route (the inner router) ─> expected throughput of each candidate ─> the best one

Four ways to estimate, by setting:

- ``prompt``: α̂ = uᵀ Ẑ from the prompt's vector, and the throughput that Eq. 3 makes of it (on-the-fly adaptation);
- ``theorem``: the same α̂, and a larger draft where its Theorem 3 says that it pays;
- ``weights``: exponential weights, by route, over every draft's score on verified text (full information);
- ``both``: exponential weights over the drafts *and* over following the prompt's prediction, so that whichever
  does better on a route decides there.

Texts scored with every draft teach both estimators; a request that was not scored teaches least squares about the
draft that served it. Where the weights decide, the prompt's vector is not computed before serving but when it is
learned from, in idle moments or for several requests at once. All calls come from the decoding thread, except those
that save the state.

The state is one JSON file, ``router/choices.json`` in the data directory, so that a restarted server continues from it.
A thread writes it every few minutes and at the end, aside and renamed. Servers that share a directory share the file;
the last write wins. It contains sums, weights and document frequencies of common tokens: no prompt, and nothing of
requests that must not be learned from.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from router.base import Decision, Router
from router.draft_predictor import CostsOf, DraftPredictors, Expect, PendingRequest
from router.hedge import Hedge
from router.throughput import TextScore, losses
from storage.errors import StoreWriteFailed
from storage.files.files import TemporaryPath, make_folder, writing
from storage.records import Outcome, Request
from storage.settings import RouterSettings

log = logging.getLogger(__name__)

By = Literal["prompt", "theorem", "weights", "both"]
DEFAULTS = RouterSettings()
EXPECT: Mapping[By, Expect] = {"prompt": "pace", "theorem": "theorem", "weights": "gain", "both": "gain"}

FOLLOW = ""
"""Name of the expert that follows the prompt's prediction; no draft has this name."""
PENDING = 4096
"""Maximum number of requests that wait to be scored."""

FILE = "choices.json"
SAVE_SECONDS = 300.0
"""Seconds between checks for something new to save."""
FORMAT = 1
"""Version of the state's format, raised when its meaning changes."""


class AutoRouter:
    """A router that routes as its inner router does, then chooses the draft. See :class:`router.base.Router`."""

    def __init__(
        self, within: Router, costs: CostsOf, settings: RouterSettings = DEFAULTS, folder: Path | None = None
    ) -> None:
        """Wrap the router ``within``. What was learned is restored from ``folder``, and saved there from now on.

        Until a draft was judged on ``settings.choose_warm_up`` prompts its estimate does not count, and the candidates
        take turns.
        """
        self.within, self._costs, self._settings = within, costs, settings
        self._expect = EXPECT[settings.choose_by]
        self.reads_perplexity = self._expect != "gain"
        """Whether it wants the prompt's perplexity, as the paper does.

        Beside the weights it added nothing, and computing it takes some 3 % of a short request.
        """
        self._learning = threading.Lock()
        self._predictors = DraftPredictors(costs, settings.choose_dimensions, self._expect, self._learning)
        self._hedges: dict[str, Hedge] = {}
        self._pending: OrderedDict[str, PendingRequest] = OrderedDict()
        self._keeper = None if folder is None else RouterStateKeeper(self, folder)

    @property
    def reads_text(self) -> bool:
        """Whether the inner router reads the prompt's text."""
        return bool(getattr(self.within, "reads_text", False))

    def route(self, request: Request) -> Decision:
        """Return the route; :meth:`choose` picks its draft once the target has prefilled the prompt."""
        return self.within.route(request)

    def choose(self, request: Request, decision: Decision, perplexity: float | None = None) -> Decision:
        """Return the decision with the draft chosen. ``perplexity`` is the prompt's under the target."""
        drafts = decision.route.drafts
        if len(drafts) < 2:
            return decision
        pending = PendingRequest(request.prompt_tokens, request.learn, perplexity, decision.name, drafts)
        leader = self._leader(decision.name, drafts)
        estimates = () if leader else self._predictors.estimates(pending)
        pending.draft, why = self._decide(drafts, leader, pending.followed)
        self._remember(request.id, pending)
        reason = f"{decision.reason}; {pending.draft}: {why}"
        return replace(decision, chosen=pending.draft, estimates=estimates, reason=reason)

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """Learn about the draft that served, if it was the one chosen. See :meth:`router.base.Router.observe`."""
        self.within.observe(request, decision, outcomes)
        pending = self._pending.get(request.id)
        if pending is None:
            return
        accepted = sum(outcome.accepted for outcome in outcomes)
        judged = accepted + sum(outcome.rejections for outcome in outcomes)
        self._predictors.add_outcome(pending, TextScore(accepted / max(1, judged), judged))
        if self._unjudged(pending.drafts):  # decides whose turn is next
            self._predictors.learn_waiting()

    def scored(self, request_id: str, seen: Mapping[str, TextScore]) -> None:
        """Learn from each draft's score on a request's verified text; the draft that served is known already."""
        pending = self._pending.pop(request_id, None)
        costs = {draft: cost for draft in seen if (cost := self._costs(draft)) is not None}
        if pending is None or not costs or any(seen[draft].judged <= 0 for draft in costs):
            return
        self._predictors.add_scores(pending, seen, costs)
        lost = dict(zip(costs, losses([seen[d] for d in costs], list(costs.values())), strict=True))
        if pending.followed in lost:
            lost[FOLLOW] = lost[pending.followed]
        with self._learning:
            self._hedges.setdefault(pending.route, Hedge()).learn(lost)

    @property
    def learned(self) -> int:
        """Number of texts and outcomes learned from. May be read by another thread."""
        return self._predictors.learned + sum(one.seen for one in self._hedges.copy().values())

    def state(self) -> dict[str, Any]:
        """Return what was learned, for JSON. May be called by another thread."""
        with self._learning:
            return {
                "format": FORMAT, "dimensions": self._settings.choose_dimensions, "perplexity": self.reads_perplexity,
                **self._predictors.state(), "routes": {route: one.state() for route, one in self._hedges.items()},
            }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, before the first request.

        Raises ValueError for a state of other settings or of another format.
        """
        given = state["format"], state["dimensions"], state["perplexity"]
        if given != (FORMAT, self._settings.choose_dimensions, self.reads_perplexity):
            raise ValueError(f"format, dimensions and perplexity are {given}")
        hedges = {str(route): Hedge() for route in state["routes"]}
        for name, weights in hedges.items():
            weights.restore(state["routes"][name])
        self._predictors.restore(state)
        self._hedges = hedges

    def close(self) -> None:
        """Save what was learned, and end the inner router's thread, if it has one."""
        self._predictors.learn_waiting()
        if self._keeper is not None:
            self._keeper.close()
        if close := getattr(self.within, "close", None):
            close()

    def weights(self, route: str) -> dict[str, float]:
        """Return the weight of each draft on a route (and of following the prompt, under ``""``)."""
        return self._hedges[route].weights() if route in self._hedges else {}

    def _leader(self, route: str, drafts: Sequence[str]) -> str | None:
        """Return the draft that the weights choose; None to follow the prompt, or while a draft is still unjudged."""
        weights = self.weights(route)
        if self._expect != "gain" or not weights or self._unjudged(drafts):
            return None
        ways = [*drafts, FOLLOW] if self._settings.choose_by == "both" else list(drafts)
        return max(ways, key=lambda one: weights.get(one, 0.0)) or None

    def _unjudged(self, drafts: Sequence[str]) -> str | None:
        """Return the draft judged on the fewest prompts, if that is too few."""
        least = min(drafts, key=self._predictors.seen)
        return least if self._predictors.seen(least) < self._settings.choose_warm_up else None

    def _decide(self, drafts: Sequence[str], leader: str | None, followed: str) -> tuple[str, str]:
        if leader:
            return leader, "best on this route"
        least = self._unjudged(drafts)
        return (least, "in turn, to be judged") if least else (followed, "expected of the prompt")

    def _remember(self, request_id: str, pending: PendingRequest) -> None:
        self._pending[request_id] = pending
        if len(self._pending) > PENDING:
            self._pending.popitem(last=False)


class RouterStateKeeper:
    """Restores a router's state from a folder and saves it there. Closing it saves the last state."""

    def __init__(self, router: AutoRouter, folder: Path, every: float = SAVE_SECONDS) -> None:
        self._router, self._path, self._every = router, folder / FILE, every
        self._restore()
        self._kept = router.learned
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="osd-choices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Save what is new, and stop."""
        self._closing.set()
        self._thread.join()

    def _restore(self) -> None:
        try:
            self._router.restore(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # learned anew, as without a file
            log.warning("the choice among drafts is learned anew, %s is of no use: %s", self._path, error,
                        extra={"action": "choices_refused"})  # fmt: skip

    def _work(self) -> None:
        while not self._closing.wait(self._every):
            self._keep()
        self._keep()

    def _keep(self) -> None:
        if (learned := self._router.learned) == self._kept:
            return
        # in pieces, so that decoding gets the interpreter in between
        data = "".join(json.JSONEncoder(allow_nan=False).iterencode(self._router.state())).encode()
        try:
            with writing(self._path):
                make_folder(self._path.parent, 0o700)
                with TemporaryPath(self._path.parent, f"{FILE}-{os.getpid()}-{id(self):x}") as aside:
                    aside.write(memoryview(data))
                    aside.rename(self._path)
        except StoreWriteFailed as error:
            log.warning("what was learned of drafts is not kept: %s", error, extra={"action": "choices_failed"})
            return
        self._kept = learned
