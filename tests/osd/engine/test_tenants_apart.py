"""What one tenant was answered leaves no trace in another's answers: same tokens, same rounds, asked before or not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from osd.drafters.ngram.tables import Tables
from osd.engine.engine import Engine
from osd.engine.session import proposer_of
from osd.gamma.base import CostModel
from osd.models.model import TextDraft
from osd.models.pair import Pair
from osd.models.target_only import NullModel
from osd.sequence import Completion
from storage.records import Request
from storage.sampling import Sampling
from storage.settings import Settings
from storage.store import open_store
from tests.osd.drafters.test_universal import TOKENIZERS
from tests.support.features import feature_pair
from tests.support.models import VOCABULARY, model_of, random_module, random_pair
from tests.support.params import some_of
from tests.support.settings import settings_of
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("compiled")
Prompts = Sequence[tuple[int, ...]]
Answers = list[tuple[object, ...]]


def universal_pair() -> Pair:
    """A target, and a draft that has other tokens."""
    ours, theirs = TOKENIZERS["bytes"], TOKENIZERS["others"]
    target, draft = (model_of(random_module("llama", i, len(t))) for i, t in enumerate((ours, theirs)))
    return Pair(target, NullModel(target.device), ours, frozenset(), TextDraft(draft, theirs, frozenset()))


DRAFTERS: dict[str, tuple[str, Callable[[], Pair]]] = {
    "trigram": ("trigram", random_pair),
    "blended": ("blended", random_pair),
    "lookup": ("lookup", random_pair),
    "causal": ("causal", random_pair),
    "universal": ("universal", universal_pair),
    "medusa": ("tree", lambda: feature_pair("medusa")),
    "eagle": ("tree", lambda: feature_pair("eagle")),
    "eagle3": ("tree", lambda: feature_pair("eagle3")),
    "eagle3 in chains": ("causal", lambda: feature_pair("eagle3")),
}
RULES = ("goodput", "analytic", "q_learning", "moving_average")


@pytest.fixture
def held_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes take what they took first, whoever asked: 10 ms, and 0.4 ms a token; 2.5 ms to draft one."""
    monkeypatch.setattr("osd.models.device_timer.busy_seconds", float)
    for name in ("observe_draft", "observe_verify", "forget_verifying"):  # a pass that is compiled by then is quicker
        monkeypatch.setattr(CostModel, name, lambda *_: None)


def held(costs: CostModel) -> None:
    for rows in (1, 4):
        for tokens in (1, 2, 5, 16):
            costs.probe_verify(rows, rows * tokens, 10 + 0.4 * rows * tokens, 0.01, 60)
        for passes in (1, 4):
            costs.probe_draft(rows, passes, 0, 2.5 * passes, 0.01)


def texts(seed: int) -> tuple[Prompts, Prompts]:
    """What A asks and what B asks: B knows half of A's prompts, whole or to their last block."""
    chance = random.Random(seed)
    first = [tuple(chance.randrange(2, VOCABULARY) for _ in range(chance.randint(36, 80))) for _ in range(6)]
    fresh = [tuple(chance.randrange(2, VOCABULARY) for _ in range(chance.randint(2, 80))) for _ in range(2)]
    return first, [first[0], first[1][:-3] + first[2][:5], *fresh, first[3]]


def answers(engine: Engine, tenant: str, asked: Prompts, sampled: bool) -> Answers:
    """Everything of a tenant's answers that does not tell the time. One after another, then two at once."""
    table = engine.drafting.__dict__.get("proposer")
    if isinstance(table, Tables):
        until(lambda: table._consent.of(tenant), "the tenant is known")
        until(lambda: table._drafter(("default", "" if table._shares else tenant)), "its table is there")
    hot = Sampling(0.8, seed=3) if sampled else Sampling(0.0)
    requests = [Request(prompt, 24, hot, tenant=tenant, ignore_eos=True) for prompt in asked]
    done: list[Completion] = []
    for request in requests[:-2]:
        done += engine.run([request])
    pair = {each.request.id: each for each in engine.run(requests[-2:])}
    done += [pair[request.id] for request in requests[-2:]]
    return [
        (each.tokens, each.finish_reason, [(r.gamma, r.drafted, r.accepted, r.emitted, r.depth) for r in each.rounds])
        for each in done
    ]


def asked_of_b(pair: Pair, settings: Settings, folder: Path, before: Prompts, asked: Prompts, sampled: bool) -> Answers:
    """B's answers from a server that has just begun, where A has asked ``before``."""
    own = settings.changed(storage={"directory": folder})
    with open_store(own) as store, proposer_of(pair, own, store) as proposer:
        engine = Engine(pair, own, proposer=proposer)
        held(engine.costs)
        if before:
            answers(engine, "A", before, sampled)
            answers(engine, "A", before, sampled)
        return answers(engine, "B", asked, sampled)


def settings_for(kind: str, prefix_mb: int = 64, **more: Any) -> Settings:
    return settings_of(
        serve__max_batch=4, serve__max_length=160, serve__prefix_cache_mb=prefix_mb, drafters__kind=kind,
        ngram__memory_mb=2, **more,
    )  # fmt: skip


@pytest.mark.parametrize("prefix_mb", some_of([0, 64], 64), ids=["no prefixes", "prefixes"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_what_another_tenant_was_answered_shows_nowhere(
    tmp_path: Path, held_times: None, name: str, prefix_mb: int
) -> None:
    kind, make = DRAFTERS[name]
    settings = settings_for(kind, prefix_mb)
    for seed in range(2):
        first, asked = texts(seed)
        told = make(), settings
        plain = asked_of_b(*told, tmp_path / f"{seed}", (), asked, seed == 1)
        assert asked_of_b(*told, tmp_path / f"{seed} after A", first, asked, seed == 1) == plain
        assert kind == "universal" or any(r[1] for each in plain for r in each[2])  # type: ignore[attr-defined]


@pytest.mark.parametrize("rule", RULES[1:])
def test_nor_by_another_rule_of_gamma(tmp_path: Path, held_times: None, rule: str) -> None:
    settings = settings_for("causal", gamma__rule=rule)
    first, asked = texts(3)
    plain = asked_of_b(random_pair(), settings, tmp_path / "plain", (), asked, False)
    assert asked_of_b(random_pair(), settings, tmp_path / "after A", first, asked, False) == plain


def test_where_tables_are_shared_another_tenants_answer_is_read_as_the_setting_says(
    tmp_path: Path, held_times: None
) -> None:
    settings = settings_for("trigram", privacy__share_tables=True)
    first, asked = texts(0)
    plain = asked_of_b(random_pair(), settings, tmp_path / "plain", (), asked, False)
    after = asked_of_b(random_pair(), settings, tmp_path / "after A", first, asked, False)
    assert [each[0] for each in after] == [each[0] for each in plain] and after != plain


@pytest.mark.usefixtures("held_times")
def test_several_tenants_of_one_batch_are_planned_together() -> None:
    engine = Engine(random_pair(), settings_for("causal"))
    held(engine.costs)
    asked = [
        Request(prompt, 16, tenant=name, ignore_eos=True) for prompt, name in zip(texts(0)[0], "ABCB", strict=False)
    ]
    for request in asked:
        engine.submit(request)
    planned: list[int] = []
    while engine.busy:
        engine.step()
        own = {id(row.controller) for row in engine.rows}
        planned.append(len({id(each) for each in engine.planner._plans.values()}))
        assert len(engine.rows) < 4 or len(own) == 3
    assert {0, *planned} == {0, 1}  # one plans for all: together they pay for a pass
