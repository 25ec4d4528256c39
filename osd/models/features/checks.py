"""Checks that a feature draft fits a target, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from osd.models.encoder_decoder import require_decoder_only
from osd.models.features.base import FeatureDraftMismatch
from osd.models.features.target import FeatureTarget
from osd.models.hf_forward import layer_stack
from osd.models.model import eos_ids

ROUNDING = 1e-2
"""Share of a weight by which a copy of the target's embeddings may differ, being stored in half precision."""


def require_fit(folder: Path, facts: Mapping[str, Any], target: FeatureTarget, digest: str | None) -> None:
    """Check a draft's configuration against its target: whose hidden states it reads, their width, and the vocabulary.
    ``digest``: of the target that it was made for, None where it does not say. Raises FeatureDraftMismatch."""

    def refuse(reason: str) -> FeatureDraftMismatch:
        return FeatureDraftMismatch(draft=folder, target=target.name, reason=reason)

    if digest is not None and target.digest is not None and digest != target.digest:
        raise refuse(f"it was made for the target with the digest {digest[:8]}, and this one has {target.digest[:8]}.")
    for name in ("target_hidden_size", "hidden_size"):
        if facts.get(name, target.hidden_size if name[0] == "t" else None) != target.hidden_size:
            reason = f"it reads hidden states of width {facts.get(name)}, and the target's have {target.hidden_size}."
            raise refuse(reason)
    require_readable(folder, target)
    if facts.get("vocab_size") != target.vocab_size:
        raise refuse(f"it has {facts.get('vocab_size')} token ids, and the target {target.vocab_size}.")
    read = facts.get("eagle_aux_hidden_state_layer_ids", ())
    if any(each + 2 > target.layers for each in facts.get("target_layer_ids", ())):
        read = facts["target_layer_ids"]
        raise refuse(f"it reads layers {list(read)}, and of the target those from 0 to {target.layers - 2}.")
    if facts.get("mask_token_id", 0) >= target.vocab_size:
        raise refuse(f"its mask_token_id is {facts['mask_token_id']}, and the target has {target.vocab_size} tokens.")
    if any(each > target.layers for each in read):
        raise refuse(f"it reads hidden states {list(read)}, and the target has those from 0 to {target.layers}.")


def require_readable(draft: str | Path, target: FeatureTarget) -> None:
    """Check that a target has layers whose hidden states can be read, as wide as its embeddings. Raises
    FeatureDraftMismatch, NoLayerStack, and DecoderOnly for a target with an encoder."""
    require_decoder_only(target.module, "a draft of hidden states (Medusa, EAGLE, DFlash)", target.name)
    layer_stack(target.module)
    if target.embedding_size != target.hidden_size:
        sizes = f"{target.embedding_size} wide, and its hidden states {target.hidden_size}"
        reason = f"its embeddings are {sizes}; these drafts need both alike."
        raise FeatureDraftMismatch(draft=draft, target=target.name, reason=reason)


def require_vocabulary(name: str | Path, token_map: Tensor | Sequence[int] | None, target: FeatureTarget) -> None:
    """Check a draft vocabulary: the target's ids, each once, the end tokens among them. Raises FeatureDraftMismatch."""
    if token_map is None:
        return
    ids = token_map.tolist() if isinstance(token_map, Tensor) else list(token_map)
    reason = _wrong(ids, target)
    if reason:
        raise FeatureDraftMismatch(draft=name, target=target.name, reason=f"its vocabulary list {reason}.")


def _wrong(ids: list[int], target: FeatureTarget) -> str | None:
    if not ids:
        return "is empty"
    outside = [each for each in ids if not 0 <= each < target.vocab_size]
    if outside:
        return f"names {outside[0]}, and the target's ids end at {target.vocab_size - 1}"
    if len(set(ids)) < len(ids):
        return "names a token twice"
    missing = sorted(eos_ids(target.module) - set(ids))
    return f"lacks the end token {missing[0]}, without which no draft reaches a text's end" if missing else None


def require_same_embeddings(
    folder: Path, tensors: dict[str, Tensor], target: FeatureTarget, *, kept: bool = False
) -> None:
    """Take the target's embeddings out of a published draft's tensors, after a look whether they are the target's:
    those of another would have been trained with other features. With ``kept`` others stay, as the draft's own. Raises
    FeatureDraftMismatch."""
    theirs = tensors.pop("embed_tokens.weight", None)
    if theirs is not None and not alike(theirs, target.embeddings):
        if kept:
            tensors["embed_tokens.weight"] = theirs
            return
        reason = "its embed_tokens.weight is not the target's own, so it was made for another target."
        raise FeatureDraftMismatch(draft=folder, target=target.name, reason=reason)


def take_out_head(
    folder: Path, tensors: dict[str, Tensor], name: str, token_map: Tensor | None, target: FeatureTarget, *,
    required: bool,
) -> None:  # fmt: skip
    """Take a copy of the target's output layer, or of its rows ``token_map``, out of a draft's tensors. Another one
    stays there, as the draft's own; with ``required`` it is refused. Raises FeatureDraftMismatch."""
    theirs, ours = tensors.get(name), target.head.weight
    if theirs is None:
        return
    if alike(theirs, ours if token_map is None else ours[token_map.to(ours.device)]):
        del tensors[name]
    elif required:
        reason = f"its {name} is not the target's output layer, so it was made for another target."
        raise FeatureDraftMismatch(draft=folder, target=target.name, reason=reason)


def alike(theirs: Tensor, ours: Tensor) -> bool:
    """Return whether two weights are the same but for rounding."""
    if theirs.shape != ours.shape:
        return False
    return torch.allclose(theirs.float(), ours.detach().cpu().float(), rtol=ROUNDING, atol=1e-4)
