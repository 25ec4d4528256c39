"""Small drafts cut from targets of every family, against the target itself with its other layers skipped."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from osd.models.limits import named
from osd.models.small_draft import CannotCut, cut, spaced
from tests.support.families import FAMILIES, REFUSED, WITH_ENCODER
from tests.support.models import prepared, random_module

LAYERS = 4
COUNTS = ("num_hidden_layers", "num_layers", "decoder_layers")
SAMPLE = ("llama", "qwen2_moe", "gemma3", "gemma3n_text", "gpt2", "gpt_neo", "deepseek_v3", "ernie4_5_moe", "smollm3")
BY_NUMBER = ("diffllama",)
"""Families in which a layer computes by its number, which in a draft is another."""
TOKENS = torch.tensor([[5, 9, 33, 12, 7, 61, 2, 9, 14, 80, 3, 21]])
every_family = pytest.mark.parametrize(
    "family",
    [
        name if name in SAMPLE else pytest.param(name, marks=pytest.mark.long)
        for name in FAMILIES
        if name not in REFUSED and name not in WITH_ENCODER
    ],
)


def deep(family: str) -> Any:
    """A random model of a family with LAYERS layers, of the kinds that its two have by turns."""
    kind, told = copy.deepcopy(FAMILIES[family])
    text = told.get("text_config", told)
    for name, value in text.items():
        if isinstance(value, list) and len(value) == text.get("num_hidden_layers") == 2:
            text[name] = value * (LAYERS // 2)
    text.update({name: LAYERS for name in COUNTS if name in text})
    if kind == "gpt_neo":
        text["attention_types"] = [[["global", "local"], LAYERS // 2]]
    return prepared(tf.AutoConfig.for_model(kind, **told))


def logits(module: Any) -> torch.Tensor:
    return module(input_ids=TOKENS, use_cache=False).logits


def skipped(module: Any, kept: list[int]) -> torch.Tensor:
    """The module's logits where layers that are not kept hand on what they are given."""
    handles = []
    for path, part in module.named_modules():
        number = path.rpartition(".")[2]
        is_layer = number.isdigit() and len(module.get_submodule(path.rpartition(".")[0])) == LAYERS
        if is_layer and int(number) not in kept and not any(other in path for other in ("expert", "vision", "altup")):
            handles.append(part.register_forward_hook(hand_on, with_kwargs=True))
    assert len(handles) == LAYERS - len(kept)
    found = logits(module)
    for handle in handles:
        handle.remove()
    return found


def hand_on(part: Any, args: Any, kwargs: Any, output: Any) -> Any:
    given = args[0] if args else kwargs["hidden_states"]
    return (given, *output[1:]) if isinstance(output, tuple) else given


@every_family
def test_a_draft_is_its_target_with_layers_skipped_and_transformers_loads_it(family: str, tmp_path: Path) -> None:
    target = deep(family)
    draft, kept = cut(target, family, 2)
    assert kept == ([0, 1] if named(target.config, "num_kv_shared_layers") else [0, 3])
    if family not in BY_NUMBER:
        torch.testing.assert_close(logits(draft), skipped(target, kept))
    draft.save_pretrained(tmp_path)
    loaded, found = tf.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(found.values()), found
    torch.testing.assert_close(logits(loaded.eval()), logits(draft))
    assert type(loaded) is type(target) and sum(map(torch.numel, loaded.parameters())) < sum(
        map(torch.numel, target.parameters())
    )


@every_family
def test_all_layers_make_the_target(family: str) -> None:
    target = deep(family)
    if named(target.config, "num_kv_shared_layers"):
        with pytest.raises(CannotCut, match="4 layers were asked for, and it has 2 to choose from"):
            cut(target, family, LAYERS)
    else:
        torch.testing.assert_close(logits(cut(target, family, LAYERS)[0]), logits(target))


def test_layers_are_evenly_spaced_from_the_first_to_the_last() -> None:
    assert [spaced(30, count) for count in (1, 2, 3, 5)] == [[0], [0, 29], [0, 14, 29], [0, 7, 14, 22, 29]]
    assert all(len({*spaced(13, count)}) == count for count in range(1, 14))


def test_a_draft_has_a_twelfth_of_the_layers_and_the_targets_number_type() -> None:
    config = tf.LlamaConfig(vocab_size=97, hidden_size=8, intermediate_size=8, num_attention_heads=2)
    config.num_hidden_layers = 30
    draft, kept = cut(prepared(config).to(torch.bfloat16), "thirty")
    assert kept == [0, 29] and draft.dtype == torch.bfloat16 and not draft.training
    assert cut(random_module("llama"), "two")[1] == [0]


def test_kinds_of_layers_that_are_told_by_their_numbers_go_along() -> None:
    """Dense layers first, and experts in every other layer after them."""
    told = {**FAMILIES["qwen2_moe"][1], "num_hidden_layers": 6, "mlp_only_layers": [0, 3]}
    config = cut(prepared(tf.AutoConfig.for_model("qwen2_moe", **told)), "moe", 3)[0].config
    assert (config.mlp_only_layers, config.layer_types) == ([0], ["full_attention"] * 3)  # of layers 0, 2, 5
    told = {**FAMILIES["deepseek_v3"][1], "num_hidden_layers": 6, "first_k_dense_replace": 3}
    assert cut(prepared(tf.AutoConfig.for_model("deepseek_v3", **told)), "moe", 3)[0].config.first_k_dense_replace == 2


@pytest.mark.parametrize("layers", [0, 3])
def test_a_number_of_layers_that_it_has_not_is_refused(layers: int) -> None:
    with pytest.raises(CannotCut, match=f"from two: {layers} layers were asked for, and it has 2"):
        cut(random_module("llama"), "two", layers)


def test_what_does_not_fit_together_is_refused_with_the_cause() -> None:
    """Qwen's experts stand in every second layer, which the layers that are left cannot be told to have."""
    told = {**FAMILIES["qwen2_moe"][1], "num_hidden_layers": 4, "decoder_sparse_step": 2}
    with pytest.raises(CannotCut, match=r"layers 0, 2, 3 alone do not make a Qwen2MoeForCausalLM .*layers.1.mlp"):
        cut(prepared(tf.AutoConfig.for_model("qwen2_moe", **told)), "moe", 3)


def test_an_encoder_and_quantised_weights_are_refused() -> None:
    module = random_module("llama")
    module.config.quantization_config = {"quant_method": "gptq"}
    with pytest.raises(CannotCut, match="quantised"):
        cut(module, "packed")
    shape = {"vocab_size": 97, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 16}
    config = tf.BartConfig(**shape, decoder_ffn_dim=16, encoder_attention_heads=2, decoder_attention_heads=2)
    with pytest.raises(CannotCut, match="encoder"):
        cut(tf.BartForConditionalGeneration(config), "bart")


def test_config_json_has_the_layers_that_are_left(tmp_path: Path) -> None:
    cut(deep("gemma3"), "gemma3", 2)[0].save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["text_config"]["num_hidden_layers"] == 2
    assert config["text_config"]["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["vision_config"]["num_hidden_layers"] == 1
