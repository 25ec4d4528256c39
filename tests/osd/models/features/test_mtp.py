"""MTP heads: whole texts, gradients and cached chains against a plain head of the same tensors; the target's state that
they read, by every pass; folders, and checkpoints that they are taken out of and put back into."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from osd.attached.vllm.plugin.osd_vllm.weights import Refused, check, read, shapes, weights_digest
from osd.hotswap.export import export
from osd.hotswap.new_draft import new_feature_version
from osd.models.features.base import FeatureDraftNotLoaded
from osd.models.features.checkpoint import merge_heads, take_heads
from osd.models.features.decoder import feature_model
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.mtp import published_name
from osd.models.features.target import FeatureTarget, read_features
from osd.models.weights import read_weights
from storage.errors import BadInput
from storage.settings import load_settings
from storage.store import open_store
from storage.versions.feature_kinds import feature_kind
from tests.support.models import model_of, random_module, some
from tests.support.plain_mtp import plain_chain, random_head

LENGTH, STEPS = 9, 4
MERGED = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1, "tie_word_embeddings": False}


@pytest.fixture(scope="module")
def target() -> FeatureTarget:
    return FeatureTarget(random_module("qwen2"), "the-target")


def plain_steps(draft: Any, target: FeatureTarget, texts: tuple[Any, Any], row: int, column: int) -> list[Any]:
    """What a plain head of the same weights says at a column, as far as the text's own tokens reach."""
    tokens, features = texts
    weights = {published_name(name): each for name, each in draft.named_parameters()}
    known, steps = tokens[row, 1:].tolist(), min(STEPS, LENGTH - 1 - column)
    of = target.embeddings, target.head.weight
    return plain_chain(weights, draft.config.to_dict(), *of, features[row, : column + 1], known, steps)


def texts_of(target: FeatureTarget, draft: Any) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = some(2, LENGTH, 3)
    return tokens, read_features(target.module, tokens, draft.feature_layers(target.module))[0]


def test_steps_and_gradients_are_those_of_a_plain_head(target: FeatureTarget) -> None:
    draft = random_head(target).requires_grad_(True)
    texts, loss, same = texts_of(target, draft), torch.zeros(()), torch.zeros(())
    ours = draft.unroll(texts[1], texts[0], target.embed, target.head, STEPS)
    for row in range(2):
        for column in range(LENGTH - 1):
            for step, plain in enumerate(plain_steps(draft, target, texts, row, column)):
                assert torch.allclose(ours[step].logits[row, column], plain, atol=1e-4)
                loss = loss + ours[step].logits[row, column].log_softmax(-1)[5]
                same = same + plain.log_softmax(-1)[5]
    weights = list(draft.parameters())
    for one, other in zip(torch.autograd.grad(loss, weights), torch.autograd.grad(same, weights), strict=True):
        assert one.any() and torch.allclose(one, other, rtol=1e-3, atol=1e-3)


@torch.inference_mode()
def test_a_cached_chain_is_that_of_a_plain_head(target: FeatureTarget) -> None:
    draft = random_head(target)
    texts = texts_of(target, draft)
    tokens, features = texts
    decoder = feature_model("draft", draft, model_of(target.module)).decoder(2, 64)
    decoder.read([0, 0], features[:, :2], tokens[:, 1:3], [2, 2])
    hidden = decoder.read([2, 2], features[:, 2:5], tokens[:, 3:6], [3, 3])
    plain = [plain_steps(draft, target, texts, row, 4) for row in range(2)]
    for step in range(LENGTH - 6):
        assert torch.allclose(decoder.logits(hidden), torch.stack([steps[step] for steps in plain]), atol=1e-4)
        hidden = decoder.go_on([5 + step] * 2, hidden, tokens[:, 6 + step])


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
@torch.inference_mode()
def test_the_state_before_the_last_norm_is_kept_by_every_pass(family: str) -> None:
    """With the last norm and the output layer behind it, it gives the target's logits."""
    module = random_module(family)
    decoder, layers = model_of(module).decoder(2, 32), module.config.num_hidden_layers
    tokens, number = some(2, 8, 1), layers + 1
    decoder.cache.keep_features([number])
    for row in range(2):
        decoder.prefill(row, tokens[row, :5].tolist())
    decoder.logits(tokens[:, 5:], [5, 5])
    kept = torch.stack([decoder.cache.features[number].read(row, 0, 8) for row in range(2)])
    states, logits = read_features(module, tokens, [number, layers])
    norm = module.get_decoder().ln_f if family == "gpt2" else module.get_decoder().norm
    assert torch.allclose(kept, states[..., : kept.shape[-1]], atol=1e-4)
    assert torch.allclose(FeatureTarget(module).head(norm(kept)), logits, atol=1e-3)


