"""Chooses among a route's drafts by the throughput that each is expected to give.

    prompt ─> route (the router within) ─> what each candidate is expected to bring ─> the best one

Three ways to expect, by setting:

- ``prompt``: α̂ = uᵀ Ẑ from the prompt's vector, and the throughput that Eq. 3 makes of it (on-the-fly adaptation);
- ``weights``: exponential weights, by route, over what every draft scored on verified text (full information);
- ``both``: exponential weights over the drafts *and* over following the prompt's prediction, so that whichever way
  does better on a route is the one that decides there.

Texts that were scored with every draft teach all of it; a request that was not scored teaches least squares about the
draft that served it. All calls come from the decoding thread, but for those that keep what was learned
(:mod:`router.keeping`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from router.base import Decision, Estimate, Router
from router.foresight import Foresight, Seen, losses
from router.hedge import Hedge
from router.prompt_vector import PromptVectors, Vector
from router.throughput import Costs, best_pace
from storage.records import Outcome, Request

By = Literal["prompt", "weights", "both"]
CostsOf = Callable[[str], Costs | None]
"""A draft's measured costs; None before they are known."""

FOLLOW = ""
"""Among the weighted: following the prompt's prediction. No draft has this name."""
PENDING = 4096
"""Requests whose vectors are kept until they are scored."""


FORMAT = 1
"""Of the state; counted up when what is kept would mean something else."""


class Closing(Protocol):
    """Whoever keeps the state."""

    def close(self) -> None:
        """Keep it, and stop."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was chosen for a request, until it is known how it went."""

    vector: Vector
    route: str
    draft: str
    followed: str
    """What the prompt's prediction said."""


