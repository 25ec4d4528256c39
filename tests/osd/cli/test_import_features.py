"""`osd replay import` begins with a draft that reads hidden states: an exported folder, a published one, a snapshot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from osd.hotswap.export import export
from osd.hotswap.new_draft import new_feature_version, new_small_draft
from osd.models.features.new import KINDS
from osd.models.model_digest import model_digest
from osd.server.start import SHIPPED
from storage.records import DraftVersion, RequestSamples
from storage.settings import load_settings
from storage.store import open_store
from tests.osd.cli.conftest import Osd
from trainer.distil.teacher import lacks_hidden

TARGET = SHIPPED / "target"
Exported = Callable[[str], Path]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Makes a draft of random weights for the target that ships with osd, and exports it."""
    root = tmp_path_factory.mktemp("exported")

    def made(kind: str) -> Path:
        if not (root / kind).exists():
            with open_store(load_settings(storage={"directory": root / "data"})) as store:
                version = new_feature_version(store, kind, str(TARGET), kind, heads=2)  # type: ignore[arg-type]
                export(store, version.id, root / kind)
        return root / kind

    return made


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    path = tmp_path / "logged.jsonl"
    rows = [{"prompt": f"List {what}.", "response": f"SELECT name FROM {what}"} for what in ("shops", "goods")]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def begun(data: Path) -> tuple[DraftVersion, list[RequestSamples]]:
    """Number 0 of the route's draft, and what was kept for it."""
    with open_store(load_settings(storage={"directory": data})) as store:
        version = store.versions.current("sql", model_digest(str(TARGET)))
        store.versions.verify(version)
        return version, store.samples.read(store.samples.recent(limit=10, routes=["sql"]))


@pytest.mark.parametrize("teacher", ["recompute", "recorded"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_folder_of_each_kind_begins_a_draft(
    osd: Osd, exported: Exported, logged: Path, data: Path, kind: str, teacher: str
) -> None:
    options = ["--target", TARGET, "--draft", exported(kind), "--route", "sql"]
    done = osd("replay", "import", logged, *options, OSD_LEARN__TEACHER=teacher)
    assert not done.exit_code, done.stderr
    version, kept = begun(data)
    assert (version.kind, version.number, len(kept)) == (kind, 0, 2)
    assert {one.draft_version for one in kept} == {version.id} and all(one.k for one in kept)
    states = teacher == "recorded" and kind in ("medusa", "eagle")  # others read states that are never kept
    assert all((lacks_hidden(one) is None) == states for one in kept)
    again = osd("replay", "import", logged, *options)
    assert "Kept 0 requests" in again.stderr


def test_a_published_folder_in_the_hub_s_cache_does_too(
    osd: Osd, exported: Exported, logged: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An EAGLE draft as its authors give it: a Llama of one layer, with the target's embeddings."""
    cache = tmp_path / "hub"
    snapshot = cache / "models--authors--eagle" / "snapshots" / ("a" * 40)
    shutil.copytree(exported("eagle"), snapshot)
    (cache / "models--authors--eagle" / "refs").mkdir()
    (cache / "models--authors--eagle" / "refs" / "main").write_text("a" * 40)
    config = json.loads((snapshot / "config.json").read_text()) | {"architectures": ["LlamaForCausalLM"]}
    (snapshot / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "osd_target"}))
    theirs = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"]
    own = load_file(snapshot / "model.safetensors") | {"embed_tokens.weight": theirs}
    save_file(own, snapshot / "model.safetensors")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    done = osd("replay", "import", logged, "--target", TARGET, "--draft", "authors/eagle", "--route", "sql")
    assert not done.exit_code, done.stderr
    assert begun(data)[0].kind == "eagle"


def test_a_draft_for_another_target_is_refused_and_nothing_is_entered(
    osd: Osd, exported: Exported, logged: Path, data: Path, tmp_path: Path
) -> None:
    with open_store(load_settings(storage={"directory": tmp_path / "other"})) as store:
        export(store, new_small_draft(store, "other", str(TARGET)).id, tmp_path / "small")
    done = osd("replay", "import", logged, "--target", tmp_path / "small", "--draft", exported("eagle"))
    assert done.exit_code and "was made for the target with the digest" in done.stderr
    with open_store(load_settings(storage={"directory": data})) as store:
        assert not store.versions.list() and not store.samples.stats()


def test_the_states_that_are_kept_are_those_that_the_likeliest_tokens_come_from(
    osd: Osd, exported: Exported, logged: Path, data: Path
) -> None:
    osd("replay", "import", logged, "--target", TARGET, "--draft", exported("medusa"), "--route", "sql")
    head = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"].float().numpy()
    for one in begun(data)[1]:
        assert one.hidden_states is not None
        likeliest = (one.hidden_states.astype(np.float32) @ head.T).argmax(1)
        assert (likeliest == one.topk_ids[:, 0]).mean() > 0.9  # the states are halves
