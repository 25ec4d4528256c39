"""Reads and writes feature drafts as folders: config.json and model.safetensors, by the names that vLLM's loaders take.

| kind | config.json | tensors |
|---|---|---|
| medusa | model_type medusa | blocks.K.layers.I, lm_heads.K, token_map |
| eagle | architectures EagleLlamaForCausalLM | fc, layers.0 |
| eagle3 | architectures LlamaForCausalLMEagle3 | fc, midlayer, norm, input_norm, fc_norm.I, lm_head, d2t, t2d |
| peagle | the same, with ptd_token_id | the same, but layers.I, mask_hidden, embed_tokens |
| dflash | architectures DFlashDraftModel | fc, hidden_norm, layers.I, norm, lm_head, d2t, t2d |
| mtp | architectures MiMoForCausalLM, num_nextn_predict_layers 1 | model.mtp_layers.0 |

The target's embeddings and output layer are not among them; a published folder may hold them, if they are the target's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from osd.models.features import mtp
from osd.models.features.base import FeatureDraft, FeatureDraftNotLoaded, id_list
from osd.models.features.checks import require_fit, require_same_embeddings, require_vocabulary, take_out_head
from osd.models.features.dflash import DFlashDraft
from osd.models.features.eagle import Eagle3Draft, EagleDraft, depths
from osd.models.features.keys import brief, disagree, read_keys
from osd.models.features.medusa import MedusaConfig, MedusaDraft
from osd.models.features.peagle import PEagleDraft
from osd.models.features.speculators import plain_facts
from osd.models.features.target import FeatureTarget
from osd.models.weights import first_line
from storage.versions.feature_kinds import feature_kind, read_config

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
    *mtp.RENAMED,
)
"""Names of published folders, as ours."""


def load_feature_draft(folder: str | Path, target: FeatureTarget) -> FeatureDraft:
    """Load a feature draft for a target, in its type of number and on its device, in evaluation mode.

    Raises FeatureDraftNotLoaded, FeatureDraftMismatch.
    """
    folder = Path(folder)
    tensors, kind = _read(folder), feature_kind(folder)
    if kind is None:
        raise FeatureDraftNotLoaded(path=folder, reason="its config.json names no kind of feature draft.")
    facts = read_keys(folder, kind, plain_facts(folder, read_config(folder)))
    require_fit(folder, facts, target, facts.get(FOR_TARGET))
    require_same_embeddings(folder, tensors, target, kept=kind == "peagle")
    make = {"medusa": _medusa, "mtp": _mtp}.get(kind, partial(_layered, kind))
    draft = make(folder, facts, tensors, target)
    weight = target.head.weight
    return draft.to(device=weight.device, dtype=weight.dtype).eval().requires_grad_(False)


def save_feature_draft(draft: FeatureDraft, folder: str | Path, target: FeatureTarget, *, whole: bool = False) -> None:
    """Write a draft's folder, its own weights alone. With ``whole`` also what engines do not take from the target: the
    rows of its output layer that the draft proposes, and beside MTP heads its embeddings."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in draft.state_dict().items()}
    if draft.kind == "eagle3":
        tensors = {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}
    if isinstance(draft, mtp.MtpDraft):
        tensors = {mtp.published_name(name): value for name, value in tensors.items()}
        if whole:
            tensors |= mtp.shared_tensors(target.embeddings, target.head.weight)
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
    needs = isinstance(draft, MedusaDraft) or (draft.kind not in ("eagle", "mtp") and draft.token_map is not None)
    if has_own or not needs:
        return None
    weight = target.head.weight.detach()
    return weight.clone() if draft.token_map is None else weight[draft.token_map.to(weight.device)]


def _vocabulary_tensors(draft: FeatureDraft) -> Tensors:
    """Return a draft vocabulary as its kind's loader reads it: ``token_map`` (Vd,) ids, or ``d2t`` (Vd,) what is to be
    added to a place to have its id, and ``t2d`` (V,) which ids there are."""
    if draft.token_map is None or draft.kind in ("eagle", "mtp"):
        return {}
    ids = draft.token_map.cpu()
    if isinstance(draft, MedusaDraft):
        return {"token_map": ids}
    return {"d2t": ids - torch.arange(len(ids)), "t2d": _known(ids, draft.vocab_size)}


def _known(ids: Tensor | None, size: int) -> Tensor:
    """Return which ids (size,) there are in a draft vocabulary."""
    known = torch.full((size,), ids is None)
    if ids is not None:
        known[ids] = True
    return known


