"""Drafts on the Hub: what leaves the machine, what the card says, and a draft that comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from osd.hotswap.hub import live_acceptance, new_from_hub, push
from osd.hotswap.new_draft import new_feature_version, new_small_draft
from osd.models.model_digest import model_digest
from osd.models.pair import load_pair
from storage.errors import BadInput, HubRefused, OsdError
from storage.records import DraftVersion, RunState
from storage.runs import ClaimTerms
from storage.store import Store
from tests.osd.cli.conftest import outcome, samples
from tests.support.fake_hub import FakeHub, fake_hub, use_hub
from tests.support.models import random_module

REPO = "me/my-draft"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with fake_hub() as hub:
        use_hub(hub, tmp_path / "hub", monkeypatch)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        hub.token = "hf_secret"
        yield hub


@pytest.fixture
def target(tmp_path: Path) -> str:
    random_module("llama").save_pretrained(tmp_path / "secret-place" / "big-model")
    return str(tmp_path / "secret-place" / "big-model")


def learned(store: Store, root: DraftVersion, target: str) -> DraftVersion:
    """A version whose run claimed four requests, and which served six."""
    store.samples.add([replace(samples(i, root.id), target=model_digest(target)) for i in range(4)])
    run = store.runs.claim("default", "test", ClaimTerms(1, 60, 60))
    assert run is not None
    module = random_module("llama", 1)
    child = store.versions.stage("default", root.id, "full", module.save_pretrained, run_id=run.id)
    evidence = {"before": 0.25, "after": 0.5, "difference": 0.25, "lower": 0.2, "requests": 9}
    store.versions.publish(child.id, evidence, run=run)
    store.runs.finish(run, RunState.PUBLISHED, child.id)
    store.outcomes.add([outcome(i, child.id) for i in range(6)], "test")
    return store.versions.get(child.id)


def test_a_version_goes_with_its_card_and_nothing_else(hub: FakeHub, store: Store, target: str) -> None:
    store.targets.arrive(str(model_digest(target)), target)
    version = learned(store, new_small_draft(store, "default", target, 1), target)
    assert push(store, version.id, REPO) == f"{hub.url}/{REPO}" and hub.private[REPO]
    files = hub.repos[REPO]
    assert {"config.json", "model.safetensors", "README.md"} <= set(files) and not {"osd.json", "READY"} & set(files)
    for name, content in files.items():
        assert b"secret-place" not in content and b"hf_secret" not in content, name
    card = ModelCard(files["README.md"].decode())
    assert card.data.tags and "speculative-decoding" in card.data.tags and card.data.base_model is None
    told = [version.id, version.digest, str(version.parent), "big-model", str(model_digest(target)), "0.250", "+0.200"]
    told += ["vllm serve big-model", '"method": "draft_model"', "STANDALONE", f"--from {REPO}"]
    assert [text for text in told if text not in card.text] == []
    live = live_acceptance(store, version.id)
    assert sum(requests for requests, _, _ in live.values()) == 6
    for route, (requests, alpha, error) in live.items():
        assert f"| {route} | {requests} | {alpha:.3f} ± {error:.3f} |" in card.text
    asked = {each.route for each in store.samples.read(store.samples.recent(limit=9))}
    assert asked and all(f"| {route} | " in card.text for route in asked)


def test_a_pushed_draft_comes_back_as_number_0(hub: FakeHub, store: Store, target: str) -> None:
    version = new_small_draft(store, "default", target, 1)
    push(store, version.id, REPO, private=False)
    assert not hub.private[REPO]
    back = new_from_hub(store, "fetched", target, REPO)
    assert (back.number, back.kind) == (0, "full")
    facts = store.versions.provenance(back)["provenance"]
    assert facts == {"from": REPO, "revision": hub.sha(REPO), "target": model_digest(target)}
    load_pair(target, store.versions.folder(back), device="cpu")
    with pytest.raises(BadInput, match="give another name"):
        new_from_hub(store, "fetched", target, REPO)


@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_heads_come_back_for_their_target_and_no_other(
    hub: FakeHub, store: Store, target: str, tmp_path: Path, kind: Any
) -> None:
    push(store, new_feature_version(store, "default", target, kind).id, REPO)
    config = json.loads(hub.repos[REPO]["config.json"])
    assert config["osd_target"] == model_digest(target) and "_name_or_path" not in config
    assert f'"method": "{kind}"' in hub.repos[REPO]["README.md"].decode()
    assert new_from_hub(store, "fetched", target, REPO).kind == kind
    random_module("llama", 5).save_pretrained(tmp_path / "other")
    with pytest.raises(OsdError):
        new_from_hub(store, "another", str(tmp_path / "other"), REPO)
    assert {version.draft for version in store.versions.list()} == {"default", "fetched"}


def test_what_the_hub_refuses_is_named(hub: FakeHub, store: Store, target: str) -> None:
    with pytest.raises(HubRefused, match="me/nothing"):
        new_from_hub(store, "fetched", target, "me/nothing")
    hub.token = "another"
    with pytest.raises(HubRefused, match="HF_TOKEN"):
        push(store, new_small_draft(store, "default", target, 1).id, REPO)
    with pytest.raises(HubRefused):
        push(store, "default:current", "no repository's name")
    assert not hub.repos
