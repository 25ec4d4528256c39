"""Every field of a feature draft's config.json is computed, changes no number, or is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from osd.attached.vllm.plugin.osd_vllm.weights import FLAGS, SAME
from osd.models.features.decoder import feature_model
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.keys import HARMLESS, KEYS, ROPE
from osd.models.features.new import KINDS, Kind, new_feature_draft
from osd.models.features.target import FeatureTarget, read_features
from storage.errors import OsdError
from tests.support.models import VOCABULARY, model_of, random_module, some

LIST = [1, 4, 9, 16, 25]
EAGLES = ("eagle", "eagle3")
ONE = ("medusa", *EAGLES)
"""Kinds that draft a token a pass, or have no pass of their own."""
WINDOWED = {"layer_types": ["sliding_attention"], "sliding_window": 2}
FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def target() -> FeatureTarget:
    return FeatureTarget(random_module("llama"), "the-target", "ab" * 32)


@pytest.fixture(scope="module")
def folders(target: FeatureTarget, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each kind, whose weights are random, so that what is computed shows."""
    made = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, folder in made.items():
        draft = new_feature_draft(kind, target)
        for weight in draft.parameters():
            weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(weight.numel()))
        save_feature_draft(draft, folder, target)
    return made


def with_facts(folder: Path, into: Path, **facts: Any) -> Path:
    """Copy a folder with other fields."""
    known = json.loads((folder / "config.json").read_text()) | facts
    (into / "config.json").write_text(json.dumps(known))
    (into / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return into


def says(folder: Path, target: FeatureTarget) -> torch.Tensor:
    """Logits of three steps over whole texts."""
    draft, tokens = load_feature_draft(folder, target), some(2, 7, 5)
    features, _ = read_features(target.module, tokens, draft.feature_layers(target.module))
    return torch.cat([each.logits for each in draft.unroll(features, tokens, target.embed, target.head, 3)], dim=-1)


OTHERS: dict[str, list[Any]] = {
    "rms_norm_eps": [0.5], "norm_before_residual": [True], "norm_output": [True], "norm_before_fc": [True],
    "fc_norm": [True], "num_aux_hidden_states": [2], "sliding_window": [2], "layer_types": [["sliding_attention"]],
    "eagle_aux_hidden_state_layer_ids": [[2, 1, 0], [0, 0, 1]],
    "num_attention_heads": [8], "head_dim": [4], "num_key_value_heads": [1], "max_position_embeddings": [7],
    "rope_parameters": [
        {"rope_theta": 50.0}, {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "default", "mrope_section": [1, 1, 2]},
    ],
    "osd_target": ["cd" * 32],
    "osd_draft_vocabulary": [LIST], "original_lm_head": [False], "tie_word_embeddings": [True], "bias": [True],
    "attention_bias": [True], "mlp_bias": [True], "medusa_fc_bias": [True], "block_size": [1, 3, 5, 257],
    "is_causal": [True], "causal": [True], "mask_token_id": [3, 97],
}  # fmt: skip
"""Other values of fields that are computed, beside double the size."""


def other_values(kind: str) -> Iterator[tuple[str, Any]]:
    for name, key in KEYS[kind].items():
        if key.use == "computed" and name != "architectures":  # which names the kind
            yield from ((name, value) for value in OTHERS.get(name, [1, 3, 64, 1 << 29]))


CASES = [(kind, name, value) for kind in KINDS for name, value in other_values(kind)]


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_another_value_changes_what_is_said_or_is_refused(
    kind: str, name: str, value: Any, folders: dict[str, Path], target: FeatureTarget, tmp_path: Path
) -> None:
    before = says(folders[kind], target)
    known = json.loads((folders[kind] / "config.json").read_text())
    try:
        found = says(with_facts(folders[kind], tmp_path, **{name: value}), target)
    except OsdError as error:
        assert str(tmp_path) in str(error)
        return
    if name == "max_position_embeddings":  # the limit of its texts
        draft = load_feature_draft(tmp_path, target)
        assert feature_model("draft", draft, model_of(target.module, "target")).limit == value
    elif known.get(name) != value and (name, known.get("use_sliding_window")) != ("sliding_window", False):
        assert found.shape != before.shape or not torch.allclose(found, before, atol=1e-5)


@pytest.mark.parametrize("kind", [*EAGLES, "peagle", "dflash"])
def test_a_window_changes_what_is_said(
    kind: str, folders: dict[str, Path], target: FeatureTarget, tmp_path: Path
) -> None:
    layers = 1 if kind in EAGLES else 2
    facts = WINDOWED | {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"][-layers:]}
    found = says(with_facts(folders[kind], tmp_path, **facts), target)
    assert not torch.allclose(found, says(folders[kind], target), atol=1e-3)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in HARMLESS])
def test_a_harmless_field_changes_no_number_and_is_not_written_back(
    kind: Kind, name: str, folders: dict[str, Path], target: FeatureTarget, tmp_path: Path
) -> None:
    before = says(folders[kind], target)
    odd = f"odd-{name}"
    assert torch.equal(says(with_facts(folders[kind], tmp_path, **{name: odd}), target), before)
    save_feature_draft(load_feature_draft(tmp_path, target), tmp_path, target)
    assert odd not in (tmp_path / "config.json").read_text()


