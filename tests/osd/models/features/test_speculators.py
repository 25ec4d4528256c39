"""Folders of the speculators library: read as the draft that they are, refused by name, and written by an export."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from osd.attached.follower import servable_folder
from osd.attached.vllm.plugin.osd_vllm.weights import Refused, check, shapes, weights_digest
from osd.engine.session import serving
from osd.hotswap.export import export
from osd.hotswap.new_draft import new_feature_version
from osd.models.features.decoder import feature_model
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.speculators import OUTSIDE, rewrite_for_speculators
from osd.models.features.target import FeatureTarget, read_features
from osd.models.pair import load_pair
from storage.errors import BadInput
from storage.records import Request
from storage.settings import load_settings
from storage.store import open_store
from storage.versions.feature_kinds import feature_kind
from tests.support.features import random_at_once, with_qwen3_layers
from tests.support.models import model_of, random_module, some
from tests.support.plain_eagle3 import random_eagle3

LIST = [1, 4, 9, 16, 25]


@pytest.fixture(scope="module")
def target() -> FeatureTarget:
    return FeatureTarget(random_module("llama"), "authors/target")


def published(folder: Path, target: FeatureTarget, **facts: Any) -> Any:
    """Write a folder as speculators 0.9 saves an EAGLE-3.1 draft, with these fields at the top; return the draft."""
    draft = random_eagle3(target, "all", LIST)
    save_feature_draft(draft, folder, target, whole=True)
    plain = json.loads((folder / "config.json").read_text())
    layer = {name: value for name, value in plain.items() if name not in OUTSIDE and not name.startswith("num_aux")}
    greedy = {"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 4, "verifier_accept_k": 1}
    verifier = {"architectures": ["LlamaForCausalLM"], "name_or_path": "authors/target"}
    config = {
        "architectures": ["Eagle3DraftModel"], "auto_map": {"": "config.Eagle3SpeculatorConfig"},
        "draft_vocab_size": len(LIST), "dtype": "float32", "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "embed_requires_grad": False, "fc_norm": True, "norm_before_fc": True, "norm_before_residual": True,
        "norm_output": True, "target_hidden_size": None, "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [greedy],
            "verifier": verifier,
        },
        "speculators_model_type": "eagle3", "speculators_version": "0.9.0", "transformers_version": "5.23.0",
        "transformer_layer_config": layer | {
            "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "tie_word_embeddings": True,
        },
    } | facts  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    named = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    save_file(named | {"embed_tokens.weight": target.embeddings.clone()}, folder / "model.safetensors")
    return draft


def same(one: Any, other: Any, target: FeatureTarget) -> bool:
    """Whether two drafts say the same of a text."""
    tokens = some(2, 9, 5)
    features, _ = read_features(target.module, tokens, one.feature_layers(target.module))
    steps = (draft.unroll(features, tokens, target.embed, target.head, 3) for draft in (one, other))
    return all(torch.allclose(a.logits, b.logits, atol=1e-6) for a, b in zip(*steps, strict=True))


def test_a_published_folder_is_the_draft_that_it_is(target: FeatureTarget, tmp_path: Path) -> None:
    draft = published(tmp_path, target)
    assert feature_kind(tmp_path) == "eagle3"
    loaded = load_feature_draft(tmp_path, target)
    assert same(loaded, draft, target) and loaded.config.norm_output and loaded.config.sliding_window == 2
    published(tmp_path, target, norm_output=False)
    assert not same(load_feature_draft(tmp_path, target), draft, target)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"speculators_model_type": "dspark"}, "speculators_model_type = 'dspark'"),
    ({"speculators_model_type": "dflash2"}, "speculators_model_type = 'dflash2'.*osd reads eagle3, peagle, dflash"),
    ({"transformer_layer_config": None}, "transformer_layer_config = None"),
    ({"norm_before_residual": None}, "does not say norm_before_residual"),
    ({"transformer_layer_config": {"norm_output": False}}, "norm_output is false in .*, and it is true at the top"),
    ({"transformer_layer_config": {"fc_norm": False}}, "fc_norm is false in .*, and it is true at the top"),
    ({"transformer_layer_config": {"model_type": "gemma3"}}, "model_type = 'gemma3'"),
    ({"hidden_size": 7}, "hidden_size is 32 in transformer_layer_config, and it is 7 at the top"),
    ({"invented": 1}, "invented = 1"),
]


@pytest.mark.parametrize(("facts", "said"), REFUSED)
def test_what_is_not_read_is_refused_by_its_name(
    facts: dict[str, Any], said: str, target: FeatureTarget, tmp_path: Path
) -> None:
    published(tmp_path, target)
    config = json.loads((tmp_path / "config.json").read_text())
    for name, value in facts.items():
        config[name] = config[name] | value if isinstance(value, dict) else value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Exception, match=said) as raised:
        load_feature_draft(tmp_path, target)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("token_map", [None, LIST])
def test_what_is_written_for_speculators_is_read(
    token_map: list[int] | None, target: FeatureTarget, tmp_path: Path
) -> None:
    draft = random_eagle3(target, "all", token_map)
    save_feature_draft(draft, tmp_path, target, whole=True)
    rewrite_for_speculators(tmp_path, target, 5)
    config = json.loads((tmp_path / "config.json").read_text())
    drafting = config["speculators_config"]
    assert drafting["verifier"] == {"name_or_path": "authors/target", "architectures": []}
    assert drafting["proposal_methods"][0]["speculative_tokens"] == 5 and config["norm_before_residual"] is True
    assert {"midlayer.hidden_norm.weight", "lm_head.weight"} & shapes(tmp_path).keys() == {"lm_head.weight"}
    assert same(load_feature_draft(tmp_path, target), draft, target)


@pytest.mark.parametrize("token_map", [None, LIST])
@pytest.mark.parametrize(("kind", "facts"), [
    ("peagle", {}), ("dflash", {}),
    ("dflash", {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 2}),
])  # fmt: skip
def test_drafts_that_draft_at_once_are_written_and_read(
    kind: str, facts: dict[str, Any], token_map: list[int] | None, target: FeatureTarget, tmp_path: Path
) -> None:
    """What the library leaves out, for it is as usual, is taken to be that."""
    draft = random_at_once(kind, target, token_map, **facts)
    save_feature_draft(draft, tmp_path, target, whole=True)
    rewrite_for_speculators(tmp_path, target, 5)
    config = json.loads((tmp_path / "config.json").read_text())
    method = config["speculators_config"]["proposal_methods"][0]
    assert (config["speculators_model_type"], config["mask_token_id"]) == (kind, target.vocab_size - 1)
    assert method["speculative_tokens"] == (5 if kind == "peagle" else 7)
    assert "ptd_token_id" not in config["transformer_layer_config"]
    if kind == "dflash":
        read = draft.feature_layers(target.module)
        assert tuple(config["aux_hidden_state_layer_ids"]) == read
        assert config["sliding_window_non_causal"] is not bool(facts)
    assert same(load_feature_draft(tmp_path, target), draft, target)
    del config["transformer_layer_config"]["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Exception, match="width 4096, and the target's have 32"):
        load_feature_draft(tmp_path, target)


@pytest.mark.parametrize("kind", ["eagle3", "peagle"])
@torch.no_grad()
def test_layers_of_qwen3s_kind_are_read_served_and_written(kind: str, target: FeatureTarget, tmp_path: Path) -> None:
    """Which the library's trainer gives P-EAGLE where nothing is said."""
    draft = random_eagle3(target, "norm_output", LIST) if kind == "eagle3" else random_at_once(kind, target, LIST)
    save_feature_draft(draft, tmp_path, target, whole=True)
    with_qwen3_layers(tmp_path)
    ours, tokens = load_feature_draft(tmp_path, target), some(2, 9, 5)
    assert not same(ours, draft, target)
    features, _ = read_features(target.module, tokens, ours.feature_layers(target.module))
    steps = ours.unroll(features, tokens, target.embed, target.head, 3)
    decoder = feature_model("draft", ours, model_of(target.module)).decoder(2, 64)
    hidden = decoder.read([0, 0], features[:, :5], tokens[:, 1:6], [5, 5], ahead=3)
    for step, each in enumerate(steps):
        assert torch.allclose(decoder.logits(hidden, step), ours.whole(each.logits[:, 4]), atol=1e-4)
        hidden = decoder.go_on([5 + step] * 2, hidden, tokens[:, 6 + step])
    save_feature_draft(ours, tmp_path, target, whole=True)
    assert feature_kind(tmp_path) == kind and same(load_feature_draft(tmp_path, target), ours, target)
    rewrite_for_speculators(tmp_path, target, 5)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["transformer_layer_config"]["model_type"] == "qwen3"
    assert same(load_feature_draft(tmp_path, target), ours, target)
    config["transformer_layer_config"]["mlp_bias"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Exception, match="no mlp_bias"):
        load_feature_draft(tmp_path, target)


