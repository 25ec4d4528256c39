"""A target alone: every drafter that needs no model drafts for it, the others say that they need one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osd.engine.engine import Engine
from osd.engine.session import serving
from osd.models.needs_draft import NeedsDraft
from osd.models.pair import Pair
from osd.models.target_only import NullModel, load_alone
from osd.prompts import encode
from osd.server.start import SHIPPED, choose_pair
from storage.errors import BadSetting
from storage.records import Request
from storage.sampling import Sampling
from storage.settings import Settings
from storage.store import open_store
from tests.support.models import alone, prompts, random_pair
from tests.support.settings import changed, settings_of

BASE = settings_of(serve__max_batch=3, serve__max_length=96, gamma__rule="fixed", gamma__initial=4, gamma__max=6)


@pytest.fixture(scope="module")
def target() -> Pair:
    both = random_pair("llama")
    return replace(both, draft=NullModel(both.device))


@pytest.mark.parametrize("drafter", ("trigram", "lookup"))
@pytest.mark.parametrize("gamma", ["fixed", "analytic", "goodput"])
def test_the_text_is_the_targets_in_ragged_batches(target: Pair, drafter: str, gamma: str) -> None:
    engine = Engine(target, changed(BASE, drafters__kind=drafter, gamma__rule=gamma))
    asked = [Request(p * 2, max_new_tokens=12 + i) for _ in range(2) for i, p in enumerate(prompts(5, seed=5))]
    done = {c.request.id: c for c in engine.run(asked)}
    for request in asked:
        expected = alone(target.target.module, request.prompt_tokens, request.max_new_tokens)
        assert list(done[request.id].tokens) == expected
    rounds = [r for completion in done.values() for r in completion.rounds]
    assert {r.draft_version for r in rounds} == {drafter}
    assert gamma != "fixed" or any(r.accepted for r in rounds)
    assert [m.weight_bytes + m.cache_bytes for m in engine.draft_manager.memory().values()] == [0]


def test_sampled_texts_and_cancelled_rows(target: Pair) -> None:
    engine = Engine(target, changed(BASE, drafters__kind="trigram"))
    asked = [Request(p * 2, max_new_tokens=20, sampling=Sampling(0.9, seed=i)) for i, p in enumerate(prompts(4))]
    for request in asked[:3]:
        engine.submit(request)
    engine.step()
    assert engine.cancel(asked[1].id)
    done = list(engine.run(asked[3:]))
    assert sorted(len(c.tokens) for c in done if c.finish_reason == "length") == [20, 20, 20]
    assert not engine.pool.default.body.rows


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        ({"drafters__kind": "causal"}, "drafters.kind = causal"),
        ({"gamma__rule": "specdecpp"}, "gamma.rule = specdecpp"),
        ({"gamma__specdecpp__head": Path("head")}, "gamma.specdecpp.head"),
    ],
)  # fmt: skip
def test_what_needs_a_draft_model_says_so(target: Pair, wanted: dict[str, Any], what: str) -> None:
    with pytest.raises(NeedsDraft, match=f"{what} needs a draft model"):
        Engine(target, changed(BASE, **{"drafters__kind": "trigram"} | wanted))
    with pytest.raises(NeedsDraft):
        _ = target.draft.module


def test_a_command_that_needs_both_asks_for_the_draft() -> None:
    serve = Settings().serve
    assert choose_pair(serve, "t", drafter="lookup").draft == ""
    for make in (
        lambda: choose_pair(serve, "t"), lambda: choose_pair(serve, "t", drafter="causal"),
        lambda: choose_pair(serve, None, "d", drafter="lookup"),
    ):  # fmt: skip
        refused(make)
    with pytest.raises(BadSetting, match=r"\(trigram, lookup\)"):
        choose_pair(serve, "t", drafter="blended")


def refused(make: Callable[[], object]) -> None:
    with pytest.raises(BadSetting, match="is named without a"):
        make()


def test_in_the_circle_requests_are_kept_and_no_draft_is_entered(tmp_path: Path) -> None:
    """Over a store: what was served is kept with who drafted it, the table as a version, and nothing as a draft."""
    pair = load_alone(SHIPPED / "target")
    settings = settings_of(
        storage__directory=tmp_path / "data", storage__holdout=0.0, storage__flush_requests=1, serve__max_batch=2,
        drafters__kind="trigram", gamma__rule="fixed", gamma__initial=6, ngram__memory_mb=4,
    )  # fmt: skip
    asked = [Request(tuple(encode(pair.tokenizer, "SELECT all users")), 24) for _ in range(4)]
    with open_store(settings) as store:
        with serving(pair, settings, store) as engine:
            assert engine.swap is None and engine.heads is None
            texts = [c.tokens for c in engine.run(asked)]
        assert texts == [tuple(alone(pair.target.module, asked[0].prompt_tokens, 24, eos=next(iter(pair.eos_ids))))] * 4
        kept = list(store.samples.read(store.samples.recent(limit=9)))
        assert len(kept) == 4 and {version.draft for version in store.versions.list()} <= {"ngram"}
