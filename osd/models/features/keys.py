"""What each field of a feature draft's config.json means: computed, without effect on any number, or refused by name.

One table for all kinds. Whoever adds a kind of draft adds its fields here: what is not in the table is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from osd.models.features.base import FeatureDraftNotLoaded

MOST = 1 << 30
"""The largest number that a size or a length may be."""


class KeyRule(NamedTuple):
    """The values that a field may have."""

    said: str
    holds: Callable[[Any], bool]


class Key(NamedTuple):
    """One field of a configuration."""

    use: str
    """computed; harmless: it changes no number; refused: only values that change nothing may stand."""
    rule: KeyRule
    meaning: str = ""
    """What another value would mean."""


def only(*values: Any) -> KeyRule:
    """Return the rule of a field that may have these values alone."""
    said = " or ".join(str(each).lower() if isinstance(each, bool) else str(each) for each in values)
    return KeyRule(said, lambda value: any(type(value) is type(each) and value == each for each in values))


def refused(meaning: str, *fine: Any) -> Key:
    """Return a field whose meaning osd does not compute, but for values that ask for nothing."""
    return Key("refused", only(*fine) if fine else KeyRule("left out", lambda _: False), meaning)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 1e-15 < value < 1e15


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < MOST for each in value)


def _is_full(value: Any) -> bool:
    return isinstance(value, list) and all(each == "full_attention" for each in value)


SIZE = Key("computed", KeyRule("a whole number from 1 on", lambda value: type(value) is int and 0 < value < MOST))
NUMBER = Key("computed", KeyRule("a number above 0", _is_number))
FLAG = Key("computed", only(True, False))
IDS = Key("computed", KeyRule("a list of whole numbers from 0 on", _are_ids))
TABLE = Key("computed", KeyRule("a table", lambda value: isinstance(value, dict)))
TEXT = Key("computed", KeyRule("a text", lambda value: isinstance(value, str)))
ANY = Key("harmless", KeyRule("anything", lambda _: True))

HARMLESS = (
    "_name_or_path", "_model_name_or_path", "_attn_implementation", "_commit_hash", "_from_model_config",
    "attention_dropout", "auto_map",
    "base_model_name_or_path", "begin_suppress_tokens", "bos_token_id", "dtype", "embed_requires_grad", "eos_token_id",
    "has_no_defaults_at_init", "id2label", "initializer_range", "label2id", "max_window_layers",
    "output_attentions", "output_hidden_states",
    "pad_token_id", "pretraining_tp", "problem_type", "return_dict", "torch_dtype", "torchscript",
    "transformers_version", "ttt_steps", "use_cache",
)  # fmt: skip
"""Names, special tokens, what only training reads, the type of numbers in the files (a draft computes in its
target's), and what transformers' modules return."""
TYPES = ("full_attention", "sliding_attention")
LAYER_TYPES = Key("computed", KeyRule(
    f"a list of {' and '.join(TYPES)}", lambda value: isinstance(value, list) and all(each in TYPES for each in value)
))  # fmt: skip
TOKEN = Key("computed", KeyRule("a token's id", lambda value: type(value) is int and 0 <= value < MOST))
SPECULATORS = refused("the speculators library's form of a folder")
QUANTISED = refused("quantised weights")
AT_ONCE = "all tokens of a draft in one pass, as P-EAGLE"
COMMON = {
    **dict.fromkeys(HARMLESS, ANY), **dict.fromkeys(("hidden_size", "vocab_size"), SIZE), "osd_target": TEXT,
    **dict.fromkeys(("compression_config", "quantization_config"), QUANTISED),
    **dict.fromkeys(("speculators_config", "speculators_model_type", "transformer_layer_config"), SPECULATORS),
    "chunk_size_feed_forward": refused("the layer in pieces", 0), "is_encoder_decoder": refused("an encoder", False),
    "logit_scale": refused("logits times a number of its own", 1, 1.0), "parallel_drafting": refused(AT_ONCE, False),
}  # fmt: skip
MEDUSA = COMMON | {
    "model_type": refused("heads of another architecture", "medusa"),
    "architectures": refused("another draft", ["MedusaModel"], []),
    **dict.fromkeys(("num_heads", "num_hidden_layers", "truncated_vocab_size"), SIZE),
    **dict.fromkeys(("original_lm_head", "medusa_fc_bias"), FLAG),
    "tie_word_embeddings": ANY,  # its output layers are the target's, or in the files
}
LAYER = COMMON | {
    "model_type": refused("a layer of another architecture", "llama"),
    "architectures": Key("computed", KeyRule("a list of names", lambda value: isinstance(value, list))),
    "num_hidden_layers": refused("more layers than one", 1), "hidden_act": refused("another activation", "silu"),
    **dict.fromkeys(("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"), SIZE),
    **dict.fromkeys(("max_position_embeddings", "draft_vocab_size", "target_hidden_size"), SIZE),
    **dict.fromkeys(("attention_bias", "mlp_bias", "bias", "tie_word_embeddings"), FLAG),
    "rms_norm_eps": NUMBER, "rope_parameters": TABLE,
    "is_causal": refused("attention to what comes after", True),
    "layer_types": Key("computed", only(["full_attention"], ["sliding_attention"])), "sliding_window": SIZE,
    "use_sliding_window": FLAG._replace(use="harmless"),
    "add_para_norm": refused("norms of the embedding and of the feature, as HASS", False),
    "use_mtp_layernorm": refused("norms of the embedding and of the feature", False),
    "next_layer_regular": refused("layers after the first that read embeddings", True),
    "parallel_draft_step": refused(AT_ONCE, 0, 1), "parallel_draft_heads_num_layers": refused(AT_ONCE, 0),
}  # fmt: skip
EAGLE = LAYER | {
    "osd_draft_vocabulary": IDS,
    "norm_before_residual": refused("EAGLE-3's residual", False),
    **{name: refused("EAGLE-3.1", False) for name in ("fc_norm", "norm_before_fc", "norm_output")},
    "use_aux_hidden_state": refused("hidden states of several depths", False),
    "use_input_layernorm_in_first_layer": refused("a norm of what the layer reads", False),
    "use_last_layernorm": refused("a norm before the output layer", False),
}
EAGLE3 = LAYER | {
    "model_type": Key("computed", only("llama", "qwen3"), "a layer of another architecture"),
    **dict.fromkeys(("norm_before_residual", "fc_norm", "norm_before_fc", "norm_output"), FLAG),
    "eagle_aux_hidden_state_layer_ids": IDS,
    "num_aux_hidden_states": SIZE,
    "use_aux_hidden_state": refused("the last hidden state alone", True),
    "use_input_layernorm_in_first_layer": refused("no norm of the embedding", True),
    "use_last_layernorm": refused("no norm before the output layer", True),
}
MTP = LAYER | {
    "model_type": refused("a layer of another architecture", "qwen2", "mimo"), "osd_draft_vocabulary": IDS,
    "num_hidden_layers": SIZE._replace(use="harmless"), "num_nextn_predict_layers": refused("other heads than one", 1),
    "draft_vocab_size": ANY,
    "attention_bias": refused("a layer of Qwen2's kind has it", True), "tie_word_embeddings": ANY,
    "layer_types": Key("harmless", KeyRule("full_attention alone", _is_full)),
    "use_mrope": refused("positions of several kinds", False),
    "use_mtp_layernorm": refused("other norms of the embedding and of the feature"),
}  # fmt: skip
PEAGLE = EAGLE3 | {
    "num_hidden_layers": SIZE, "layer_types": LAYER_TYPES, "mask_token_id": TOKEN,
    "parallel_drafting": refused("a token a pass", True), "norm_output": FLAG._replace(use="harmless"),
}  # fmt: skip
BLOCK = Key("computed", KeyRule("a whole number from 2 to 256", lambda value: type(value) is int and 2 <= value <= 256))
DSPARK, DFLASH2, SINKS = "DSpark", "DFlash2", "attention as MiMo's DFlash"
DFLASH = {name: key for name, key in LAYER.items() if name not in ("bias", "mlp_bias")} | {
    "model_type": refused("layers of another architecture", "qwen3"),
    "architectures": Key("computed", only(["DFlashDraftModel"]), "DSpark, DFlash2 or another draft"),
    "num_hidden_layers": SIZE, "block_size": BLOCK, "mask_token_id": TOKEN, "target_layer_ids": IDS,
    "layer_types": LAYER_TYPES, **dict.fromkeys(("is_causal", "causal"), FLAG), "num_target_layers": ANY,
    "use_swa": refused("a window that layer_types does not say", False), "tie_word_embeddings": ANY,
    "use_aux_hidden_state": refused("the last hidden state alone", True),
    "sample_from_anchor": refused("a token from the block's first position", False),
    **dict.fromkeys(("attention_sink_bias", "add_swa_attention_sink_bias"), refused(SINKS, False)),
    "attention_value_scale": refused(SINKS, 1, 1.0), "is_neox_style": refused("positions by neighbours", True),
    **dict.fromkeys(("markov_rank", "markov_head_type", "enable_confidence_head"), refused(DSPARK)),
    **dict.fromkeys(("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"), refused(DFLASH2)),
}  # fmt: skip
KEYS: dict[str, dict[str, Key]] = {
    "medusa": MEDUSA, "eagle": EAGLE, "eagle3": EAGLE3, "peagle": PEAGLE, "dflash": DFLASH, "mtp": MTP,
}  # fmt: skip
"""The fields of each kind's config.json."""
ROPE: dict[str, Key] = {
    "rope_type": Key("computed", only("default", "linear", "llama3", "yarn"), "positions that change with the length"),
    **dict.fromkeys(("rope_theta", "factor", "attention_factor", "low_freq_factor", "high_freq_factor"), NUMBER),
    **dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), NUMBER),
    "original_max_position_embeddings": SIZE,
    "truncate": FLAG,
    "partial_rotary_factor": refused("positions in a part of each head", 1, 1.0),
}
"""The fields of rotary positions."""
NESTED = frozenset({
    "eagle_aux_hidden_state_layer_ids", "norm_before_fc", "mask_token_id", "target_layer_ids", "causal", "block_size"
})  # fmt: skip
"""Computed fields that loaders read in ``eagle_config``, or DFlash's in ``dflash_config``, too."""
OTHER_NAMES = {
    "medusa_num_heads": "num_heads", "medusa_num_layers": "num_hidden_layers", "type": "rope_type",
    "pard_token": "mask_token_id", "ptd_token_id": "mask_token_id",
}  # fmt: skip
"""Fields that say the same as another."""


