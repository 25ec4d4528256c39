"""Folders of the speculators library, of EAGLE-3 drafts: config.json has the layer's fields in a table of their own,
and names the target, so that `vllm serve FOLDER` serves both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from osd.models.features.base import FeatureDraftNotLoaded
from osd.models.features.keys import HARMLESS, brief, disagree
from osd.models.features.target import FeatureTarget

TYPE, LAYER, DRAFTING = "speculators_model_type", "transformer_layer_config", "speculators_config"
VERSION = "0.9.0"
"""The speculators whose form is written."""
OUTSIDE = (
    "draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output",
    "eagle_aux_hidden_state_layer_ids",
)  # fmt: skip
"""Fields that stand at the top, where loaders read them alone."""
NO_NUMBER = frozenset({*HARMLESS, TYPE, LAYER, DRAFTING, "speculators_version", "tie_word_embeddings"})
"""Fields at the top that change no number of a draft: how many tokens are drafted, and for which target, is asked for
when it serves, and its output layer is in the files."""


def plain_facts(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of config.json as those of a plain folder; unchanged where it is one. Raises
    FeatureDraftNotLoaded for another kind than EAGLE-3, and for what is said twice or where loaders do not read it."""
    if TYPE not in facts:
        return dict(facts)
    layer = facts.get(LAYER)
    if facts[TYPE] != "eagle3" or not isinstance(layer, dict):
        said = f"{TYPE} = {brief(facts[TYPE])} and {LAYER} = {brief(layer)}"
        reason = f"config.json has {said}; of the speculators library's, osd reads eagle3, with a table."
        raise FeatureDraftNotLoaded(path=folder, reason=reason)
    if facts.get("norm_before_residual") is None:
        reason = "config.json does not say norm_before_residual, for which vLLM takes true and speculators false."
        raise FeatureDraftNotLoaded(path=folder, reason=reason)
    inside = {name: value for name, value in layer.items() if name not in {*NO_NUMBER, "architectures"}}
    top = {name: value for name, value in facts.items() if name not in NO_NUMBER}
    for name in inside.keys() & {*OUTSIDE, *top}:
        if inside[name] != top.get(name):
            at_top = f"{brief(top.get(name))} at the top, where it is read"
            raise disagree(folder, f"{name} is {brief(inside[name])} in {LAYER}", at_top)
    return inside | top


def rewrite_for_speculators(folder: Path, target: FeatureTarget, tokens: int) -> None:
    """Change an EAGLE-3 draft's folder with all that engines need, in place, into one of the speculators library, which
    asks for ``tokens`` drafted tokens a round."""
    layer = json.loads((folder / "config.json").read_text("utf-8"))
    facts: dict[str, Any] = {"norm_before_residual": False}
    facts |= {name: layer.pop(name) for name in (*OUTSIDE, "osd_target", "dtype") if name in layer}
    facts |= {"architectures": ["Eagle3DraftModel"], TYPE: "eagle3", "speculators_version": VERSION}
    del layer["architectures"]
    facts |= {LAYER: layer, DRAFTING: _drafting(target, tokens)}
    (folder / "config.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    path = folder / "model.safetensors"
    tensors = {name.replace("midlayer.", "layers.0."): value for name, value in load_file(path).items()}
    tensors.setdefault("lm_head.weight", target.head.weight.detach().cpu().contiguous())
    save_file(tensors, path, metadata={"format": "pt"})


def _drafting(target: FeatureTarget, tokens: int) -> dict[str, Any]:
    """Return what an engine asks of such a folder beside the draft."""
    name, method = Path(target.name), {"proposal_type": "greedy", "speculative_tokens": tokens}
    return {
        "algorithm": "eagle3", "default_proposal_method": "greedy",
        "proposal_methods": [method | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
        "verifier": {
            "name_or_path": str(name.absolute()) if name.is_dir() else target.name,
            "architectures": target.module.config.architectures or [],
        },
    }  # fmt: skip
