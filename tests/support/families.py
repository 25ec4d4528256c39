"""Small configurations of transformers' decoder families, whose windows and other switches lie within LENGTH positions.

``python -m tests.support.families`` prints what osd does with each, as the table in docs/models.md.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import transformers as tf
from transformers.utils import logging as transformers_logging

from osd.models.hf_forward import RowForward
from osd.models.limits import position_limit
from osd.models.llama_forward import llama_forward
from osd.models.model import Model
from osd.models.proof import choose_forward
from osd.models.tree_check import check_model
from storage.errors import CannotServeRagged, CannotServeTrees
from tests.support.encoder_decoders import BART, KINDS, T5
from tests.support.models import VOCABULARY, prepared

LENGTH = 48
# fmt: off
BASE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": LENGTH, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0,
}
GATED = {**BASE, "intermediate_size": 48, "num_key_value_heads": 2}
MIX = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
MLA = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
SHARED = {"shared_expert_intermediate_size": 16}
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4}


# fmt: on


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


def gated(kind: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return kind, {**GATED, **more}


def plain(kind: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return kind, {**BASE, **more}


WITH_ENCODER: dict[str, tuple[str, dict[str, Any]]] = {
    **KINDS,
    "mt5": ("mt5", T5),
    "longt5": ("longt5", {**T5, "local_radius": 7}),
    "umt5": ("umt5", T5),
    **{kind: (kind, BART) for kind in ("mbart", "pegasus", "marian", "blenderbot", "plbart", "m2m_100")},
}
"""The same of encoder-decoders."""

# fmt: off
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": gated("llama"),
    "llama, linear": gated("llama", **rope("linear", factor=4.0)),
    "llama, llama3": gated(
        "llama",
        **rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
    ),
    "llama, yarn": gated("llama", **rope("yarn", factor=3.0, original_max_position_embeddings=16)),
    "llama, dynamic": gated("llama", **rope("dynamic", factor=3.0, original_max_position_embeddings=20)),
    "mistral": gated("mistral", sliding_window=8),
    "mistral, no window": gated("mistral", sliding_window=None),
    "ministral": gated("ministral", head_dim=8, **MIX),
    "ministral3": gated(
        "ministral3",
        head_dim=8,
        **rope(
            "yarn",
            factor=3.0,
            original_max_position_embeddings=16,
            llama_4_scaling_beta=0.5,
            mscale=1.0,
            mscale_all_dim=1.0,
            beta_fast=32.0,
            beta_slow=1.0,
        ),
    ),
    "mixtral": gated("mixtral", sliding_window=8, num_local_experts=4),
    "qwen2": gated("qwen2"),
    "qwen2, windows": gated("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3, windows": gated("qwen3", head_dim=8, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen2_moe": gated("qwen2_moe", **EXPERTS, **SHARED),
    "qwen3_moe": gated("qwen3_moe", head_dim=8, **EXPERTS),
    "gemma": gated("gemma", head_dim=8),
    "gemma2": gated("gemma2", head_dim=8, **MIX),
    "gemma3_text": gated("gemma3_text", head_dim=8, **MIX),
    "gemma3": (
        "gemma3",
        {
            "text_config": {**GATED, "head_dim": 8, **MIX},
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
            "image_token_index": 96,
            "boi_token_index": 95,
            "eoi_token_index": 94,
        },
    ),
    "gemma3n_text": gated(
        "gemma3n_text",
        head_dim=8,
        num_hidden_layers=4,
        sliding_window=8,
        layer_types=MIX["layer_types"] * 2,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        activation_sparsity_pattern=[0.0] * 4,
    ),
    "gemma4_text": gated(
        "gemma4_text",
        head_dim=8,
        global_head_dim=16,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=8,
        **MIX,
    ),
    "vaultgemma": gated("vaultgemma", head_dim=8, **MIX),
    "gpt_oss": gated(
        "gpt_oss",
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        **MIX,
        **rope("yarn", factor=3.0, original_max_position_embeddings=16),
    ),
    "phi": gated("phi"),
    "phi3": gated("phi3", sliding_window=8),
    "phi3, longrope": gated(
        "phi3", sliding_window=8, original_max_position_embeddings=20, **rope("longrope", **FACTORS)
    ),
    "phimoe": gated("phimoe", sliding_window=8, num_local_experts=4, **rope("default")),
    "cohere": gated("cohere"),
    "cohere2": gated("cohere2", head_dim=8, **MIX),
    "cohere2_moe": gated("cohere2_moe", head_dim=8, num_experts=4, num_experts_per_tok=2, **MIX),
    "gpt2": plain("gpt2"),
    "gpt_bigcode": plain("gpt_bigcode"),
    "gpt_neo": (
        "gpt_neo",
        {**BASE, "num_layers": 2, "num_heads": 4, "window_size": 8, "attention_types": [[["global", "local"], 1]]},
    ),
    "gpt_neox": plain("gpt_neox", intermediate_size=48),
    "gpt_neox_japanese": plain("gpt_neox_japanese", intermediate_multiple_size=2),
    "gptj": plain("gptj", rotary_dim=4),
    "codegen": plain("codegen", rotary_dim=4),
    "openai-gpt": plain("openai-gpt"),
    "ctrl": plain("ctrl", dff=48),
    "opt": plain("opt", ffn_dim=48, word_embed_proj_dim=32),
    "biogpt": plain("biogpt", intermediate_size=48),
    "xglm": plain("xglm", ffn_dim=48),
    "bloom": plain("bloom"),
    "mpt": plain("mpt", max_seq_len=LENGTH, expansion_ratio=2),
    "falcon": plain("falcon", alibi=False),
    "falcon, alibi": plain("falcon", alibi=True),
    "starcoder2": gated("starcoder2", sliding_window=8),
    "stablelm": gated("stablelm"),
    "olmo": gated("olmo"),
    "olmo2": gated("olmo2"),
    "olmo3": gated("olmo3", **MIX),
    "olmoe": gated("olmoe", num_experts=4, num_experts_per_tok=2),
    "flex_olmo": gated("flex_olmo", num_experts=4, num_experts_per_tok=2),
    "granite": gated("granite"),
    "granite_swa": gated("granite_swa", **MIX),
    "granitemoe": gated("granitemoe", num_local_experts=4, num_experts_per_tok=2),
    "granitemoe_swa": gated("granitemoe_swa", num_local_experts=4, num_experts_per_tok=2, **MIX),
    "granitemoeshared": gated("granitemoeshared", num_local_experts=4, shared_intermediate_size=16),
    "llama4_text": gated(
        "llama4_text",
        head_dim=8,
        intermediate_size_mlp=48,
        num_local_experts=2,
        attention_chunk_size=8,
        floor_scale=16,
        no_rope_layers=[1, 0],
        **rope("default"),
    ),
    "deepseek_v2": plain("deepseek_v2", intermediate_size=48, first_k_dense_replace=1, **MLA, **ROUTED),
    "deepseek_v3": plain("deepseek_v3", intermediate_size=48, first_k_dense_replace=1, **MLA, **ROUTED),
    "glm": gated("glm", head_dim=8),
    "glm4": gated("glm4", head_dim=8),
    "glm4_moe": gated("glm4_moe", head_dim=8, **ROUTED),
    "helium": gated("helium", head_dim=8),
    "exaone4": gated("exaone4", head_dim=8, **MIX),
    "exaone_moe": gated("exaone_moe", head_dim=8, **EXPERTS, **MIX),
    "ernie4_5": gated("ernie4_5", head_dim=8),
    "ernie4_5_moe": gated("ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=16),
    "hunyuan_v1_dense": gated("hunyuan_v1_dense", head_dim=8),
    "hunyuan_v1_moe": gated("hunyuan_v1_moe", head_dim=8, num_experts=4, moe_topk=2),
    "smollm3": gated("smollm3", no_rope_layers=[1, 0]),
    "seed_oss": gated("seed_oss", head_dim=8),
    "nemotron": gated("nemotron"),
    "persimmon": plain("persimmon", intermediate_size=48),
    "minicpm3": plain("minicpm3", intermediate_size=48, **MLA),
    "jetmoe": gated("jetmoe", kv_channels=8, num_local_experts=4, num_experts_per_tok=2),
    "arcee": gated("arcee"),
    "apertus": gated("apertus"),
    "afmoe": gated("afmoe", head_dim=8, num_dense_layers=1, **EXPERTS, **MIX),
    "bitnet": gated("bitnet"),
    "diffllama": gated("diffllama"),
    "dots1": gated("dots1", head_dim=8, n_shared_experts=1, **ROUTED, **MIX),
    "doge": gated("doge", keep_window_size=16),
    "modernbert-decoder": plain("modernbert-decoder", intermediate_size=48, local_attention=16, **MIX),
    "mimo_v2_flash": gated("mimo_v2_flash", head_dim=8, v_head_dim=8, **ROUTED, **MIX),
    "cwm": gated("cwm", head_dim=8, **MIX, **rope("default")),
    "nanochat": gated("nanochat"),
    "minimax_m2": gated("minimax_m2", head_dim=8, num_local_experts=4, num_experts_per_tok=2),
    "internlm3": gated("internlm3", head_dim=8),
    "bart, decoder": plain(
        "bart",
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=48,
        encoder_layers=2,
        is_encoder_decoder=False,
    ),
    "bert, decoder": plain("bert", intermediate_size=48, is_decoder=True),
    "deepseek_v32": plain(
        "deepseek_v32",
        intermediate_size=48,
        first_k_dense_replace=1,
        index_topk=8,
        index_head_dim=8,
        index_n_heads=2,
        **MLA,
        **ROUTED,
    ),
    "bert": plain("bert", intermediate_size=48),
    "roberta": plain("roberta", intermediate_size=48, is_decoder=True),
    "xlnet": ("xlnet", {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
    "mamba": plain("mamba", state_size=4),
    "mamba2": plain("mamba2", state_size=4, head_dim=8, num_heads=8, n_groups=2, chunk_size=8),
    "jamba": gated("jamba", num_experts=2, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4, mamba_dt_rank=4),
    "lfm2": gated("lfm2", layer_types=["conv", "full_attention"]),
    "qwen3_next": gated(
        "qwen3_next",
        head_dim=8,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        layer_types=["linear_attention", "full_attention"],
        **EXPERTS,
        **SHARED,
    ),
    "recurrent_gemma": gated("recurrent_gemma", lru_width=32, attention_window_size=8),
    "minimax": gated("minimax", head_dim=8, num_local_experts=2, layer_types=["linear_attention", "full_attention"]),
    **WITH_ENCODER,
}
"""By a name, the model type and its configuration."""

REFUSED = {
    "deepseek_v32": "indexer", "bert": "tokens after it", "roberta": "differ", "xlnet": "tokens after it|keeps no keys",
    "umt5": "fails with a ragged cache", "m2m_100": "fails with a ragged cache", "openai-gpt": "keeps no keys",
    "doge": "tokens after it",
    **dict.fromkeys(
        ("mamba", "mamba2", "jamba", "lfm2", "qwen3_next", "recurrent_gemma", "minimax"), "recurrent state"
    ),
}
"""What the sentence says that refuses a family."""
CAPPED = {"llama, dynamic": 20, "phi3, longrope": 20}
"""Families that are served up to fewer than LENGTH positions."""
CHAINS_ONLY = frozenset({"gpt_neo", "gpt_neox_japanese", "mpt", "llama4_text", "bart, decoder"})
"""Families whose rows pass one by one."""
# fmt: on


def random_family(name: str) -> Any:
    """A random module of a family."""
    kind, told = FAMILIES[name]
    module = prepared(tf.AutoConfig.for_model(kind, **told))
    start = getattr(module.config, "decoder_start_token_id", None)
    module.generation_config = tf.GenerationConfig(pad_token_id=0, bos_token_id=1, decoder_start_token_id=start)
    return module


class Outcome(NamedTuple):
    """What osd does with a family."""

    model: Model | None
    trees: bool
    reason: str = ""
    """Why it is not served, or not in trees."""


def outcome_of(name: str) -> Outcome:
    """Load a family, as osd loads models."""
    module = random_family(name)
    try:
        model = Model(name, module, position_limit(module.config), choose_forward(module, name))
    except CannotServeRagged as error:
        return Outcome(None, False, str(error))
    try:
        check_model(model)
    except CannotServeTrees as error:
        return Outcome(model, False, str(error))
    return Outcome(model, True)


PASSES = {llama_forward: "osd's fused one", RowForward: "the module's, a row at a time"}
NOT_A_REASON = re.compile(r"^[^:]*: |\.? osd serves rows .*|\.? It serves chains.*| by [\d.e-]+")


def cells(name: str) -> tuple[str, str, str, str]:
    """What the table says of a family: exact up to which length, by which pass, with trees or not, and why not."""
    found = outcome_of(name)
    reason = NOT_A_REASON.sub("", found.reason)
    if found.model is None:
        return "refused", "", "", reason
    whole = found.model.limit >= LENGTH
    length = "its last position" if whole else "the length it was first trained for"
    return length, PASSES.get(found.model.build, "the module's"), "yes" if found.trees else "no", reason


def main() -> None:
    """Print the table: families of which the same is to be said share a line."""
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in FAMILIES:
        alike.setdefault(cells(name), []).append(name)
    print("| families | exact up to | pass | trees | why not |\n|---|---|---|---|---|")
    for told, names in alike.items():
        print(f"| {'; '.join(names)} | {' | '.join(told)} |")


if __name__ == "__main__":
    main()
