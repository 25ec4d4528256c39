"""MTP heads in their target's checkpoint: taken out as a folder of their own, and put back into a copy.

| form | tensors |
|---|---|
| MiMo | model.mtp_layers.K |
| Qwen3-Next | mtp |
| GLM-4 MoE | model.layers.K, K from num_hidden_layers on |

osd computes MiMo's, a dense layer of Qwen2's kind. Those of the others have experts, and are refused by their names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from osd.models.features.base import FeatureDraftNotLoaded
from osd.models.features.files import WEIGHTS
from osd.models.features.mtp import ARCHITECTURE
from storage.errors import BadInput
from storage.versions.feature_kinds import MTP_NAMES, read_config, tensor_shapes
from storage.versions.weights import copy_files, servable_files

MIMO = "model.mtp_layers."
DENSE = ("Qwen2ForCausalLM", ARCHITECTURE)
"""Architectures that vLLM serves with an MTP head of MiMo's."""
EMBEDDINGS = "model.embed_tokens.weight"


def take_heads(checkpoint: Path, folder: Path) -> bool:
    """Write the MTP head of a checkpoint into a folder as a draft; return whether there is one. Raises
    FeatureDraftNotLoaded for heads that osd does not compute."""
    facts = read_config(checkpoint)
    names = sorted(head_names(tensor_shapes(checkpoint), facts.get("num_hidden_layers")))
    if not names:
        return False
    if not names[0].startswith(MIMO):
        form = "Qwen3-Next" if MTP_NAMES.match(names[0]) else "GLM-4 MoE"
        reason = f"its MTP heads are of {form}'s form ({names[0]}); osd computes MiMo's, a dense layer ({MIMO}0)."
        raise FeatureDraftNotLoaded(path=checkpoint, reason=reason)
    tensors: dict[str, Tensor] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in {*file.keys()} & {*names}}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
    return True


def head_names(names: Iterable[str], layers: Any) -> list[str]:
    """Return those of a checkpoint's tensors that are of MTP heads. ``layers``: num_hidden_layers."""
    numbered = re.compile(r"^model\.layers\.(\d+)\.")

    def beyond(name: str) -> bool:
        number = numbered.match(name)
        return number is not None and isinstance(layers, int) and int(number[1]) >= layers

    return [name for name in names if MTP_NAMES.match(name) or beyond(name)]


def merge_heads(draft: Path, checkpoint: Path, folder: Path) -> None:
    """Write a target's checkpoint into a folder with the MTP head of a draft's, in place of its own or beside what it
    has. One that ties its output layer to its embeddings gets a copy of them: vLLM loads a head beside both.

    Raises BadInput for a target of which vLLM serves no such head.
    """
    facts = read_config(checkpoint)
    names = tensor_shapes(checkpoint)
    if (known := (facts.get("architectures") or ["none"])[0]) not in DENSE or EMBEDDINGS not in names:
        reason = f"{checkpoint} is {known}, with {EMBEDDINGS if EMBEDDINGS in names else 'other embeddings'}; vLLM"
        raise BadInput(reason=f"{reason} serves MTP heads of osd's kind with {' and '.join(DENSE)}.")
    new = {name: each for name, each in load_file(draft / WEIGHTS).items() if name.startswith(MIMO)}
    gone = {*head_names(names, facts.get("num_hidden_layers"))}
    copy_files(checkpoint, servable_files(checkpoint), folder)
    for path in sorted(folder.glob("*.safetensors")):
        found = load_file(path)
        kept = {name: each for name, each in found.items() if name not in gone}
        if EMBEDDINGS in kept:
            if "lm_head.weight" not in names:
                new["lm_head.weight"] = kept[EMBEDDINGS].clone()
            _index(folder, path.name, gone, new)
            kept |= new
        if kept.keys() != found.keys() or EMBEDDINGS in kept:
            save_file(kept, path, metadata={"format": "pt"})
    facts |= {"architectures": [ARCHITECTURE], "num_nextn_predict_layers": 1, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")


def _index(folder: Path, file: str, gone: set[str], new: Mapping[str, Tensor]) -> None:
    """Name the new tensors in the index, where the checkpoint is in several files."""
    path = folder / "model.safetensors.index.json"
    if path.is_file():
        index = json.loads(path.read_text("utf-8"))
        kept = {name: where for name, where in index["weight_map"].items() if name not in gone}
        index["weight_map"] = kept | dict.fromkeys(new, file)
        path.write_text(json.dumps(index, indent=2) + "\n", "utf-8")