class AutoRouter:
    """Routes as the router within does, then chooses the draft. See :class:`router.base.Router`."""

    def __init__(
        self, within: Router, costs: CostsOf, *, by: By = "both", dimensions: int = 16, warm_up: int = 25
    ) -> None:
        """``dimensions``: r of the prompt's vector. ``warm_up``: prompts that a draft is judged on before its
        estimate counts; until then the candidates take turns."""
        self.within, self._costs, self._by, self._warm_up = within, costs, by, warm_up
        self.reads_perplexity = by == "prompt"
        """Whether it wants the prompt's perplexity, as the paper does; beside the weights it told no more, and reading
        it takes some 3 % of a short request."""
        self._vectors, self._dimensions = PromptVectors(dimensions), dimensions
        self._foresight: dict[str, Foresight] = {}
        self._hedges: dict[str, Hedge] = {}
        self._asked: OrderedDict[str, Asked] = OrderedDict()
        self._learning = threading.Lock()
        self.keeper: Closing | None = None
        """Keeps the state beyond this process."""

    @property
    def reads_text(self) -> bool:
        """Whether the router within reads the prompt's text."""
        return bool(getattr(self.within, "reads_text", False))

    def route(self, request: Request) -> Decision:
        """The route. Its draft is chosen by :meth:`choose`, once the target has read the prompt."""
        return self.within.route(request)

    def choose(self, request: Request, decision: Decision, perplexity: float | None = None) -> Decision:
        """The draft for a request that was routed. ``perplexity``: of the prompt under the target."""
        drafts = decision.route.drafts
        if len(drafts) < 2:
            return decision
        vector = self._vectors.vector(request.prompt_tokens, perplexity)
        if request.learn:
            self._vectors.learn(request.prompt_tokens)
        estimates = tuple(self._estimate(draft, vector) for draft in drafts)
        followed = _fastest(estimates, drafts[0])
        chosen, why = self._decide(decision.name, drafts, followed)
        self._remember(request.id, Asked(vector, decision.name, chosen, followed))
        return replace(decision, chosen=chosen, estimates=estimates, reason=f"{decision.reason}; {chosen}: {why}")

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """See :meth:`router.base.Router.observe`. Teaches about the draft that served, where it was the one chosen."""
        self.within.observe(request, decision, outcomes)
        asked = self._asked.get(request.id)
        costs = self._costs(asked.draft) if asked else None
        if asked is None or costs is None:
            return
        accepted = sum(outcome.accepted for outcome in outcomes)
        judged = accepted + sum(outcome.rejections for outcome in outcomes)
        with self._learning:
            self._of(asked.draft).learn(asked.vector, Seen(accepted / max(1, judged), judged), costs)

    def scored(self, request_id: str, seen: Mapping[str, Seen]) -> None:
        """How each draft did on the verified text of a request. The one that served is known already."""
        asked = self._asked.pop(request_id, None)
        costs = {draft: cost for draft in seen if (cost := self._costs(draft)) is not None}
        if asked is None or not costs or any(seen[draft].judged <= 0 for draft in costs):
            return
        lost = dict(zip(costs, losses([seen[d] for d in costs], list(costs.values())), strict=True))
        if asked.followed in lost:
            lost[FOLLOW] = lost[asked.followed]
        with self._learning:
            for draft in costs:
                if draft != asked.draft:
                    self._of(draft).learn(asked.vector, seen[draft], costs[draft])
            self._hedges.setdefault(asked.route, Hedge()).learn(lost)

    @property
    def learned(self) -> int:
        """Texts and outcomes learned from. May be asked by another thread."""
        drafts, routes = self._foresight.copy().values(), self._hedges.copy().values()
        return sum(one.seen for one in drafts) + sum(one.seen for one in routes)

    def state(self) -> dict[str, Any]:
        """What was learned, for JSON. May be asked by another thread."""
        with self._learning:
            return {
                "format": FORMAT, "dimensions": self._dimensions, "perplexity": self.reads_perplexity,
                "prompts": self._vectors.state(),
                "drafts": {draft: one.state() for draft, one in self._foresight.items()},
                "routes": {route: one.state() for route, one in self._hedges.items()},
            }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`, before the first request. Raises ValueError for a state of other settings or of
        another format."""
        given = state["format"], state["dimensions"], state["perplexity"]
        if given != (FORMAT, self._dimensions, self.reads_perplexity):
            raise ValueError(f"format, dimensions and perplexity are {given}")
        vectors = PromptVectors(self._dimensions)
        vectors.restore(state["prompts"])
        foresight = {str(draft): Foresight(self._dimensions) for draft in state["drafts"]}
        hedges = {str(route): Hedge() for route in state["routes"]}
        for name, one in foresight.items():
            one.restore(state["drafts"][name])
        for name, weights in hedges.items():
            weights.restore(state["routes"][name])
        self._vectors, self._foresight, self._hedges = vectors, foresight, hedges

    def close(self) -> None:
        """Keep what was learned, and end the thread of the router within, if it has one."""
        if self.keeper is not None:
            self.keeper.close()
        if close := getattr(self.within, "close", None):
            close()

    def weights(self, route: str) -> dict[str, float]:
        """The weight of each draft on a route (and of following the prompt, under ``""``)."""
        return self._hedges[route].weights() if route in self._hedges else {}

    def _decide(self, route: str, drafts: Sequence[str], followed: str) -> tuple[str, str]:
        least = min(drafts, key=lambda draft: self._of(draft).seen)
        if self._of(least).seen < self._warm_up:
            return least, "in turn, to be judged"
        if self._by == "prompt":
            return followed, "expected of the prompt"
        weights = self.weights(route)
        ways = [*drafts, FOLLOW] if self._by == "both" else list(drafts)
        way = max(ways, key=lambda one: weights.get(one, 0.0))
        if not weights or way == FOLLOW:
            return followed, "expected of the prompt"
        return way, "best on this route"

    def _estimate(self, draft: str, vector: Vector) -> Estimate:
        alpha, gain = self._of(draft).predict(vector)
        costs = self._costs(draft)
        if costs is None:
            return Estimate(draft, alpha)
        if self._by == "prompt":
            return Estimate(draft, alpha, best_pace(alpha, costs).tokens_per_s)
        return Estimate(draft, alpha, 1e3 * gain / costs.verify_ms[0])

    def _of(self, draft: str) -> Foresight:
        return self._foresight.setdefault(draft, Foresight(self._dimensions))

    def _remember(self, request_id: str, asked: Asked) -> None:
        self._asked[request_id] = asked
        if len(self._asked) > PENDING:
            self._asked.popitem(last=False)


def _fastest(estimates: Sequence[Estimate], otherwise: str) -> str:
    """The draft of the highest expected throughput; ``otherwise`` while some cost is not known."""
    if any(estimate.tokens_per_s is None for estimate in estimates):
        return otherwise
    return max(estimates, key=lambda estimate: estimate.tokens_per_s or 0.0).draft
