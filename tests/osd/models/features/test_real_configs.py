"""Configurations with all the keys that published folders have, of each kind: whatever one says else changes the
logits, is listed as changing none, or is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.keys import HARMLESS, KEYS, OTHER_NAMES
from osd.models.features.speculators import NO_NUMBER, rewrite_for_speculators
from osd.models.features.target import FeatureTarget, read_features
from storage.errors import OsdError
from storage.versions.feature_kinds import feature_kind
from tests.support.features import random_at_once
from tests.support.models import random_module, some
from tests.support.plain_eagle3 import random_eagle3
from tests.support.plain_mtp import random_head

LIST = [1, 4, 9, 16, 25]
USUAL = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
    "initializer_range": 0.02, "use_cache": True, "transformers_version": "5.16.1", "torch_dtype": "bfloat16",
    "pad_token_id": None,
}  # fmt: skip
LLAMA = USUAL | {"mlp_bias": False, "pretraining_tp": 1, "model_type": "llama", "tie_word_embeddings": False}
QWEN = USUAL | {
    "max_window_layers": 2, "sliding_window": None, "use_sliding_window": False, "tie_word_embeddings": False,
    "rope_scaling": None,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512,
    "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
}  # fmt: skip
"""So that each of its numbers counts in heads eight wide."""
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "EAGLE-3.1": ("eagle3", LLAMA | {
        "architectures": ["LlamaForCausalLMEagle3"], "rope_parameters": YARN, "ttt_steps": 7, "fc_norm": True,
        "norm_output": True, "norm_before_residual": True, "target_hidden_size": 32, "parallel_drafting": False,
        "layer_types": ["sliding_attention"], "sliding_window": 4, "use_sliding_window": True,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True, "use_last_layernorm": True,
            "use_input_layernorm_in_first_layer": True, "use_mtp_layernorm": False, "norm_before_fc": True,
            "next_layer_regular": True, "parallel_draft_step": 1,
        },
    }),
    "P-EAGLE": ("peagle", LLAMA | {
        "architectures": ["LlamaForCausalLMEagle3"], "pard_token": 96, "parallel_drafting": True,
        "norm_before_residual": False, "num_aux_hidden_states": 3, "embed_requires_grad": True, "mask_token_id": 96,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2], "logit_scale": 1.0,
    }),
    "DFlash": ("dflash", QWEN | {
        "architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "block_size": 8,
        "dflash_config": {"mask_token_id": 96, "target_layer_ids": [0]}, "model_type": "qwen3", "num_target_layers": 2,
        "layer_types": ["full_attention", "full_attention"], "dtype": "bfloat16",
    }),
    "MiMo": ("mtp", QWEN | {
        "architectures": ["MiMoForCausalLM"], "attention_bias": True, "model_type": "mimo", "use_mrope": False,
        "auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"}, "num_nextn_predict_layers": 1,
        "sliding_window": 32768,
    }),
}  # fmt: skip
"""Kind, and the fields as their authors write them; sizes are the draft's own."""
OF_LIBRARY: dict[str, tuple[str, dict[str, Any]]] = {
    "speculators eagle3": ("eagle3", {
        "fc_norm": True, "norm_before_fc": True, "embed_requires_grad": False, "target_hidden_size": None,
        "tie_word_embeddings": False, "transformers_version": "5.16.1",
        "auto_map": {"": "config.Eagle3SpeculatorConfig"},
    }),
    "speculators dflash": ("dflash", {
        "sample_from_anchor": False, "target_hidden_size": None, "tie_word_embeddings": False,
        "transformers_version": "5.16.1",
    }),
}  # fmt: skip
"""The same of the library's form, beside what it writes in any case."""


@pytest.fixture(scope="module")
def target() -> FeatureTarget:
    return FeatureTarget(random_module("llama"), "the-target", "ab" * 32)


def draft_of(kind: str, target: FeatureTarget, library: bool) -> Any:
    """A draft whose weights are random, norms too."""
    if kind == "eagle3":
        return random_eagle3(target, "all", LIST)
    if kind == "mtp":
        return random_head(target)
    facts = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3} if library else {}
    return random_at_once(kind, target, LIST, **facts)