def checkpoint(target: FeatureTarget, folder: Path, **facts: Any) -> Path:
    """The target's own folder, with other fields."""
    target.module.save_pretrained(folder)
    known = json.loads((folder / "config.json").read_text()) | facts
    (folder / "config.json").write_text(json.dumps(known))
    return folder


def test_a_head_goes_into_a_checkpoint_and_out_of_it(target: FeatureTarget, tmp_path: Path) -> None:
    """Twice, so that it takes the place of another; the target's tensors stay to the bit."""
    plain, draft, taken = checkpoint(target, tmp_path / "plain"), tmp_path / "draft", tmp_path / "taken"
    before, own = load_file(plain / "model.safetensors"), plain
    for seed in (1, 2):
        save_feature_draft(random_head(target, seed), draft, target)
        (merged := tmp_path / f"merged{seed}").mkdir()
        merge_heads(draft, own, merged)
        own = merged
    facts, tensors = json.loads((own / "config.json").read_text()), load_file(own / "model.safetensors")
    assert {name: facts[name] for name in MERGED} == MERGED and feature_kind(own) is None
    heads = {name for name in tensors if "mtp" in name}
    assert {name: each for name, each in tensors.items() if name not in heads}.keys() == before.keys() | {
        "lm_head.weight"
    }
    assert all(torch.equal(tensors[name], each) for name, each in before.items())
    taken.mkdir()
    assert take_heads(own, taken) and feature_kind(taken) == "mtp"
    again = load_feature_draft(taken, target)
    for name, weight in load_feature_draft(draft, target).named_parameters():
        assert torch.equal(weight, again.get_parameter(name))
    tokens = some(2, 8, 1)
    assert torch.equal(read_weights(own, torch.float32)(tokens).logits, target.module(tokens).logits)
    assert weights_digest(taken) == weights_digest(own) == weights_digest(draft) != weights_digest(tmp_path / "merged1")


def test_a_target_that_calls_itself_mimo_is_read_as_the_qwen2_that_it_is(target: FeatureTarget, tmp_path: Path) -> None:
    model, tokens = read_weights(checkpoint(target, tmp_path, model_type="mimo"), torch.float32), some(2, 8, 1)
    assert torch.equal(model(tokens).logits, target.module(tokens).logits)


def test_a_checkpoint_in_several_files_keeps_its_index(target: FeatureTarget, tmp_path: Path) -> None:
    target.module.save_pretrained(tmp_path / "plain", max_shard_size="8KB")
    save_feature_draft(random_head(target), tmp_path / "draft", target)
    (tmp_path / "merged").mkdir()
    merge_heads(tmp_path / "draft", tmp_path / "plain", tmp_path / "merged")
    index = json.loads((tmp_path / "merged" / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 2
    for name, file in index.items():
        assert name in load_file(tmp_path / "merged" / file)
    assert any(name.startswith("model.mtp_layers.0.") for name in index)
    tokens = some(1, 8, 1)
    assert torch.equal(read_weights(tmp_path / "merged", torch.float32)(tokens).logits, target.module(tokens).logits)


def test_a_head_that_stood_in_a_file_of_its_own_is_gone_from_it(target: FeatureTarget, tmp_path: Path) -> None:
    save_feature_draft(random_head(target, 1), tmp_path / "old", target)
    save_feature_draft(random_head(target, 2), tmp_path / "new", target)
    own = checkpoint(target, tmp_path / "own", **MERGED | {"tie_word_embeddings": True})
    (own / "mtp.safetensors").write_bytes((tmp_path / "old" / "model.safetensors").read_bytes())
    (tmp_path / "merged").mkdir()
    merge_heads(tmp_path / "new", own, tmp_path / "merged")
    assert not load_file(tmp_path / "merged" / "mtp.safetensors")
    assert weights_digest(tmp_path / "merged") == weights_digest(tmp_path / "new") != weights_digest(own)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["mtp.fc.weight", "mtp.layers.0.mlp.gate.weight"], "Qwen3-Next's form"),
        (["model.layers.2.eh_proj.weight", "model.layers.2.enorm.weight"], "GLM-4 MoE's form"),
    ],
)
def test_heads_with_experts_are_known_by_their_names(
    names: list[str], said: str, target: FeatureTarget, tmp_path: Path
) -> None:
    folder = checkpoint(target, tmp_path / "model")
    save_file({name: torch.zeros(2) for name in names}, folder / "more.safetensors")
    with pytest.raises(FeatureDraftNotLoaded, match=said):
        take_heads(folder, tmp_path)