def _facts(draft: FeatureDraft) -> dict[str, Any]:
    facts: dict[str, Any] = draft.config.to_dict()
    dtype = str(next(draft.parameters()).dtype).removeprefix("torch.")
    facts |= {"architectures": [ARCHITECTURES[draft.kind]], "dtype": dtype}
    if isinstance(draft, Eagle3Draft | DFlashDraft):
        facts["draft_vocab_size"] = draft.vocab_size if draft.token_map is None else len(draft.token_map)
    if isinstance(draft, DFlashDraft):
        facts["dflash_config"] = {name: facts.pop(name) for name in IN_BLOCK if facts.get(name) is not None}
    elif isinstance(draft, PEagleDraft):
        facts["ptd_token_id"] = facts.pop("mask_token_id")
    if isinstance(draft, Eagle3Draft):
        facts["num_aux_hidden_states"] = len(draft.read_layers)
        if draft.config.model_type == "qwen3":
            facts["architectures"] = ["Eagle3Qwen3ForCausalLM"]
    elif isinstance(draft, EagleDraft):
        facts |= mtp.FACTS if draft.kind == "mtp" else {}
        facts.pop(VOCABULARY, None)
        if draft.token_map is not None:
            facts[VOCABULARY] = id_list(draft.token_map)
    return facts


ARCHITECTURES = {
    "medusa": "MedusaModel", "eagle": "EagleLlamaForCausalLM", "eagle3": "LlamaForCausalLMEagle3",
    "peagle": "LlamaForCausalLMEagle3", "dflash": "DFlashDraftModel",
    "mtp": mtp.ARCHITECTURE,
}  # fmt: skip
NEEDED = {
    "peagle": ("mask_token_id",), "dflash": ("mask_token_id", "block_size", "target_layer_ids", "rope_parameters"),
}  # fmt: skip
"""Fields for which there is nothing to be taken where they are not said."""
MASK = "mask_embedding.pt"
"""Where vLLM looks for another embedding of masked positions than the mask token's."""
IN_BLOCK = ("mask_token_id", "target_layer_ids", "causal")
"""Fields of ``dflash_config``."""


# reading


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


def _medusa(folder: Path, facts: dict[str, Any], tensors: Tensors, target: FeatureTarget) -> FeatureDraft:
    token_map = _ids(folder, tensors, "token_map")
    require_vocabulary(folder, token_map, target)
    heads = [name for name in tensors if name.startswith("lm_heads.")]
    if token_map is not None:
        cut = {name: tensors[name][token_map] for name in heads if len(tensors[name]) > len(token_map)}
        tensors.update(cut)
    if facts.get("original_lm_head"):
        take_out_head(folder, tensors, "lm_heads.0.weight", token_map, target, required=True)
    told = {
        "num_heads": _count(tensors, "blocks."), "num_hidden_layers": _count(tensors, "blocks.0.layers."),
        "medusa_fc_bias": "blocks.0.layers.0.bias" in tensors,
        "original_lm_head": not heads or facts.get("original_lm_head", False),
        "truncated_vocab_size": target.vocab_size if token_map is None else len(token_map),
    }  # fmt: skip
    facts = _agreed(folder, facts, told)
    return _filled(folder, lambda: MedusaDraft(MedusaConfig(**facts), token_map), tensors)


def _count(tensors: Tensors, before: str) -> int:
    return len({name[len(before) :].split(".")[0] for name in tensors if name.startswith(before)})


def _layered(kind: str, folder: Path, facts: dict[str, Any], tensors: Tensors, target: FeatureTarget) -> FeatureDraft:
    ids, known = None if kind == "eagle" else _ids(folder, tensors, "d2t"), tensors.pop("t2d", None)
    token_map: Tensor | None = None if ids is None else ids + torch.arange(len(ids))
    if VOCABULARY in facts:
        token_map = torch.tensor(facts[VOCABULARY], dtype=torch.long)
    require_vocabulary(folder, token_map, target)
    told: dict[str, Any] = {
        "attention_bias": "layers.0.self_attn.q_proj.bias" in tensors,
        "draft_vocab_size": target.vocab_size if ids is None else len(ids),
    }  # fmt: skip
    if kind in NEEDED:
        _require_said(folder, facts, NEEDED[kind])
        told["num_hidden_layers"] = _count(tensors, "layers.")
    if kind != "dflash":
        tied = facts.get("tie_word_embeddings", False) and target.head.weight is target.embeddings
        told |= {"bias": "fc.bias" in tensors, "tie_word_embeddings": tied}
    if kind in ("eagle3", "peagle"):
        facts.setdefault("eagle_aux_hidden_state_layer_ids", list(depths(target.layers)))
        told["num_aux_hidden_states"] = len(facts["eagle_aux_hidden_state_layer_ids"])
    facts = _agreed(folder, facts, told)
    if known is not None and not torch.equal(known, _known(token_map, target.vocab_size)):
        raise FeatureDraftNotLoaded(path=folder, reason="its t2d does not mark the tokens that its d2t names.")
    if token_map is not None and torch.equal(token_map, torch.arange(target.vocab_size)):
        token_map = None
    take_out_head(folder, tensors, "lm_head.weight", token_map, target, required=kind == "eagle")
    facts = {"num_hidden_layers": 1} | facts | {"bos_token_id": None, "eos_token_id": None}
    return _filled(folder, lambda: _layers(kind, facts, token_map, tensors.keys()), tensors)


