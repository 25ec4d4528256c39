"""Folders of the speculators library, of EAGLE-3, P-EAGLE and DFlash drafts: config.json has the layers' fields in a
table of their own, and names the target, so that `vllm serve FOLDER` serves both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, Qwen3Config

from osd.models.features.base import FeatureDraftNotLoaded
from osd.models.features.keys import HARMLESS, brief, disagree
from osd.models.features.target import FeatureTarget
from storage.versions.feature_kinds import DFLASH, EAGLE3, PEAGLE, feature_kind

ARCHITECTURES = {EAGLE3: "Eagle3DraftModel", PEAGLE: "PEagleDraftModel", DFLASH: "DFlashDraftModel"}
"""The library's own class of each kind that has this form."""
TYPE, LAYER, DRAFTING = "speculators_model_type", "transformer_layer_config", "speculators_config"
VERSION = "0.9.0"
"""The speculators whose form is written."""
OUTSIDE = (
    "draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output",
    "eagle_aux_hidden_state_layer_ids", "mask_token_id", "block_size", "aux_hidden_state_layer_ids",
    "sliding_window_non_causal", "sample_from_anchor",
)  # fmt: skip
"""Fields that stand at the top, where loaders read them alone."""
NO_NUMBER = frozenset({*HARMLESS, TYPE, LAYER, DRAFTING, "speculators_version", "tie_word_embeddings"})
"""Fields at the top that change no number of a draft: how many tokens are drafted, and for which target, is asked for
when it serves, and its output layer is in the files."""


def plain_facts(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of config.json as those of a plain folder; unchanged where it is one. Raises
    FeatureDraftNotLoaded for another kind, and for what is said twice or where loaders do not read it."""
    if TYPE not in facts:
        return dict(facts)
    layer, kind = facts.get(LAYER), facts[TYPE]
    if kind not in tuple(ARCHITECTURES) or not isinstance(layer, dict):
        said = f"{TYPE} = {brief(kind)} and {LAYER} = {brief(layer)}"
        known = ", ".join(ARCHITECTURES)
        reason = f"config.json has {said}; of the speculators library's, osd reads {known}, with a table."
        raise FeatureDraftNotLoaded(path=folder, reason=reason)
    if kind == EAGLE3 and facts.get("norm_before_residual") is None:
        reason = "config.json does not say norm_before_residual, for which vLLM takes true and speculators false."
        raise FeatureDraftNotLoaded(path=folder, reason=reason)
    inside = {name: value for name, value in layer.items() if name not in {*NO_NUMBER, "architectures"}}
    top = {name: value for name, value in facts.items() if name not in NO_NUMBER}
    for name in inside.keys() & {*OUTSIDE, *top}:
        if inside[name] != top.get(name):
            at_top = f"{brief(top.get(name))} at the top, where it is read"
            raise disagree(folder, f"{name} is {brief(inside[name])} in {LAYER}", at_top)
    of_qwen = kind == DFLASH or inside.get("model_type") == "qwen3"
    unsaid: Any = Qwen3Config() if of_qwen else LlamaConfig()  # the library leaves out what is as usual
    usual = {"hidden_size": unsaid.hidden_size, "vocab_size": unsaid.vocab_size}
    return usual | inside | (_block_facts(top) if kind == DFLASH else top)


def _block_facts(top: dict[str, Any]) -> dict[str, Any]:
    """Return DFlash's fields at the top by the names of a plain folder. The library counts hidden states from the
    embeddings on; full attention sees the whole block, and a window's only where that is said."""
    read, whole = top.get("aux_hidden_state_layer_ids"), top.get("sliding_window_non_causal")
    if isinstance(read, list) and all(type(each) is int for each in read):
        top["target_layer_ids"] = [each - 1 for each in top.pop("aux_hidden_state_layer_ids")]
    if whole is True or whole is False:
        del top["sliding_window_non_causal"]
    return top | ({"causal": False} if whole is True else {})


def rewrite_for_speculators(folder: Path, target: FeatureTarget, tokens: int) -> None:
    """Change a draft's folder with all that engines need, in place, into one of the speculators library, which asks for
    ``tokens`` drafted tokens a round, or for DFlash's block."""
    kind, layer = str(feature_kind(folder)), json.loads((folder / "config.json").read_text("utf-8"))
    facts: dict[str, Any] = {} if kind == DFLASH else {"norm_before_residual": False}
    if kind == DFLASH:
        block = layer.pop("dflash_config")
        slides = "sliding_attention" in layer["layer_types"]
        facts["aux_hidden_state_layer_ids"] = [each + 1 for each in block["target_layer_ids"]]
        facts |= {"mask_token_id": block["mask_token_id"], "sliding_window_non_causal": not block.get("causal", slides)}
        tokens = layer["block_size"] - 1
    elif kind == PEAGLE:
        facts["mask_token_id"] = layer.pop("ptd_token_id")
    facts |= {name: layer.pop(name) for name in (*OUTSIDE, "osd_target", "dtype") if name in layer}
    facts |= {"architectures": [ARCHITECTURES[kind]], TYPE: kind, "speculators_version": VERSION}
    del layer["architectures"]
    facts |= {LAYER: layer, DRAFTING: _drafting(target, kind, tokens)}
    (folder / "config.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    path = folder / "model.safetensors"
    tensors = {name.replace("midlayer.", "layers.0."): value for name, value in load_file(path).items()}
    tensors.setdefault("lm_head.weight", target.head.weight.detach().cpu().contiguous())
    if kind != DFLASH:  # as the library writes it: what is missing is left by it as memory happens to be
        tensors.setdefault("embed_tokens.weight", target.embeddings.detach().cpu().contiguous())
    save_file(tensors, path, metadata={"format": "pt"})


def _drafting(target: FeatureTarget, kind: str, tokens: int) -> dict[str, Any]:
    """Return what an engine asks of such a folder beside the draft."""
    name, method = Path(target.name), {"proposal_type": "greedy", "speculative_tokens": tokens}
    return {
        "algorithm": kind, "default_proposal_method": "greedy",
        "proposal_methods": [method | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
        "verifier": {
            "name_or_path": str(name.absolute()) if name.is_dir() else target.name,
            "architectures": target.module.config.architectures or [],
        },
    }  # fmt: skip