IN_VLLM: list[tuple[str, dict[str, Any]]] = [
    ("peagle", {"architectures": ["PeagleLlamaForCausalLM"], "pard_token": 96}),
    ("dflash", {
        "architectures": ["DFlashDraftModel"], "eagle_aux_hidden_state_layer_ids": [1],
        "dflash_config": {
            "mask_token_id": 96, "target_layer_ids": [0], "sample_from_anchor": False, "causal": False,
        },
    }),
]  # fmt: skip
"""What vLLM 0.32 makes of the fields that stand beside the layer's table."""


@pytest.mark.parametrize(("kind", "facts"), IN_VLLM)
def test_versions_go_to_the_vllm_that_was_started_with_a_folder_of_the_library(
    kind: str, facts: dict[str, Any], target: FeatureTarget, tmp_path: Path
) -> None:
    draft = random_at_once(kind, target, LIST)
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        save_feature_draft(draft, folder, target, whole=True)
    rewrite_for_speculators(tmp_path / "theirs", target, 5)
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    told = {name: config[name] for name in ("draft_vocab_size", "norm_before_residual") if name in config}
    loaded = SimpleNamespace(**config["transformer_layer_config"], **told, **facts)
    shared = {"model.embed_tokens.weight": target.embeddings}  # vLLM drops a draft's own where they are the target's
    sent = tmp_path / "ours", weights_digest(tmp_path / "ours"), loaded, shapes(tmp_path / "theirs"), shared
    assert check(*sent)