def _mtp(folder: Path, facts: dict[str, Any], tensors: Tensors, target: FeatureTarget) -> FeatureDraft:
    ids = facts.get(VOCABULARY)
    require_vocabulary(folder, ids, target)
    take_out_head(folder, tensors, "lm_head.weight", None, target, required=True)
    facts = facts | {"bos_token_id": None, "eos_token_id": None, "attention_bias": False}
    facts["num_hidden_layers"] = target.layers  # as the target's checkpoint counts them
    token_map = None if ids is None else torch.tensor(ids, dtype=torch.long)
    return _filled(folder, lambda: _layers("mtp", facts, token_map, ()), tensors)


def _require_said(folder: Path, facts: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise FeatureDraftNotLoaded for a field that is not said, and for a mask's embedding in a file of its own."""
    if (folder / MASK).exists():
        reason = f"its masked positions have an embedding of their own, pickled in {MASK}, which osd does not read."
        raise FeatureDraftNotLoaded(path=folder, reason=reason)
    for name in names:
        if facts.get(name) in (None, []):
            raise FeatureDraftNotLoaded(path=folder, reason=f"its config.json does not say {name}.")


def _layers(kind: str, facts: dict[str, Any], token_map: Tensor | None, given: Collection[str]) -> FeatureDraft:
    """Make a draft of decoder layers. ``given``: names of its tensors. Raises ValueError for what cannot be
    computed."""
    of_qwen = kind == "dflash" or facts.get("model_type") == "qwen3"
    said = {name: value for name, value in facts.items() if name != "model_type"}
    slides = {"use_sliding_window": "sliding_window" in facts}
    config: Any = Qwen3Config(**said | slides) if of_qwen else LlamaConfig(**said)
    if of_qwen and facts.get("mlp_bias"):
        raise ValueError("a layer of Qwen3's kind has no mlp_bias")
    heads, head_dim = config.num_key_value_heads or 0, config.head_dim or 0
    if not heads or config.num_attention_heads % heads or head_dim % 2:
        raise ValueError("num_attention_heads is no multiple of num_key_value_heads, or head_dim is odd")
    own_head = "lm_head.weight" in given
    draft: EagleDraft | DFlashDraft
    if kind == "dflash":
        draft = DFlashDraft(config, token_map, own_head=own_head)
    elif kind == "peagle":
        draft = PEagleDraft(config, token_map, own_head=own_head, own_embed="embed_tokens.weight" in given)
    elif kind == "mtp":
        draft = mtp.MtpDraft(config, token_map)
    elif kind == "eagle3":
        draft = Eagle3Draft(config, token_map, own_head=own_head)
    else:
        draft = EagleDraft(config, token_map)
    if not draft.rotary.inv_freq.is_meta and not bool(draft.rotary.inv_freq.isfinite().all()):
        raise ValueError("rope_parameters give positions that are not finite")
    return draft


def _ids(folder: Path, tensors: Tensors, name: str) -> Tensor | None:
    """Take a list of token ids out of the tensors. Raises FeatureDraftNotLoaded where it is none."""
    found = tensors.pop(name, None)
    if found is not None and (found.is_floating_point() or found.is_complex() or found.dim() != 1):
        raise FeatureDraftNotLoaded(path=folder, reason=f"its {name} is no list of whole numbers.")
    return None if found is None else found.long()


def _agreed(folder: Path, facts: dict[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what config.json says with what the tensors say. Raises FeatureDraftNotLoaded where they differ."""
    for name in facts.keys() & told.keys():
        if facts[name] != told[name]:
            raise disagree(folder, f"{name} is {brief(facts[name])}", f"{brief(told[name])} by its tensors")
    return facts | dict(told)


def _filled(folder: Path, make: Callable[[], FeatureDraft], tensors: Tensors) -> FeatureDraft:
    """Make a draft and put the tensors in their places. Raises FeatureDraftNotLoaded where they are not those of such a
    draft, before memory is taken for it."""
    try:
        with torch.device("meta"):
            wanted = {name: tuple(value.shape) for name, value in make().state_dict().items()}
    except Exception as error:  # a configuration of another's, which fails in whatever way
        reason = f"its config.json makes no draft: {first_line(error)}"
        raise FeatureDraftNotLoaded(path=folder, reason=reason) from None
    for name in sorted(wanted.keys() | tensors.keys()):
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != wanted.get(name):
            theirs, ours = found or "missing", wanted.get(name) or "not part of such a draft"
            raise FeatureDraftNotLoaded(path=folder, reason=f"{name} is {theirs}, and by config.json it is {ours}.")
    draft = make()
    draft.load_state_dict(tensors)
    return draft
