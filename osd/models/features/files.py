"""Reads and writes feature drafts as folders: config.json and model.safetensors, by the names that vLLM's loaders take.

| kind | config.json | tensors |
|---|---|---|
| medusa | model_type medusa | blocks.K.layers.I, lm_heads.K, token_map |
| eagle | architectures EagleLlamaForCausalLM | fc, layers.0 |
| eagle3 | architectures LlamaForCausalLMEagle3 | fc, midlayer, norm, lm_head, d2t, t2d |

The target's embeddings and output layer are not among them; a published folder may hold them, if they are the target's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig

from osd.models.features.base import FeatureDraft, FeatureDraftNotLoaded, id_list
from osd.models.features.checks import require_fit, require_same_embeddings, require_vocabulary, take_out_head
from osd.models.features.eagle import Eagle3Draft, EagleDraft, depths
from osd.models.features.medusa import MedusaConfig, MedusaDraft
from osd.models.features.target import FeatureTarget
from storage.versions.feature_kinds import feature_kind

Tensors = dict[str, Tensor]
WEIGHTS = "model.safetensors"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
CONVERT = (
    "its weights are pickled ({name}), and unpickling runs whatever a file says. Convert it where you trust it: "
    'python -c "import torch, safetensors.torch as s; s.save_file({{k: v.contiguous() for k, v in '
    "torch.load('{name}', map_location='cpu', weights_only=True).items()}}, 'model.safetensors')\"."
)
FOR_TARGET = "osd_target"
"""Field of config.json with the digest of the target's files."""
VOCABULARY = "osd_draft_vocabulary"
"""Field of config.json with an EAGLE draft's vocabulary, which no loader of that kind reads: without it the draft
proposes all tokens."""
RENAMED = (
    (re.compile(r"^(?:medusa_heads\.|model\.)"), ""),
    (re.compile(r"^(\d+)\.(\d+)\.linear\.(weight|bias)$"), r"blocks.\1.layers.\2.\3"),
    (re.compile(r"^(\d+)\.\d+\.weight$"), r"lm_heads.\1.weight"),
    (re.compile(r"^midlayer\."), "layers.0."),
)
"""Names of published folders, as ours."""


def load_feature_draft(folder: str | Path, target: FeatureTarget) -> FeatureDraft:
    """Load a feature draft for a target, in its type of number and on its device, in evaluation mode.

    Raises FeatureDraftNotLoaded, FeatureDraftMismatch.
    """
    folder = Path(folder)
    facts, tensors = _config(folder), _read(folder)
    kind = feature_kind(folder)
    if facts is None or kind is None:
        raise FeatureDraftNotLoaded(path=folder, reason="its config.json names no kind of feature draft.")
    require_fit(folder, facts, target, facts.get(FOR_TARGET))
    require_same_embeddings(folder, tensors, target)
    made = _medusa(folder, facts, tensors, target) if kind == "medusa" else _eagle(kind, folder, facts, tensors, target)
    draft: FeatureDraft = _filled(folder, made, tensors)
    weight = target.head.weight
    return draft.to(device=weight.device, dtype=weight.dtype).eval().requires_grad_(False)


def save_feature_draft(draft: FeatureDraft, folder: str | Path, target: FeatureTarget, *, whole: bool = False) -> None:
    """Write a draft's folder, its own weights alone. With ``whole`` also what engines cannot take from the target: the
    rows of its output layer that the draft proposes."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in draft.state_dict().items()}
    if isinstance(draft, Eagle3Draft):
        tensors = {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}
    tensors |= _vocabulary_tensors(draft)
    if whole and (rows := _rows(draft, target)) is not None:
        tensors["lm_heads.0.weight" if isinstance(draft, MedusaDraft) else "lm_head.weight"] = rows.cpu().contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    facts = _facts(draft) | ({} if target.digest is None else {FOR_TARGET: target.digest})
    (folder / "config.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")


def _rows(draft: FeatureDraft, target: FeatureTarget) -> Tensor | None:
    """Return the rows (Vd, H) of the target's output layer that an engine needs in the folder; None where it takes them
    from the target, or the draft has its own."""
    has_own = draft.lm_head is not None or (isinstance(draft, MedusaDraft) and len(draft.lm_heads))
    needs = isinstance(draft, MedusaDraft) or (isinstance(draft, Eagle3Draft) and draft.token_map is not None)
    if has_own or not needs:
        return None
    weight = target.head.weight.detach()
    return weight.clone() if draft.token_map is None else weight[draft.token_map.to(weight.device)]


def _vocabulary_tensors(draft: FeatureDraft) -> Tensors:
    """Return a draft vocabulary as its kind's loader reads it: ``token_map`` (Vd,) ids, or ``d2t`` (Vd,) what is to be
    added to a place to have its id, and ``t2d`` (V,) which ids there are."""
    if draft.token_map is None or type(draft) is EagleDraft:
        return {}
    ids = draft.token_map.cpu()
    if isinstance(draft, MedusaDraft):
        return {"token_map": ids}
    known = torch.zeros(draft.vocab_size, dtype=torch.bool)
    known[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": known}


def _facts(draft: FeatureDraft) -> dict[str, Any]:
    facts: dict[str, Any] = draft.config.to_dict()
    dtype = str(next(draft.parameters()).dtype).removeprefix("torch.")
    facts |= {"architectures": [ARCHITECTURES[draft.kind]], "dtype": dtype}
    if isinstance(draft, Eagle3Draft):
        facts["draft_vocab_size"] = draft.vocab_size if draft.token_map is None else len(draft.token_map)
    elif isinstance(draft, EagleDraft):
        facts.pop(VOCABULARY, None)
        if draft.token_map is not None:
            facts[VOCABULARY] = id_list(draft.token_map)
    return facts


ARCHITECTURES = {"medusa": "MedusaModel", "eagle": "EagleLlamaForCausalLM", "eagle3": "LlamaForCausalLMEagle3"}


# reading


def _config(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _read(folder: Path) -> Tensors:
    """Read a folder's tensors by our names. Raises FeatureDraftNotLoaded."""
    if not folder.is_dir():
        raise FeatureDraftNotLoaded(path=folder, reason="there is no such folder.")
    files = sorted(folder.glob("*.safetensors"))
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if not files:
        reason = CONVERT.format(name=pickled[0]) if pickled else "there is no .safetensors file in it."
        raise FeatureDraftNotLoaded(path=folder, reason=reason)
    tensors: Tensors = {}
    for path in files:
        try:
            tensors |= {_renamed(name): value for name, value in load_file(path).items()}
        except (OSError, SafetensorError) as error:
            raise FeatureDraftNotLoaded(path=folder, reason=f"{path.name} cannot be read ({error}).") from None
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise FeatureDraftNotLoaded(path=folder, reason=f"{name} holds numbers that are not finite.")
    return tensors


