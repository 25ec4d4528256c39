"""Folders of feature drafts: written, read again, published ones, and those that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from osd.models.features.base import FeatureDraftMismatch, FeatureDraftNotLoaded
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.new import KINDS, new_feature_draft
from osd.models.features.target import FeatureTarget, read_features
from storage.versions.feature_kinds import feature_kind
from storage.versions.weights import kind_of
from tests.support.models import LLAMA, prepared, random_module, some

LIST = [1, 4, 9, 16, 25]
DIGEST = "ab" * 32


@pytest.fixture(scope="module")
def target() -> FeatureTarget:
    return FeatureTarget(random_module("llama"), "the-target", DIGEST)


def says(draft: Any, target: FeatureTarget) -> list[torch.Tensor]:
    tokens = some(2, 7, 5)
    features, _ = read_features(target.module, tokens, draft.feature_layers(target.module))
    return [each.logits for each in draft.unroll(features, tokens, target.embed, target.head, 3)]


def changed(folder: Path, tensors: dict[str, Any] | None = None, **facts: Any) -> None:
    """Change fields of config.json and tensors of a folder; None takes one out."""
    path = folder / "config.json"
    known = json.loads(path.read_text()) | facts
    path.write_text(json.dumps({name: value for name, value in known.items() if value is not None}))
    if tensors:
        kept = load_file(folder / "model.safetensors") | tensors
        save_file({name: value for name, value in kept.items() if value is not None}, folder / "model.safetensors")


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("token_map", [None, LIST])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read(
    kind: str, token_map: list[int] | None, whole: bool, target: FeatureTarget, tmp_path: Path
) -> None:
    draft = new_feature_draft(kind, target, token_map=token_map)
    save_feature_draft(draft, tmp_path, target, whole=whole)
    assert feature_kind(tmp_path) == kind == kind_of(tmp_path)
    again = load_feature_draft(tmp_path, target)
    assert type(again) is type(draft) and again.kind == kind
    for ours, theirs in zip(says(draft, target), says(again, target), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert any("embed_tokens" in name for name in names) == (whole and kind == "mtp")
    rows = {"medusa": True, "eagle": False, "mtp": True}.get(kind, token_map is not None)
    assert any("lm_head" in name for name in names) == (whole and rows)


@pytest.mark.parametrize(("kind", "name"), [("medusa", "token_map"), ("eagle3", "d2t"), ("dflash", "d2t")])
def test_a_draft_vocabulary_is_written_as_its_loader_reads_it(
    kind: str, name: str, target: FeatureTarget, tmp_path: Path
) -> None:
    save_feature_draft(new_feature_draft(kind, target, token_map=LIST), tmp_path, target)
    ids = load_file(tmp_path / "model.safetensors")[name]
    assert (ids if kind == "medusa" else ids + torch.arange(len(LIST))).tolist() == LIST
    facts = json.loads((tmp_path / "config.json").read_text())
    assert facts["truncated_vocab_size" if kind == "medusa" else "draft_vocab_size"] == len(LIST)


def test_a_published_eagle_is_a_llama_of_one_layer_with_the_targets_embeddings(
    target: FeatureTarget, tmp_path: Path
) -> None:
    draft = new_feature_draft("eagle", target)
    save_feature_draft(draft, tmp_path, target)
    table = target.embeddings.clone().bfloat16()
    changed(tmp_path, {"embed_tokens.weight": table}, architectures=["LlamaForCausalLM"], osd_target=None)
    assert feature_kind(tmp_path) == "eagle"
    for ours, theirs in zip(says(draft, target), says(load_feature_draft(tmp_path, target), target), strict=True):
        assert torch.equal(ours, theirs)
    other = FeatureTarget(random_module("llama", seed=5))
    with pytest.raises(FeatureDraftMismatch, match="is not the target's own, so it was made for another target"):
        load_feature_draft(tmp_path, other)


def test_a_published_eagle_3_has_its_own_output_layer_and_names_no_layers(
    target: FeatureTarget, tmp_path: Path
) -> None:
    save_feature_draft(new_feature_draft("eagle3", target, token_map=LIST), tmp_path, target)
    own = torch.randn(len(LIST), 32, generator=torch.Generator().manual_seed(1))
    changed(tmp_path, {"lm_head.weight": own}, eagle_aux_hidden_state_layer_ids=None)
    draft: Any = load_feature_draft(tmp_path, target)
    assert draft.read_layers == (0, 1, 2) and torch.equal(draft.lm_head.weight, own)


def test_medusa_by_its_first_names_with_an_output_layer_a_head(target: FeatureTarget, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    square, wide = (torch.randn(size, 32, generator=generator) for size in (32, 97))
    tensors = {"0.0.linear.weight": square, "0.0.linear.bias": square[0].clone(), "0.1.weight": wide}
    save_file(tensors, tmp_path / "model.safetensors")
    facts = {"model_type": "medusa", "hidden_size": 32, "vocab_size": 97, "medusa_num_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    draft: Any = load_feature_draft(tmp_path, target)
    assert torch.equal(draft.lm_heads[0].weight, wide) and torch.equal(draft.blocks[0].layers[0].weight, square)


def test_other_folders_are_no_feature_drafts(tmp_path: Path) -> None:
    random_module("llama").save_pretrained(tmp_path / "two")
    prepared(type(random_module("llama").config)(**LLAMA | {"num_hidden_layers": 1})).save_pretrained(tmp_path / "one")
    for name in ("two", "one", "none"):
        assert feature_kind(tmp_path / name) is None
    with pytest.raises(FeatureDraftNotLoaded, match="names no kind of feature draft"):
        load_feature_draft(tmp_path / "two", FeatureTarget(random_module("llama")))
    with pytest.raises(FeatureDraftNotLoaded, match="there is no such folder"):
        load_feature_draft(tmp_path / "none", FeatureTarget(random_module("llama")))


def test_a_pickled_checkpoint_is_refused_with_how_to_convert_it(target: FeatureTarget, tmp_path: Path) -> None:
    save_feature_draft(new_feature_draft("eagle", target), tmp_path, target)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(FeatureDraftNotLoaded, match=r"are pickled .* weights_only=True") as raised:
        load_feature_draft(tmp_path, target)
    assert "save_file({k: v.contiguous()" in str(raised.value) and tensors


CHANGES = {
    "digest": ({"osd_target": "cd" * 32}, {}, "made for the target with the digest cdcdcdcd"),
    "width": ({"hidden_size": 64}, {}, "reads hidden states of width 64, and the target's have 32"),
    "vocabulary": ({"vocab_size": 98}, {}, "it has 98 token ids, and the target 97"),
    "end": ({"osd_draft_vocabulary": [2, 3]}, {}, "vocabulary list lacks the end token 1"),
    "twice": ({"osd_draft_vocabulary": [1, 3, 3]}, {}, "vocabulary list names a token twice"),
    "outside": ({"osd_draft_vocabulary": [1, 97]}, {}, "vocabulary list names 97, and the target's ids end at 96"),
    "empty": ({"osd_draft_vocabulary": []}, {}, "vocabulary list is empty"),
    "shape": ({}, {"fc.weight": torch.zeros(32, 32)}, r"fc.weight is \(32, 32\), and by config.json it is \(32, 64\)"),
    "missing": ({}, {"layers.0.mlp.down_proj.weight": None}, "down_proj.weight is missing"),
    "too much": ({}, {"more.weight": torch.zeros(1)}, "not part of such a draft"),
    "not finite": ({}, {"fc.weight": torch.full((32, 64), torch.nan)}, "fc.weight holds numbers that are not finite"),
    "head": ({}, {"lm_head.weight": torch.zeros(97, 32)}, "lm_head.weight is not the target's output layer"),
}


@pytest.mark.parametrize(("facts", "tensors", "reason"), CHANGES.values(), ids=CHANGES)
def test_what_does_not_fit_is_refused(
    facts: dict[str, Any], tensors: dict[str, Any], reason: str, target: FeatureTarget, tmp_path: Path
) -> None:
    save_feature_draft(new_feature_draft("eagle", target), tmp_path, target)
    changed(tmp_path, tensors, **facts)
    with pytest.raises((FeatureDraftMismatch, FeatureDraftNotLoaded), match=reason):
        load_feature_draft(tmp_path, target)


def test_eagle_3_reads_no_layer_that_is_not_there(target: FeatureTarget, tmp_path: Path) -> None:
    save_feature_draft(new_feature_draft("eagle3", target), tmp_path, target)
    changed(tmp_path, eagle_aux_hidden_state_layer_ids=[0, 1, 3])
    with pytest.raises(
        FeatureDraftMismatch, match=r"reads hidden states \[0, 1, 3\], and the target has those from 0 to 2"
    ):
        load_feature_draft(tmp_path, target)


def test_a_cut_off_file_is_refused(target: FeatureTarget, tmp_path: Path) -> None:
    save_feature_draft(new_feature_draft("eagle", target), tmp_path, target)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FeatureDraftNotLoaded, match="cannot be read"):
        load_feature_draft(tmp_path, target)


def test_another_embedding_of_masked_positions_is_refused(target: FeatureTarget, tmp_path: Path) -> None:
    save_feature_draft(new_feature_draft("dflash", target), tmp_path, target)
    (tmp_path / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(FeatureDraftNotLoaded, match=r"mask_embedding\.pt, which osd does not read"):
        load_feature_draft(tmp_path, target)
