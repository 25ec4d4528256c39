"""The choice among drafts: paper's rule, full information, and both."""

from __future__ import annotations

import random
from pathlib import Path
from typing import get_args

import pytest

from router import draft_predictor
from router.auto import AutoRouter, By
from router.fixed import FixedRouter
from router.throughput import Costs, TextScore
from storage.records import Outcome, Request, Route
from storage.settings import RouterSettings

VERIFY_MS = [3.2 + 0.12 * g for g in range(13)]
COSTS = {"small": Costs(0.5, VERIFY_MS), "large": Costs(1.0, VERIFY_MS)}
KINDS = {"chat": ([1, 2, 3, 4], {"small": 0.6, "large": 0.62}), "law": ([50, 60, 70, 80], {"small": 0.1, "large": 0.8})}


def make(by: By, routes: tuple[str, ...] = ("default",), folder: Path | None = None) -> AutoRouter:
    fixed = FixedRouter([Route(name, "small", candidates=("large",)) for name in routes])
    return AutoRouter(fixed, COSTS.get, RouterSettings(choose_by=by), folder)


def outcome(draft: str, alpha: float, request: Request, judged: int = 60) -> Outcome:
    accepted = round(alpha * judged)
    return Outcome(
        request_id=request.id, route="default", tenant="default", draft_version=draft, controller="fixed",
        finished_at=0.0, requests=1, rounds=20, drafted=80, accepted=accepted, rejections=judged - accepted, emitted=60,
        prompt_tokens=4, draft_ms=1.0, verify_ms=1.0,
    )  # fmt: skip


def serve(router: AutoRouter, kind: str, *, score: bool, route: str | None = None, seed: int = 0) -> str:
    """One request of a kind; the draft that was chosen."""
    tokens, alphas = KINDS[kind]
    chance = random.Random(seed)
    request = Request((*tokens, chance.randrange(100, 200)), route=route)
    decision = router.choose(request, router.route(request), 20.0)
    router.observe(request, decision, [outcome(decision.draft, alphas[decision.draft], request)])
    if score:
        router.scored(request.id, {draft: TextScore(alpha, 60) for draft, alpha in alphas.items()})
    return decision.draft


@pytest.mark.parametrize("score", [True, False])
@pytest.mark.parametrize("by", get_args(By))
def test_each_kind_of_prompt_gets_the_draft_that_is_faster_for_it(by: By, score: bool) -> None:
    """By weights that needs a route for each kind; without scored texts the prompt's prediction decides."""
    router = make(by, tuple(KINDS))
    for i in range(120):
        kind = list(KINDS)[i % 2]
        serve(router, kind, score=score, route=kind, seed=i)
    assert {kind: serve(router, kind, score=score, route=kind) for kind in KINDS} == {"chat": "small", "law": "large"}


def test_on_one_route_both_follows_the_prompt_where_the_drafts_alone_cannot_tell() -> None:
    router = make("both")
    for i in range(200):
        serve(router, list(KINDS)[i % 2], score=True, seed=i)
    assert {kind: serve(router, kind, score=True) for kind in KINDS} == {"chat": "small", "law": "large"}
    assert router.weights("default")[""] > 0.5


def test_candidates_take_turns_until_they_are_judged() -> None:
    router = make("prompt")
    taken = [serve(router, "chat", score=False, seed=i) for i in range(50)]
    assert taken.count("small") == taken.count("large") == 25


def test_it_says_what_it_expected_and_why() -> None:
    router = make("prompt")
    for i in range(60):
        serve(router, "law", score=True, seed=i)
    request = Request(tuple(KINDS["law"][0]))
    decision = router.choose(request, router.route(request), 20.0)
    expected = {estimate.draft: estimate.alpha for estimate in decision.estimates}
    assert expected["large"] == pytest.approx(0.8, abs=0.05)
    assert expected["small"] == pytest.approx(0.1, abs=0.05)
    assert decision.draft == "large"
    assert "large: expected of the prompt" in decision.reason


def test_a_route_with_one_draft_is_left_as_it_is() -> None:
    router = AutoRouter(FixedRouter(), COSTS.get)
    decision = router.route(Request((1,)))
    assert router.choose(Request((1,)), decision, None) is decision


def test_it_follows_a_draft_that_has_learned() -> None:
    router = make("both", ("law",))
    for i in range(60):
        serve(router, "law", score=True, route="law", seed=i)
    assert serve(router, "law", score=True, route="law") == "large"
    before, KINDS["law"] = KINDS["law"], (KINDS["law"][0], {"small": 0.85, "large": 0.8})
    try:
        taken = [serve(router, "law", score=True, route="law", seed=i) for i in range(60)]
    finally:
        KINDS["law"] = before
    assert taken[-1] == "small"


def test_before_costs_are_known_the_routes_own_draft_serves() -> None:
    fixed = FixedRouter([Route("default", "small", candidates=("large",))])
    router = AutoRouter(fixed, lambda _: None, RouterSettings(choose_warm_up=0))
    request = Request((1, 2))
    assert router.choose(request, router.route(request), None).draft == "small"


def test_what_is_never_scored_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.auto.PENDING", 40)
    router = make("both")
    for i in range(60):
        router.choose(request := Request((i % 50,)), router.route(request), None)
    assert len(router._pending) == 40


def test_a_prompt_is_not_looked_at_where_the_weights_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is learned from all the same, later: after as many requests the same is known, but for the order."""
    seen: dict[int, dict[str, int]] = {}
    for later in (1, draft_predictor.TOGETHER):
        monkeypatch.setattr(draft_predictor, "TOGETHER", later)
        router = make("both", tuple(KINDS))
        taken = [serve(router, "law", score=i < 60, route="law", seed=i) for i in range(90)]
        assert set(taken[60:]) == {"large"}
        request = Request(tuple(KINDS["law"][0]), route="law")
        decision = router.choose(request, router.route(request), 20.0)
        assert decision.estimates == () and "large: best on this route" in decision.reason
        router.close()
        assert sum(bool(pending.tokens) for pending in router._pending.values()) == 1, "the others are let go"
        seen[later] = {draft: router._predictors.seen(draft) for draft in COSTS}
        alphas = {each.draft: each.alpha for each in router._predictors.estimates(router._pending[request.id])}
        assert alphas == {"small": pytest.approx(0.1, abs=0.02), "large": pytest.approx(0.8, abs=0.02)}
    assert seen[1] == seen[draft_predictor.TOGETHER] == {"small": 60, "large": 90}