def _renamed(name: str) -> str:
    for pattern, ours in RENAMED:
        name = pattern.sub(ours, name)
    return name


def _medusa(folder: Path, facts: Mapping[str, Any], tensors: Tensors, target: FeatureTarget) -> MedusaDraft:
    given = {key: value for key, value in facts.items() if key not in ("architectures", "model_type", "dtype")}
    given.setdefault("num_heads", given.pop("medusa_num_heads", None) or _count(tensors, "blocks"))
    given.setdefault("num_hidden_layers", given.pop("medusa_num_layers", None) or 1)
    given["medusa_fc_bias"] = "blocks.0.layers.0.bias" in tensors
    token_map = tensors.pop("token_map", None)
    require_vocabulary(folder, token_map, target)
    given["truncated_vocab_size"] = None if token_map is None else len(token_map)
    heads = [name for name in tensors if name.startswith("lm_heads.")]
    if token_map is not None:
        cut = {name: tensors[name][token_map] for name in heads if len(tensors[name]) > len(token_map)}
        tensors.update(cut)
    if facts.get("original_lm_head"):
        take_out_head(folder, tensors, "lm_heads.0.weight", token_map, target, required=True)
    given["original_lm_head"] = not heads or bool(facts.get("original_lm_head"))
    return MedusaDraft(MedusaConfig(**given), token_map)


def _count(tensors: Tensors, prefix: str) -> int:
    return len({name.split(".")[1] for name in tensors if name.startswith(f"{prefix}.")})


def _eagle(kind: str, folder: Path, facts: dict[str, Any], tensors: Tensors, target: FeatureTarget) -> FeatureDraft:
    given = {key: value for key, value in facts.items() if key not in ("architectures", "model_type")}
    config: Any = LlamaConfig(**given | {"bias": "fc.bias" in tensors})
    if kind == "eagle":
        require_vocabulary(folder, ids := facts.get(VOCABULARY), target)
        take_out_head(folder, tensors, "lm_head.weight", None, target, required=True)
        return EagleDraft(config, None if ids is None else torch.tensor(ids))
    nested = facts.get("eagle_config") or {}
    read = facts.get("eagle_aux_hidden_state_layer_ids") or nested.get("eagle_aux_hidden_state_layer_ids")
    config.eagle_aux_hidden_state_layer_ids = list(read or depths(target.layers))
    offsets, _ = tensors.pop("d2t", None), tensors.pop("t2d", None)
    token_map = None if offsets is None else offsets.long() + torch.arange(len(offsets))
    if token_map is not None and torch.equal(token_map, torch.arange(target.vocab_size)):
        token_map = None
    require_vocabulary(folder, token_map, target)
    take_out_head(folder, tensors, "lm_head.weight", token_map, target, required=False)
    return Eagle3Draft(config, token_map, own_head="lm_head.weight" in tensors)


def _filled(folder: Path, draft: Any, tensors: Tensors) -> Any:
    """Put the tensors in their places. Raises FeatureDraftNotLoaded where they are not those of such a draft."""
    wanted = {name: tuple(value.shape) for name, value in draft.state_dict().items()}
    for name in sorted(wanted.keys() | tensors.keys()):
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != wanted.get(name):
            theirs, ours = found or "missing", wanted.get(name) or "not part of such a draft"
            raise FeatureDraftNotLoaded(path=folder, reason=f"{name} is {theirs}, and by config.json it is {ours}.")
    draft.load_state_dict(tensors)
    return draft
