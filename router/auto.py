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
that save the state (:mod:`router.keeping`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from router.asking import Asked, CostsOf, Expect, Prompts
from router.base import Decision, Router
from router.foresight import TextScore, losses
from router.hedge import Hedge
from storage.records import Outcome, Request

By = Literal["prompt", "theorem", "weights", "both"]
EXPECT: Mapping[By, Expect] = {"prompt": "pace", "theorem": "theorem", "weights": "gain", "both": "gain"}

FOLLOW = ""
"""Name of the expert that follows the prompt's prediction; no draft has this name."""
PENDING = 4096
"""Maximum number of requests that wait to be scored."""

FORMAT = 1
"""Version of the state's format, raised when its meaning changes."""


class Closing(Protocol):
    """The object that saves the router's state."""

    def close(self) -> None:
        """Save the state and stop."""


class AutoRouter:
    """A router that routes as its inner router does, then chooses the draft. See :class:`router.base.Router`."""

    def __init__(
        self, within: Router, costs: CostsOf, *, by: By = "both", dimensions: int = 16, warm_up: int = 25
    ) -> None:
        """Wrap the router ``within``.

        ``dimensions`` is r, the length of a prompt's vector. ``warm_up`` is the number of prompts on which a draft must
        be judged before its estimate counts; until then the candidates take turns.
        """
        self.within, self._costs, self._by, self._warm_up = within, costs, by, warm_up
        self._dimensions = dimensions
        self.reads_perplexity = EXPECT[by] != "gain"
        """Whether it wants the prompt's perplexity, as the paper does.

        Beside the weights it added nothing, and computing it takes some 3 % of a short request.
        """
        self._learning = threading.Lock()
        self._prompts = Prompts(costs, dimensions, EXPECT[by], self._learning)
        self._hedges: dict[str, Hedge] = {}
        self._asked: OrderedDict[str, Asked] = OrderedDict()
        self.keeper: Closing | None = None
        """Saves the state for later processes."""

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
        asked = Asked(request.prompt_tokens, request.learn, perplexity, decision.name, drafts)
        leader = self._leader(decision.name, drafts)
        estimates = () if leader else self._prompts.look(asked)
        asked.draft, why = self._decide(drafts, leader, asked.followed)
        self._remember(request.id, asked)
        reason = f"{decision.reason}; {asked.draft}: {why}"
        return replace(decision, chosen=asked.draft, estimates=estimates, reason=reason)

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """Learn about the draft that served, if it was the one chosen. See :meth:`router.base.Router.observe`."""
        self.within.observe(request, decision, outcomes)
        asked = self._asked.get(request.id)
        if asked is None:
            return
        accepted = sum(outcome.accepted for outcome in outcomes)
        judged = accepted + sum(outcome.rejections for outcome in outcomes)
        self._prompts.judge(asked, TextScore(accepted / max(1, judged), judged))
        if self._unjudged(asked.drafts):  # decides whose turn is next
            self._prompts.catch_up()

    def scored(self, request_id: str, seen: Mapping[str, TextScore]) -> None:
        """Learn from each draft's score on a request's verified text; the draft that served is known already."""
        asked = self._asked.pop(request_id, None)
        costs = {draft: cost for draft in seen if (cost := self._costs(draft)) is not None}
        if asked is None or not costs or any(seen[draft].judged <= 0 for draft in costs):
            return
        self._prompts.compare(asked, seen, costs)
        lost = dict(zip(costs, losses([seen[d] for d in costs], list(costs.values())), strict=True))
        if asked.followed in lost:
            lost[FOLLOW] = lost[asked.followed]
        with self._learning:
            self._hedges.setdefault(asked.route, Hedge()).learn(lost)

    @property
    def learned(self) -> int:
        """Number of texts and outcomes learned from. May be read by another thread."""
        return self._prompts.learned + sum(one.seen for one in self._hedges.copy().values())

    def state(self) -> dict[str, Any]:
        """Return what was learned, for JSON. May be called by another thread."""
        with self._learning:
            return {
                "format": FORMAT, "dimensions": self._dimensions, "perplexity": self.reads_perplexity,
                **self._prompts.state(), "routes": {route: one.state() for route, one in self._hedges.items()},
            }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, before the first request.

        Raises ValueError for a state of other settings or of another format.
        """
        given = state["format"], state["dimensions"], state["perplexity"]
        if given != (FORMAT, self._dimensions, self.reads_perplexity):
            raise ValueError(f"format, dimensions and perplexity are {given}")
        hedges = {str(route): Hedge() for route in state["routes"]}
        for name, weights in hedges.items():
            weights.restore(state["routes"][name])
        self._prompts.restore(state)
        self._hedges = hedges

    def close(self) -> None:
        """Save what was learned, and end the inner router's thread, if it has one."""
        self._prompts.catch_up()
        if self.keeper is not None:
            self.keeper.close()
        if close := getattr(self.within, "close", None):
            close()

    def weights(self, route: str) -> dict[str, float]:
        """Return the weight of each draft on a route (and of following the prompt, under ``""``)."""
        return self._hedges[route].weights() if route in self._hedges else {}

    def _leader(self, route: str, drafts: Sequence[str]) -> str | None:
        """Return the draft that the weights choose; None to follow the prompt, or while a draft is still unjudged."""
        weights = self.weights(route)
        if EXPECT[self._by] != "gain" or not weights or self._unjudged(drafts):
            return None
        ways = [*drafts, FOLLOW] if self._by == "both" else list(drafts)
        return max(ways, key=lambda one: weights.get(one, 0.0)) or None

    def _unjudged(self, drafts: Sequence[str]) -> str | None:
        """Return the draft judged on the fewest prompts, if that is too few."""
        least = min(drafts, key=self._prompts.seen)
        return least if self._prompts.seen(least) < self._warm_up else None

    def _decide(self, drafts: Sequence[str], leader: str | None, followed: str) -> tuple[str, str]:
        if leader:
            return leader, "best on this route"
        least = self._unjudged(drafts)
        return (least, "in turn, to be judged") if least else (followed, "expected of the prompt")

    def _remember(self, request_id: str, asked: Asked) -> None:
        self._asked[request_id] = asked
        if len(self._asked) > PENDING:
            self._asked.popitem(last=False)