@pytest.fixture(scope="module")
def folders(target: FeatureTarget, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each configuration."""
    found = {}
    for name, (kind, facts) in (PUBLISHED | OF_LIBRARY).items():
        found[name] = folder = tmp_path_factory.mktemp(kind)
        save_feature_draft(draft_of(kind, target, name in OF_LIBRARY), folder, target, whole=True)
        if name in OF_LIBRARY:
            rewrite_for_speculators(folder, target, 4)
        known = json.loads((folder / "config.json").read_text())
        sizes = {key: value for key, value in known.items() if key in SIZES} if name in PUBLISHED else known
        (folder / "config.json").write_text(json.dumps(sizes | facts))
    return found


SIZES = (
    "hidden_size", "vocab_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "num_hidden_layers", "max_position_embeddings", "rms_norm_eps", "draft_vocab_size", "rope_parameters",
)  # fmt: skip


def says(folder: Path, target: FeatureTarget) -> tuple[torch.Tensor, int]:
    """Logits of seven steps over whole texts, and the limit of its texts."""
    draft, tokens = load_feature_draft(folder, target), some(2, 9, 5)
    features, _ = read_features(target.module, tokens, draft.feature_layers(target.module))
    steps = 7 if draft.at_once else 4
    unrolled = draft.unroll(features, tokens, target.embed, target.head, steps)
    return torch.cat([each.logits for each in unrolled], dim=-1), draft.config.max_position_embeddings


def others(value: Any) -> Iterator[Any]:
    """Other values of a field's kind."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value * 2, value + 1)
    elif isinstance(value, str):
        yield f"odd-{value}"
    elif isinstance(value, list):
        last = next(others(value[-1]), None) if value else "odd"
        yield from (value[:-1], [*value, *value[-1:]], [*value[:-1], last], value[::-1])
    elif value is None:
        yield from (True, 1, "odd")


def changed(facts: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Return each field's path, in tables too, with configurations that say another value there, or nothing, or one
    field more."""
    for name, value in facts.items():
        if isinstance(value, dict):
            for inner, other in changed(value, (*path, name)):
                yield inner, {**facts, name: other}
        for other in others(value):
            if other != value:
                yield (*path, name), {**facts, name: other}
    yield (*path, "invented"), {**facts, "invented": 1}


def listed(kind: str, path: tuple[str, ...], facts: Mapping[str, Any]) -> bool:
    """Return whether a field is listed as one that changes no number, or is below one, or names the kind."""
    of_library = "speculators_model_type" in facts
    for name in path:
        if name in HARMLESS or (of_library and name in NO_NUMBER - {"transformer_layer_config"}):
            return True
        key = KEYS[kind].get(OTHER_NAMES.get(name, name))
        if key is not None and key.use == "harmless":
            return True
    unused = path[-1] == "sliding_window" and facts.get("use_sliding_window") is False
    return unused or path[-1] == "architectures"


def unknown(kind: str, name: str) -> bool:
    """Return whether osd does not compute a field, so that its refusal names it; sizes are refused by what they
    make."""
    key = KEYS[kind].get(OTHER_NAMES.get(name, name))
    return name == "invented" or (key is not None and key.use == "refused")


@pytest.mark.parametrize("name", [*PUBLISHED, *OF_LIBRARY])
def test_each_key_of_a_published_configuration_counts_or_is_listed_or_refused(
    name: str, folders: dict[str, Path], target: FeatureTarget, tmp_path: Path
) -> None:
    kind, folder = (PUBLISHED | OF_LIBRARY)[name][0], folders[name]
    before, limit = says(folder, target)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    facts, silent, counted = json.loads((folder / "config.json").read_text()), [], set()
    assert feature_kind(folder) == kind
    for path, other in changed(facts):
        (tmp_path / "config.json").write_text(json.dumps(other))
        try:
            after, length = says(tmp_path, target)
        except OsdError as error:
            if str(tmp_path) not in str(error) or (unknown(kind, path[-1]) and path[-1] not in str(error)):
                silent.append((path, str(error)))
            continue
        if after.shape != before.shape or length != limit or not torch.allclose(after, before, atol=1e-6):
            counted.add(path)
        elif not listed(kind, path, facts):
            silent.append((path, "ignored"))
    assert not silent, "\n".join(map(str, silent))
    assert len(counted) >= 3


def test_there_is_a_configuration_of_each_kind_but_the_oldest() -> None:
    assert {kind for kind, _ in (PUBLISHED | OF_LIBRARY).values()} == KEYS.keys() - {"medusa", "eagle"}
