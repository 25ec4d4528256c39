"""New weights for a running engine: taken between two steps, refused when damaged, and taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from osd.engine.engine import Engine
from osd.hotswap.drafts import Swap
from osd.hotswap.loader import Family, load_version
from osd.models.pair import Pair
from storage.records import DraftVersion, Request, VersionState
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.support.models import alone, model_of, noisy, prompts, random_module

TRAINED = {"command": "test"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    serve = {"max_batch": 2, "max_length": 96, "swap_poll_seconds": 0.05}
    gamma = {"rule": "fixed", "initial": 3}
    return load_settings(storage={"directory": tmp_path / "data"}, serve=serve, gamma=gamma)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    target = random_module("llama")
    bad = noisy(target, 3.0)
    bad.save_pretrained(tmp_path / "draft")
    return Pair(model_of(target), model_of(bad, str(tmp_path / "draft")), None, frozenset())


def stage(store: Store, parent: DraftVersion, module: Any, kind: str = "full") -> DraftVersion:
    return store.versions.stage("default", parent.id, kind, module.save_pretrained, run_id=None, provenance=TRAINED)


def open_swap(store: Store, settings: Settings, pair: Pair) -> Swap:
    swap = Swap(store, "default", pair, settings, "test")
    swap.close()  # the tests look by hand, so that nothing hangs on timing
    return swap


def agreement(engine: Engine, count: int = 30) -> tuple[float, set[str]]:
    done = list(engine.run([Request(p, max_new_tokens=count) for p in prompts(3, seed=30)]))
    for c in done:
        assert list(c.tokens) == alone(engine.pair.target.module, c.request.prompt_tokens, count)
    rounds = [r for c in done for r in c.rounds]
    return sum(r.accepted for r in rounds) / sum(r.drafted for r in rounds), {r.draft_version for r in rounds}


def test_a_better_version_takes_over_and_its_outcomes_carry_its_name(
    store: Store, settings: Settings, pair: Pair
) -> None:
    swap = open_swap(store, settings, pair)
    engine = Engine(pair, settings, swap=swap)
    root = store.versions.current("default")
    before, versions = agreement(engine)
    assert versions == {root.id}
    better = store.versions.promote(stage(store, root, pair.target.module).id)
    swap._poll()
    assert swap.ready and swap.version == root.id  # nothing changes before a step takes it
    after, versions = agreement(engine)
    assert versions == {better.id} and after == 1.0 > before
    assert len(engine.stats.swap_pause_ms) == 1
    swap._poll()
    assert store.versions.get(better.id).state is VersionState.SERVING
    back = store.versions.rollback("default", "test")
    assert back.id == root.id
    swap._poll()
    assert agreement(engine) == (before, {root.id})


def test_a_request_that_lives_through_a_swap_leaves_an_outcome_a_version(
    store: Store, settings: Settings, pair: Pair
) -> None:
    swap = open_swap(store, settings, pair)
    engine = Engine(pair, settings, swap=swap)
    root = store.versions.current("default")
    request = Request(prompts(1)[0], max_new_tokens=30)
    engine.submit(request)
    for _ in range(3):
        engine.step()
    better = store.versions.promote(stage(store, root, pair.target.module).id)
    swap._poll()
    (done,) = engine.run([])
    assert list(done.tokens) == alone(pair.target.module, request.prompt_tokens, 30)
    assert [(o.draft_version, o.requests) for o in done.outcomes] == [(root.id, 0), (better.id, 1)]
    assert sum(o.emitted for o in done.outcomes) == 30


def test_damaged_weights_are_refused_by_digest_and_the_old_version_serves(
    store: Store, settings: Settings, pair: Pair
) -> None:
    swap = open_swap(store, settings, pair)
    engine = Engine(pair, settings, swap=swap)
    root = store.versions.current("default")
    damaged = store.versions.promote(stage(store, root, pair.target.module).id)
    weights = store.versions.folder(damaged) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1  # one bit
    weights.write_bytes(content)
    swap._poll()
    assert not swap.ready
    assert store.versions.get(damaged.id).state is VersionState.QUARANTINED
    assert store.versions.current("default").id == root.id
    assert agreement(engine)[1] == {root.id}


def broken(module: Any) -> Any:
    """A copy whose files are whole and whose logits are not numbers."""
    other = noisy(module, 0.0)
    other.model.layers[0].mlp.down_proj.weight.fill_(float("nan"))
    return other


def test_a_version_that_gives_no_numbers_is_quarantined_and_says_so_and_the_old_one_serves(
    store: Store, settings: Settings, pair: Pair
) -> None:
    swap = open_swap(store, settings, pair)
    engine = Engine(pair, settings, swap=swap)
    root = store.versions.current("default")
    bad = store.versions.promote(stage(store, root, broken(pair.target.module)).id)
    swap._poll()
    assert not swap.ready and "numbers that are not finite" in swap.troubles["default"]
    assert store.versions.get(bad.id).state is VersionState.QUARANTINED and store.versions.current("default") == root
    assert agreement(engine)[1] == {root.id}
    store.versions.promote(stage(store, root, pair.target.module).id)
    swap._poll()
    assert swap.ready and swap.troubles == {}


def test_a_version_that_finds_no_memory_is_refused_here_and_stays_what_it_was(
    store: Store, settings: Settings, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = open_swap(store, settings, pair)
    better = store.versions.promote(stage(store, store.versions.current("default"), pair.target.module).id)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr("osd.hotswap.loader.require_runs", full)
    swap._poll()
    assert not swap.ready and "out of memory" in swap.troubles["default"]
    assert store.versions.get(better.id).state is VersionState.READY


def test_a_server_that_cannot_use_the_current_version_starts_with_the_one_before(
    store: Store, settings: Settings, pair: Pair
) -> None:
    open_swap(store, settings, pair)
    better = store.versions.promote(stage(store, store.versions.current("default"), pair.target.module).id)
    store.versions.promote(stage(store, better, broken(pair.target.module)).id)
    engine = Engine(pair, settings, swap=open_swap(store, settings, pair))
    assert agreement(engine) == (1.0, {better.id})


def test_the_thread_finds_a_version_by_itself(store: Store, settings: Settings, pair: Pair) -> None:
    swap = Swap(store, "default", pair, settings, "test")
    engine = Engine(pair, settings, swap=swap)
    better = store.versions.promote(stage(store, store.versions.current("default"), pair.target.module).id)
    versions: set[str] = set()
    for _ in range(200):  # serving goes on meanwhile; far more rounds than the poll interval needs
        versions |= agreement(engine, 10)[1]
        if better.id in versions:
            break
    swap.close()
    assert better.id in versions


def test_a_restart_begins_with_the_version_that_served(store: Store, settings: Settings, pair: Pair) -> None:
    open_swap(store, settings, pair)
    better = store.versions.promote(stage(store, store.versions.current("default"), pair.target.module).id)
    engine = Engine(pair, settings, swap=open_swap(store, settings, pair))
    assert agreement(engine) == (1.0, {better.id})


def states(store: Store) -> list[str]:
    return [version.state.value for version in store.versions.list("default")]


def test_what_a_server_starts_with_is_serving(store: Store, settings: Settings, pair: Pair) -> None:
    swap = Swap(store, "default", pair, settings, "first")
    assert states(store) == ["serving"] and store.versions.serving() == {"first": swap.version}
    better = store.versions.promote(stage(store, store.versions.current("default"), pair.target.module).id)
    swap.close()  # before any step took the newer one
    assert states(store) == ["serving", "ready"] and store.versions.serving() == {}
    with_better = Swap(store, "default", pair, settings, "second")
    assert states(store) == ["retired", "serving"] and store.versions.serving() == {"second": better.id}
    assert with_better.ready and with_better.version == better.id
    with_better.close()


def test_a_version_taken_just_before_the_end_is_serving(store: Store, settings: Settings, pair: Pair) -> None:
    swap = open_swap(store, settings, pair)
    store.versions.promote(stage(store, store.versions.current("default"), pair.target.module).id)
    swap._poll()
    swap.take_loaded()
    assert states(store) == ["serving", "ready"]
    swap.close()
    assert states(store) == ["retired", "serving"]


def test_a_server_that_stayed_behind_serves_again_when_the_newer_version_is_taken_back(
    store: Store, settings: Settings, pair: Pair
) -> None:
    behind = open_swap(store, settings, pair)
    store.versions.promote(stage(store, store.versions.current("default"), pair.target.module).id)
    open_swap(store, settings, pair)  # another server takes it and ends
    assert states(store) == ["retired", "serving"]
    store.versions.rollback("default", "test")
    assert states(store) == ["ready", "rolled_back"]
    behind._poll()
    assert not behind.ready and states(store) == ["serving", "rolled_back"]


@torch.inference_mode()
def test_an_adapter_is_merged_into_the_weights_that_learning_started_from(
    store: Store, settings: Settings, pair: Pair
) -> None:
    open_swap(store, settings, pair)
    root = store.versions.current("default")
    adapted = get_peft_model(random_module("llama", seed=5), LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    version = stage(store, root, adapted, kind="lora")
    loaded = load_version(store, version, Family.of(pair.draft))
    tokens = torch.tensor([prompts(1, seed=1)[0]])
    with torch.inference_mode(False):
        base = random_module("llama")
        base.load_state_dict(pair.draft.module.state_dict())
        from peft import PeftModel

        expected = PeftModel.from_pretrained(base, store.versions.folder(version))
    ours, plain, root_logits = loaded(tokens).logits, expected(tokens).logits, pair.draft.module(tokens).logits
    assert torch.allclose(ours, plain, atol=1e-3 * plain.abs().max().item())
    assert not torch.allclose(ours, root_logits, atol=1e-2)