def read_keys(folder: Path, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are computed of a kind's config.json. Raises FeatureDraftNotLoaded for one that is not in
    the table, has a value that it may not have, or is said twice and differs."""
    facts = _said(folder, given)
    table = "dflash_config" if kind == "dflash" else "eagle_config"
    facts = _merged(folder, facts, _nested(folder, kind, facts, table))
    if kind != "medusa":
        if kind == "mtp":
            facts.setdefault("use_sliding_window", False)
        _check_window(folder, facts)
        facts = _rope(folder, facts)
    return _checked(folder, facts, KEYS[kind])


def _nested(folder: Path, kind: str, facts: dict[str, Any], table: str) -> dict[str, Any]:
    """Take out the fields of a nested table. Raises FeatureDraftNotLoaded for one that loaders read at the top alone,
    where it says something else or nothing."""
    found = _said(folder, facts.pop(table, {}), table)
    for name, value in found.items():
        key = KEYS[kind].get(name)
        if key is not None and key.use == "computed" and name not in NESTED and facts.get(name) != value:
            reason = f"{table} has {name} = {brief(value)}, which loaders read at the top of config.json alone."
            raise FeatureDraftNotLoaded(path=folder, reason=reason)
    return found


def _check_window(folder: Path, facts: dict[str, Any]) -> None:
    """Leave out a window that is said not to be used. Raises FeatureDraftNotLoaded for one that is said by half, which
    loaders take for none, or cannot take."""
    types = facts.get("layer_types")
    types = types if isinstance(types, list) else []
    slides = "sliding_attention" in types
    if facts.get("use_sliding_window") is False or (types and not slides):
        facts.pop("sliding_window", None)
    said = {name: facts[name] for name in ("sliding_window", "use_sliding_window", "layer_types") if name in facts}
    sized = "sliding_window" in said
    if types and len(types) != facts.get("num_hidden_layers", 1):
        reason = f"config.json has layer_types = {brief(types)}, and num_hidden_layers names another number."
        raise FeatureDraftNotLoaded(path=folder, reason=reason)
    if slides != sized or (said.get("use_sliding_window") and not slides):
        told = ", ".join(f"{name} = {brief(value)}" for name, value in said.items())
        fine = 'a window is "sliding_attention" in layer_types with sliding_window, in positions'
        raise FeatureDraftNotLoaded(path=folder, reason=f"config.json has {told}; {fine}.")


def _said(folder: Path, given: Any, name: str = "") -> dict[str, Any]:
    """Return the fields of a table that say something, by their newer names."""
    if not isinstance(given, dict):
        raise _wrong(folder, name, given, TABLE)
    facts = {key: value for key, value in given.items() if value is not None}
    for other in OTHER_NAMES.keys() & facts.keys():
        facts = _merged(folder, facts, {OTHER_NAMES[other]: facts.pop(other)})
    return facts


def _rope(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Put what is said of rotary positions, by its older names too, into ``rope_parameters``."""
    rope: dict[str, Any] = {key: facts.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in facts}
    for name in ("rope_parameters", "rope_scaling"):
        rope = _merged(folder, rope, _said(folder, facts.pop(name, {}), name))
    return facts | ({"rope_parameters": _checked(folder, rope, ROPE)} if rope else {})


def _checked(folder: Path, facts: dict[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
    for name, value in facts.items():
        key = keys.get(name)
        if key is None or not key.rule.holds(value):
            raise _wrong(folder, name, value, key)
    return {name: value for name, value in facts.items() if keys[name].use == "computed"}


def _merged(folder: Path, ours: dict[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return both. Raises FeatureDraftNotLoaded where they say different things."""
    for key in ours.keys() & theirs.keys():
        if ours[key] != theirs[key]:
            raise disagree(folder, f"{key} is {brief(ours[key])}", f"{brief(theirs[key])} in another place")
    return ours | dict(theirs)


def disagree(folder: Path, one: str, other: str) -> FeatureDraftNotLoaded:
    """Return the refusal of a folder that says two things."""
    return FeatureDraftNotLoaded(path=folder, reason=f"by config.json {one}, and it is {other}.")


def _wrong(folder: Path, name: str, value: Any, key: Key | None) -> FeatureDraftNotLoaded:
    fine = "does not know it; take it out if it changes no number" if key is None else f"computes {key.rule.said}"
    meaning = f" ({key.meaning})" if key is not None and key.meaning else ""
    return FeatureDraftNotLoaded(path=folder, reason=f"config.json has {name} = {brief(value)}{meaning}; osd {fine}.")


def brief(value: Any) -> str:
    """Return a value in a few letters."""
    said = str(value).lower() if isinstance(value, bool) else repr(value)
    return said if len(said) < 60 else said[:57] + "…"