REFUSED = [
    *[(kind, {name: "odd"}, name) for kind in KINDS for name, key in KEYS[kind].items() if key.use == "refused"],
    *[(kind, {"invented": 1}, "invented") for kind in KINDS],
    ("medusa", {"architectures": ["LlamaForCausalLMEagle3"]}, "architectures"),
    *[("eagle", {name: True}, f"{name} = true") for name in ("norm_output", "norm_before_fc", "fc_norm")],
    ("eagle3", {"norm_before_fc": True}, "input_norm.weight is missing"),
    ("eagle3", {"fc_norm": True}, "fc_norm.0.weight is missing"),
    ("eagle3", {"num_aux_hidden_states": 2}, "num_aux_hidden_states is 2, and it is 3"),
    ("eagle3", {"eagle_config": {"norm_output": True}}, "eagle_config has norm_output = true, which loaders read at"),
    *[(kind, {"layer_types": ["sliding_attention"]}, "layer_types = .* with sliding_window") for kind in EAGLES],
    *[(kind, {"use_sliding_window": True, "layer_types": ["full_attention"]}, "use_slid") for kind in EAGLES],
    *[(kind, WINDOWED | {"use_sliding_window": False}, "use_sliding_window = false") for kind in EAGLES],
    *[(kind, {"parallel_drafting": True}, r"parallel_drafting = true \(all tokens of a draft") for kind in ONE],
    *[(kind, {"logit_scale": 0.5}, "logit_scale = 0.5") for kind in KINDS],
    *[(kind, {"sliding_window": 4096}, "sliding_window = 4096") for kind in EAGLES],
    *[(kind, {"num_hidden_layers": 2}, "num_hidden_layers") for kind in ONE],
    *[(kind, {"model_type": "qwen3"}, "model_type = 'qwen3'") for kind in ("medusa", "eagle")],
    *[(kind, {"model_type": "qwen3"}, "k_norm.weight is missing") for kind in ("eagle3", "peagle")],
    *[(kind, {"model_type": "gemma3"}, "model_type = 'gemma3'") for kind in ("eagle3", "peagle")],
    ("eagle3", {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state = false"),
    ("eagle3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 2]}}, "in another place"),
    ("eagle3", {"eagle_config": {"invented": 1}}, "invented"),
    ("eagle3", {"eagle_config": 3}, "eagle_config = 3"),
    ("eagle", {"use_last_layernorm": True}, "use_last_layernorm = true"),
    ("eagle", {"use_input_layernorm_in_first_layer": True}, "use_input_layernorm_in_first_layer = true"),
    ("eagle", {"hidden_act": "nonsense"}, "hidden_act = 'nonsense'"),
    ("eagle3", {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}, "rope_theta is 5.0, and it is 6.0"),
    ("eagle3", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None}, "rope_type = 'dynamic'"),
    ("eagle3", {"draft_vocab_size": 50}, r"draft_vocab_size is 50, and it is 97 by its tensors"),
    ("medusa", {"truncated_vocab_size": 50}, "truncated_vocab_size is 50, and it is 97"),
    ("medusa", {"num_heads": 3}, "num_heads is 3, and it is 4"),
    ("medusa", {"medusa_num_heads": 3}, "num_heads is 4, and it is 3 in another place"),
    ("medusa", {"original_lm_head": False}, "original_lm_head is false"),
    ("eagle3", {"tie_word_embeddings": True}, "tie_word_embeddings is true"),
    ("dflash", {"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel.* \\(DSpark, DFlash2"),
    ("dflash", {"architectures": ["Qwen3DSparkModel"]}, "Qwen3DSparkModel.* \\(DSpark, DFlash2"),
    ("dflash", {"dflash_config": {"selector_rank": 8}}, r"selector_rank = 8 \(DFlash2\)"),
    ("dflash", {"dflash_config": {"mask_token_id": 3}}, "does not say target_layer_ids"),
    ("dflash", {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [1]}}, "reads layers .1., and of the target"),
    ("dflash", {"block_size": None}, "does not say block_size"),
    ("dflash", {"layer_types": ["full_attention"]}, "num_hidden_layers names another number"),
    ("peagle", {"ptd_token_id": 97}, "mask_token_id is 97, and the target has 97 tokens"),
    ("peagle", {"num_hidden_layers": 3, "layer_types": None}, "num_hidden_layers is 3, and it is 2 by its tensors"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "facts", "said"), REFUSED)
def test_what_is_not_computed_is_refused_by_its_name(
    kind: str, facts: dict[str, Any], said: str, folders: dict[str, Path], target: FeatureTarget, tmp_path: Path
) -> None:
    with pytest.raises(OsdError, match=said) as raised:
        load_feature_draft(with_facts(folders[kind], tmp_path, **facts), target)
    assert str(tmp_path) in str(raised.value)


FINE = [
    ("eagle", {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}),
    ("eagle3", {"layer_types": ["full_attention"], "sliding_window": 2}),
    ("eagle3", WINDOWED | {"use_sliding_window": True, "sliding_window": 64}),
    ("eagle3", {"eagle_config": {"norm_before_fc": False, "norm_output": False}, "norm_output": False}),
    ("eagle3", {"eagle_config": {"use_aux_hidden_state": True, "use_last_layernorm": True, "fc_norm": None}}),
    ("eagle3", {"rope_parameters": None, "rope_theta": 10000.0, "rope_scaling": None}),
    ("eagle3", {"parallel_drafting": False}),
    ("peagle", {"parallel_drafting": True, "ptd_token_id": None, "pard_token": 96, "norm_output": True}),
    ("dflash", {"block_size": None, "dflash_config": {"mask_token_id": 96, "target_layer_ids": [0], "block_size": 8}}),
    ("dflash", {"is_causal": False, "num_target_layers": 2, "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}}),
    ("medusa", {"num_heads": None, "medusa_num_heads": 4, "medusa_num_layers": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "facts"), FINE)
def test_the_same_said_otherwise_is_the_same(
    kind: str, facts: dict[str, Any], folders: dict[str, Path], target: FeatureTarget, tmp_path: Path
) -> None:
    assert torch.equal(
        says(with_facts(folders[kind], tmp_path, **facts), target), says(folders[kind], target)
    )  # fmt: skip


TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "d2t of another length": ({"d2t": torch.zeros(3, dtype=torch.long)}, "end token 1|draft_vocab_size is 5"),
    "no d2t": ({"d2t": None}, "draft_vocab_size is 5, and it is 97"),
    "no complement": ({"t2d": torch.zeros(97, dtype=torch.bool)}, "t2d does not mark the tokens"),
    "too short": ({"t2d": torch.ones(5, dtype=torch.bool)}, "t2d does not mark the tokens"),
    "numbers with points": ({"d2t": torch.zeros(5)}, "d2t is no list of whole numbers"),
    "two dimensions": ({"d2t": torch.zeros(5, 1, dtype=torch.long)}, "d2t is no list of whole numbers"),
    "far away": ({"d2t": torch.full((5,), 1 << 60)}, "vocabulary list names"),
}


@pytest.mark.parametrize(("tensors", "said"), TABLES.values(), ids=TABLES)
def test_what_is_said_of_a_vocabulary_twice_agrees(
    tensors: dict[str, Any], said: str, target: FeatureTarget, tmp_path: Path
) -> None:
    save_feature_draft(new_feature_draft("eagle3", target, token_map=LIST), tmp_path, target)
    kept = load_file(tmp_path / "model.safetensors") | tensors
    save_file({name: each for name, each in kept.items() if each is not None}, tmp_path / "model.safetensors")
    with pytest.raises(OsdError, match=said):
        load_feature_draft(tmp_path, target)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8)
    | st.sampled_from([0, 1, 2, 4, 8, 32, 97, 1e-6, "llama", "silu", "default", "yarn", "linear", "llama3"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from([*ROPE, "type"]) | st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
TABLES_NAMED = ("eagle_config", "dflash_config", "rope_scaling", "medusa_num_heads")
NAMES = sorted({name for keys in KEYS.values() for name in keys} | {*TABLES_NAMED})
FIELDS = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), JSON, min_size=1, max_size=3)


@FUZZ
@given(kind=st.sampled_from(KINDS), facts=FIELDS)
def test_any_value_of_any_field_gives_numbers_or_a_sentence(
    kind: str, facts: dict[str, Any], folders: dict[str, Path], target: FeatureTarget, tmp_path: Path
) -> None:
    try:
        says(with_facts(folders[kind], tmp_path, **facts), target)
    except OsdError as error:
        assert str(tmp_path) in str(error)


@FUZZ
@given(kind=st.sampled_from(KINDS), rest=st.binary(max_size=64), at=st.integers(0, 600))
def test_any_bytes_of_the_files_give_numbers_or_a_sentence(
    kind: str, rest: bytes, at: int, folders: dict[str, Path], target: FeatureTarget, tmp_path: Path
) -> None:
    with_facts(folders[kind], tmp_path)
    for name in ("config.json", "model.safetensors"):
        whole = (folders[kind] / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:at] + rest + whole[at + len(rest) :])
        try:
            says(tmp_path, target)
        except OsdError as error:
            assert str(tmp_path) in str(error)
        (tmp_path / name).write_bytes(whole)


def test_a_config_nested_without_end_is_a_sentence(
    folders: dict[str, Path], target: FeatureTarget, tmp_path: Path
) -> None:
    (with_facts(folders["eagle"], tmp_path) / "config.json").write_text("[" * 100_000)
    with pytest.raises(OsdError, match="names no kind"):
        load_feature_draft(tmp_path, target)


def test_a_running_vllm_compares_what_is_computed() -> None:
    """What osd computes, or refuses but for one value, is all that a new version may differ in."""
    known = {name for keys in KEYS.values() for name in keys} | {"rope_theta", "dflash_config", "ptd_token_id"}
    assert {*SAME, *FLAGS} <= known
    assert VOCABULARY == 97
