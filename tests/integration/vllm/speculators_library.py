"""Run by the Python that has the speculators library, in a process of its own.

``write KIND TARGET FOLDER FIELDS``: let the library make a draft of random weights for a target, by its trainer's own
constructors, and save it. ``read FOLDER FOUND``: let it load a folder, and write (safetensors) all its tensors, and of
an EAGLE-3 draft the logits over the features and tokens that stand in the file FOUND.
"""

from __future__ import annotations

import json
import sys
from typing import Any

STEPS = 3


def write(kind: str, target: str, folder: str, fields: str) -> None:
    """Save a draft as the library's trainer does."""
    import torch
    from speculators.model import SpeculatorModel
    from speculators.train.cli import create_transformer_layer_config

    told = json.loads(fields)
    layers, arch, window = told.pop("num_layers"), told.pop("draft_arch"), told.pop("full_attention_indices")
    layer = create_transformer_layer_config(target, layers, arch, None, 8, window)
    size = told["draft_vocab_size"]
    chosen = torch.arange(layer.vocab_size) < size
    torch.manual_seed(0)
    draft: Any = SpeculatorModel.registry[kind].from_training_args(
        layer, t2d=chosen, d2t=torch.zeros(size, dtype=torch.long), verifier_name_or_path=target, **told
    )
    for name, weight in draft.named_parameters():  # norms too, so that what is computed shows
        if weight.requires_grad and weight.dim() == 1:
            weight.data = 1 + 0.3 * torch.randn(weight.shape)
        elif weight.requires_grad and name != "embed_tokens.weight":
            weight.data = 1.5 * torch.randn(weight.shape) / weight.shape[-1] ** 0.5
    draft.save_pretrained(folder)


def read(folder: str, found: str) -> None:
    """Load a folder, and write what the library made of it."""
    from safetensors.torch import load_file, save_file
    from speculators.config import SpeculatorModelConfig
    from speculators.model import SpeculatorModel

    config: Any = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    draft: Any = SpeculatorModel.from_pretrained(folder, config=config).eval()
    if (
        config.speculators_model_type == "dflash"
    ):  # it never writes these, and takes them for loaded unless they are NaN
        draft._load_verifier_weights(overwrite_embed_tokens=True)
    tensors = {name: weight.detach().clone() for name, weight in draft.state_dict().items() if "verifier" not in name}
    if config.speculators_model_type == "eagle3":
        tensors |= logits_of(draft, load_file(found))
    save_file(tensors, found)


def logits_of(draft: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the logits of each step over a text, whose column t has the feature of token t and the token after it."""
    import torch

    kept: list[Any] = []
    draft.lm_head.register_forward_hook(lambda _, args, output: kept.append(output))
    tokens = given["tokens"]
    with torch.no_grad():
        draft(given["features"], tokens, torch.zeros_like(tokens), ttt_steps=STEPS)
    return {f"logits.{step}": each.contiguous() for step, each in enumerate(kept)}


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