def test_a_target_without_heads_has_none_and_others_take_none(target: FeatureTarget, tmp_path: Path) -> None:
    assert not take_heads(checkpoint(target, tmp_path / "model"), tmp_path)
    save_feature_draft(random_head(target), tmp_path / "draft", target)
    other = checkpoint(FeatureTarget(random_module("llama")), tmp_path / "llama")
    (into := tmp_path / "into").mkdir()
    with pytest.raises(BadInput, match="LlamaForCausalLM"):
        merge_heads(tmp_path / "draft", other, into)
    assert not list(into.iterdir())


def test_two_heads_are_refused(target: FeatureTarget, tmp_path: Path) -> None:
    save_feature_draft(random_head(target), tmp_path, target)
    facts = json.loads((tmp_path / "config.json").read_text()) | {"num_nextn_predict_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(FeatureDraftNotLoaded, match="num_nextn_predict_layers = 2"):
        load_feature_draft(tmp_path, target)


def test_a_running_vllm_takes_a_head_and_nothing_of_the_target(target: FeatureTarget, tmp_path: Path) -> None:
    """It was started with the whole checkpoint; its own configuration names no layers."""
    plain, draft = checkpoint(target, tmp_path / "plain"), tmp_path / "draft"
    save_feature_draft(random_head(target), draft, target)
    (own := tmp_path / "own").mkdir()
    merge_heads(draft, plain, own)
    loaded = SimpleNamespace(**json.loads((own / "config.json").read_text()) | {"num_hidden_layers": 0})
    newer = tmp_path / "newer"
    save_feature_draft(random_head(target, 9), newer, target, whole=True)
    assert not {"lm_head.weight", "model.embed_tokens.weight"} - load_file(newer / "model.safetensors").keys()
    tensors = check(newer, weights_digest(newer), loaded, shapes(own), {})
    assert tensors.keys() == shapes(own).keys() == read(own).keys() and all("mtp_layers" in name for name in tensors)
    shared = {name: torch.zeros(2) for name in ("lm_head.weight", "model.embed_tokens.weight")}
    with pytest.raises(Refused, match="would be written into the target's own"):
        check(newer, weights_digest(newer), loaded, shapes(own), shared)
    loaded.rms_norm_eps = 1e-3
    with pytest.raises(Refused, match=r"^rms_norm_eps is "):
        check(newer, weights_digest(newer), loaded, shapes(own), {})


def test_a_head_begins_a_line_and_is_exported_alone_and_merged(target: FeatureTarget, tmp_path: Path) -> None:
    """Of random weights beside a plain target; then taken out of the checkpoint that it was merged into."""
    plain, merged = checkpoint(target, tmp_path / "plain"), tmp_path / "merged"
    with open_store(load_settings(storage={"directory": tmp_path / "data"})) as store:
        made = new_feature_version(store, "made", str(plain), "mtp")
        assert (made.kind, made.number) == ("mtp", 0)
        export(store, made.id, merged, merged=True)
        taken = new_feature_version(store, "taken", str(merged), "mtp")
        assert store.versions.provenance(taken)["provenance"]["taken"]
        export(store, taken.id, tmp_path / "alone")
        assert shapes(tmp_path / "alone") == shapes(merged)
        assert (
            weights_digest(tmp_path / "alone") == weights_digest(merged) == weights_digest(store.versions.folder(made))
        )
        eagle = new_feature_version(store, "eagle", str(plain), "eagle")
        with pytest.raises(BadInput, match="is of kind eagle"):
            export(store, eagle.id, tmp_path / "no", merged=True)
    assert not (tmp_path / "no").exists()
