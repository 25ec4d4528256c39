"""Chooses among a route's drafts by the throughput that each is expected to give.

    prompt ─> route (the router within) ─> what each candidate is expected to bring ─> the best one

Three ways to expect, by setting:

- ``prompt``: α̂ = uᵀ Ẑ from the prompt's vector, and the throughput that Eq. 3 makes of it (on-the-fly adaptation);
- ``weights``: exponential weights, by route, over what every draft scored on verified text (full information);
- ``both``: exponential weights over the drafts *and* over following the prompt's prediction, so that whichever way
  does better on a route is the one that decides there.

Texts that were scored with every draft teach all of it; a request that was not scored teaches least squares about the
draft that served it. Where the weights name a draft the prompt is not looked at before it is served: its vector is made
when it is learned from, in idle moments or for some requests in one go. All calls come from the decoding thread, but
for those that keep what was learned (:mod:`router.keeping`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from router.asking import Asked, CostsOf, Prompts
from router.base import Decision, Router
from router.foresight import TextScore, losses
from router.hedge import Hedge
from storage.records import Outcome, Request

By = Literal["prompt", "weights", "both"]

FOLLOW = ""
"""Among the weighted: following the prompt's prediction. No draft has this name."""
PENDING = 4096
"""Requests that are kept until they are scored."""

FORMAT = 1
"""Of the state; counted up when what is kept would mean something else."""


class Closing(Protocol):
    """Whoever keeps the state."""

    def close(self) -> None:
        """Keep it, and stop."""


class AutoRouter:
    """Routes as the router within does, then chooses the draft. See :class:`router.base.Router`."""

    def __init__(
        self, within: Router, costs: CostsOf, *, by: By = "both", dimensions: int = 16, warm_up: int = 25
    ) -> None:
        """``dimensions``: r of the prompt's vector. ``warm_up``: prompts that a draft is judged on before its
        estimate counts; until then the candidates take turns."""
        self.within, self._costs, self._by, self._warm_up = within, costs, by, warm_up
        self._dimensions = dimensions
        self.reads_perplexity = by == "prompt"
        """Whether it wants the prompt's perplexity, as the paper does; beside the weights it told no more, and reading
        it takes some 3 % of a short request."""
        self._learning = threading.Lock()
        self._prompts = Prompts(costs, dimensions, by == "prompt", self._learning)
        self._hedges: dict[str, Hedge] = {}
        self._asked: OrderedDict[str, Asked] = OrderedDict()
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
        asked = Asked(request.prompt_tokens, request.learn, perplexity, decision.name, drafts)
        leader = self._leader(decision.name, drafts)
        estimates = () if leader else self._prompts.look(asked)
        asked.draft, why = self._decide(drafts, leader, asked.followed)
        self._remember(request.id, asked)
        reason = f"{decision.reason}; {asked.draft}: {why}"
        return replace(decision, chosen=asked.draft, estimates=estimates, reason=reason)

    def observe(self, request: Request, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """See :meth:`router.base.Router.observe`. Teaches about the draft that served, where it was the one chosen."""
        self.within.observe(request, decision, outcomes)
        asked = self._asked.get(request.id)
        if asked is None:
            return
        accepted = sum(outcome.accepted for outcome in outcomes)
        judged = accepted + sum(outcome.rejections for outcome in outcomes)
        self._prompts.judge(asked, TextScore(accepted / max(1, judged), judged))
        if self._unjudged(asked.drafts):  # who is next hangs on it
            self._prompts.catch_up()

    def scored(self, request_id: str, seen: Mapping[str, TextScore]) -> None:
        """How each draft did on the verified text of a request. The one that served is known already."""
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
        """Texts and outcomes learned from. May be asked by another thread."""
        return self._prompts.learned + sum(one.seen for one in self._hedges.copy().values())

    def state(self) -> dict[str, Any]:
        """What was learned, for JSON. May be asked by another thread."""
        with self._learning:
            return {
                "format": FORMAT, "dimensions": self._dimensions, "perplexity": self.reads_perplexity,
                **self._prompts.state(), "routes": {route: one.state() for route, one in self._hedges.items()},
            }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`, before the first request. Raises ValueError for a state of other settings or of
        another format."""
        given = state["format"], state["dimensions"], state["perplexity"]
        if given != (FORMAT, self._dimensions, self.reads_perplexity):
            raise ValueError(f"format, dimensions and perplexity are {given}")
        hedges = {str(route): Hedge() for route in state["routes"]}
        for name, weights in hedges.items():
            weights.restore(state["routes"][name])
        self._prompts.restore(state)
        self._hedges = hedges

    def close(self) -> None:
        """Keep what was learned, and end the thread of the router within, if it has one."""
        self._prompts.catch_up()
        if self.keeper is not None:
            self.keeper.close()
        if close := getattr(self.within, "close", None):
            close()

    def weights(self, route: str) -> dict[str, float]:
        """The weight of each draft on a route (and of following the prompt, under ``""``)."""
        return self._hedges[route].weights() if route in self._hedges else {}

    def _leader(self, route: str, drafts: Sequence[str]) -> str | None:
        """The draft that the weights name; None where the prompt is to be asked, or somebody is to be judged still."""
        weights = self.weights(route)
        if self._by == "prompt" or not weights or self._unjudged(drafts):
            return None
        ways = [*drafts, FOLLOW] if self._by == "both" else list(drafts)
        return max(ways, key=lambda one: weights.get(one, 0.0)) or None

    def _unjudged(self, drafts: Sequence[str]) -> str | None:
        """Of drafts that were judged on too few prompts, the one with the fewest."""
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
