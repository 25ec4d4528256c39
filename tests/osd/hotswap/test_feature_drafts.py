"""Feature drafts of a store: number 0 made for a target, newer versions taken while serving, and those refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from osd.attached.follower import servable_folder
from osd.engine.engine import Engine
from osd.engine.session import serving
from osd.hotswap.drafts import Swap
from osd.hotswap.export import export
from osd.hotswap.new_draft import new_feature_version
from osd.models.features.base import FeatureDraftMismatch
from osd.models.features.decoder import FeatureModel, feature_target
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.new import KINDS
from osd.models.pair import Pair, load_pair
from osd.server.start import PairNames, draft_in_store
from storage.records import DraftVersion, Request, Route, VersionState
from storage.settings import Settings, load_settings
from storage.store import Store
from tests.support.features import trained
from tests.support.models import alone, noisy, prompts, random_module
from tests.support.params import some_of
from tests.support.settings import changed

TRAINED = {"command": "test"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    serve = {"max_batch": 3, "max_length": 96, "swap_poll_seconds": 0.05, "device": "cpu"}
    gamma = {"rule": "fixed", "initial": 3}
    return load_settings(
        storage={"directory": tmp_path / "data"}, serve=serve, gamma=gamma, drafters={"kind": "tree", "tree_nodes": 9}
    )


def pair_of(store: Store, folder: Path, kind: str) -> Pair:
    """A target's folder, and a draft of random weights for it, as `osd serve` loads them by the draft's name."""
    random_module("llama").save_pretrained(folder / "target")
    new_feature_version(store, "default", str(folder / "target"), kind)  # type: ignore[arg-type]
    names = draft_in_store(PairNames(str(folder / "target"), "default"), store)
    return load_pair(names.target, names.draft, device="cpu")


def stage(store: Store, parent: DraftVersion, pair: Pair, draft: Any) -> DraftVersion:
    read = feature_target(pair.target)
    return store.versions.stage(
        parent.draft, parent.id, draft.kind, lambda folder: save_feature_draft(draft, folder, read), provenance=TRAINED
    )


def accepted(engine: Engine, count: int = 24) -> tuple[float, set[str]]:
    done = list(engine.run([Request(p, max_new_tokens=count) for p in prompts(4, seed=30)]))
    for c in done:
        assert list(c.tokens) == alone(engine.pair.target.module, c.request.prompt_tokens, count)
    rounds = [r for c in done for r in c.rounds]
    return sum(r.accepted for r in rounds) / len(rounds), {r.draft_version for r in rounds}


@pytest.mark.parametrize("kind", some_of(KINDS, "eagle3"))
def test_a_newer_version_takes_over_and_gives_back(kind: str, store: Store, settings: Settings, tmp_path: Path) -> None:
    pair = pair_of(store, tmp_path, kind)
    swap = Swap(store, "default", pair, settings, "test")
    swap.close()
    engine, root = Engine(pair, settings, swap=swap), store.versions.current("default")
    assert (root.kind, root.number) == (kind, 0) and isinstance(pair.draft, FeatureModel)
    before, versions = accepted(engine)
    assert versions == {root.id}
    better = store.versions.promote(stage(store, root, pair, trained(kind, pair.target)).id)
    engine.submit(Request(prompts(1)[0], max_new_tokens=24))
    for _ in range(3):
        engine.step()
    swap._poll()
    (lived,) = engine.run([])
    assert list(lived.tokens) == alone(pair.target.module, lived.request.prompt_tokens, 24)
    assert {r.draft_version for r in lived.rounds} == {root.id, better.id}
    after, versions = accepted(engine)
    assert versions == {better.id} and after != before
    assert [(name, one.kind) for name, one in engine.draft_manager.memory().items()] == [("default", kind)]
    assert store.versions.rollback("default", "test").id == root.id
    swap._poll()
    assert accepted(engine) == (before, {root.id})


def test_a_session_records_and_serves_a_route_of_its_own(store: Store, settings: Settings, tmp_path: Path) -> None:
    """A draft of another kind serves a second route, and what was served is kept as ever."""
    pair = pair_of(store, tmp_path, "eagle")
    new_feature_version(store, "other", str(tmp_path / "target"), "medusa")
    store.routes.add(Route("second", "other", {"tenant": ["two"]}))
    with serving(pair, settings, store) as engine:
        while "other" not in engine.pool.loaded_drafts:
            engine.step()
        asked = [Request(p, max_new_tokens=12, tenant=("one", "two")[i % 2]) for i, p in enumerate(prompts(8))]
        done = list(engine.run(asked))
    for c in done:
        assert list(c.tokens) == alone(pair.target.module, c.request.prompt_tokens, 12)
        kinds = {store.versions.get(each.draft_version).kind for each in c.rounds}
        assert kinds == {"medusa" if c.request.tenant == "two" else "eagle"}
    assert len(store.samples.read([c.request.id for c in done])) == len(done)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_of_a_feature_draft_has_its_files(kind: str, store: Store, tmp_path: Path) -> None:
    from storage.versions.forks import fork

    pair_of(store, tmp_path, kind)
    root = store.versions.current("default")
    twin = fork(store.versions, "twin", root.id)
    assert (twin.kind, twin.digest, twin.number) == (kind, root.digest, 0)


def test_a_damaged_version_is_quarantined_and_the_old_one_serves(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    pair = pair_of(store, tmp_path, "eagle")
    swap = Swap(store, "default", pair, settings, "test")
    swap.close()
    engine, root = Engine(pair, settings, swap=swap), store.versions.current("default")
    other = feature_target(pair.target)

    def write(folder: Path) -> None:
        save_feature_draft(trained("eagle", pair.target, steps=0), folder, other)
        facts = json.loads((folder / "config.json").read_text()) | {"hidden_size": 64}
        (folder / "config.json").write_text(json.dumps(facts))

    bad = store.versions.promote(store.versions.stage("default", root.id, "eagle", write, provenance=TRAINED).id)
    swap._poll()
    assert not swap.ready and store.versions.get(bad.id).state is VersionState.QUARANTINED
    assert accepted(engine)[1] == {root.id}


def test_a_draft_of_another_target_is_refused_with_a_sentence(store: Store, settings: Settings, tmp_path: Path) -> None:
    pair = pair_of(store, tmp_path, "eagle")
    noisy(pair.target.module, 0.1).save_pretrained(tmp_path / "another")
    with pytest.raises(FeatureDraftMismatch, match="made for the target with the digest"):
        load_pair(tmp_path / "another", pair.draft.name, device="cpu")
    chains = changed(settings, drafters__kind="causal")
    assert accepted(Engine(pair, chains))[1] == {"unversioned"}


@pytest.mark.parametrize(("kind", "token_map", "name"), [
    ("medusa", None, "lm_heads.0.weight"), ("eagle", None, None), ("eagle3", [1, 4, 9], "lm_head.weight"),
    ("dflash", [1, 4, 9], "lm_head.weight"), ("peagle", None, None),
])  # fmt: skip
def test_engines_get_the_rows_of_the_output_layer_that_they_need(
    kind: str, token_map: list[int] | None, name: str | None, store: Store, tmp_path: Path
) -> None:
    """What is stored has none of them; exported or published, their loaders find all that they ask for."""
    pair = pair_of(store, tmp_path, kind)
    root = store.versions.current("default")
    version = stage(store, root, pair, trained(kind, pair.target, steps=1, token_map=token_map))
    stored, whole = store.versions.folder(version), servable_folder(store, version)
    export(store, version.id, tmp_path / "plain")
    weight = pair.target.module.lm_head.weight
    for folder in (whole, tmp_path / "plain"):
        tensors = load_file(folder / "model.safetensors")
        assert not any("embed_tokens" in each for each in tensors)
        if name is not None:
            assert torch.equal(tensors[name], weight if token_map is None else weight[token_map])
        ours, theirs = (load_feature_draft(each, feature_target(pair.target)) for each in (stored, folder))
        pairs = zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    assert (whole == stored) == (name is None)
    assert not any("lm_head" in each for each in load_file(stored / "model.safetensors"))