def test_embeddings_of_its_own_are_kept_and_learn(target: FeatureTarget, tmp_path: Path) -> None:
    """Of P-EAGLE: the library teaches them too."""
    save_feature_draft(random_at_once("peagle", target), tmp_path, target)
    tensors = load_file(tmp_path / "model.safetensors")
    own = torch.randn(target.embeddings.shape, generator=torch.Generator().manual_seed(3))
    save_file(tensors | {"embed_tokens.weight": own}, tmp_path / "model.safetensors")
    draft = load_feature_draft(tmp_path, target)
    assert torch.equal(dict(draft.named_parameters())["embed_tokens.weight"], own)
    save_file(tensors | {"embed_tokens.weight": target.embeddings.clone()}, tmp_path / "model.safetensors")
    assert not same(load_feature_draft(tmp_path, target), draft, target)


def test_a_published_folder_begins_a_line_and_its_versions_go_to_the_vllm_that_was_started_with_it(
    tmp_path: Path,
) -> None:
    """What vLLM's draft is then: its configuration is the layer's table, with what stands beside it."""
    random_module("llama").save_pretrained(tmp_path / "target")
    target = FeatureTarget(random_module("llama"), str(tmp_path / "target"))
    published(tmp_path / "draft", target)
    settings = load_settings(storage={"directory": tmp_path / "data"}, gamma={"rule": "fixed", "initial": 3})
    pair = load_pair(str(tmp_path / "target"), str(tmp_path / "draft"), device="cpu")
    with open_store(settings) as store:
        with serving(pair, settings, store) as engine:
            [done] = engine.run([Request((5, 7, 9), max_new_tokens=8)])
            assert done.rounds[0].drafted == 3
        version = store.versions.current("default")
        assert (version.kind, version.number) == ("eagle3", 0)
        folder = servable_folder(store, version)
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    outside = {name: config[name] for name in OUTSIDE if config.get(name) is not None}
    loaded = config["transformer_layer_config"] | outside | {"architectures": ["Eagle3LlamaForCausalLM"]}
    shared = {"model.embed_tokens.weight": target.embeddings}
    sent = folder, weights_digest(folder), SimpleNamespace(**loaded), shapes(tmp_path / "draft"), shared
    assert check(*sent)
    loaded["norm_output"] = False
    with pytest.raises(Refused, match="norm_output is True, and the draft that is loaded has False"):
        check(*sent[:2], SimpleNamespace(**loaded), *sent[3:])


def test_only_an_eagle_3_draft_is_exported_for_speculators(tmp_path: Path) -> None:
    random_module("llama").save_pretrained(tmp_path / "target")
    with open_store(load_settings(storage={"directory": tmp_path / "data"})) as store:
        for kind in ("eagle", "eagle3"):
            version = new_feature_version(store, kind, str(tmp_path / "target"), kind)  # type: ignore[arg-type]
            if kind == "eagle":
                with pytest.raises(BadInput, match="is of kind eagle"):
                    export(store, version.id, tmp_path / kind, speculators=3)
            else:
                export(store, version.id, tmp_path / kind, speculators=3)
    config = json.loads((tmp_path / "eagle3" / "config.json").read_text())
    assert config["speculators_config"]["verifier"] == {
        "name_or_path": str(tmp_path / "target"), "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    assert not (tmp_path / "eagle").exists()
