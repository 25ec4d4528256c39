"""Makes feature drafts of random weights for any target."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config

from osd.models.features.base import FeatureDraft, FeatureDraftMismatch
from osd.models.features.checks import require_readable, require_vocabulary
from osd.models.features.dflash import DFlashDraft
from osd.models.features.eagle import Eagle3Draft, EagleDraft, depths
from osd.models.features.keys import ROPE
from osd.models.features.medusa import MedusaConfig, MedusaDraft
from osd.models.features.mtp import MtpDraft
from osd.models.features.peagle import PEagleDraft
from osd.models.features.target import FeatureTarget
from osd.models.limits import named, position_limit
from osd.models.model import eos_ids

Kind = Literal["medusa", "eagle", "eagle3", "peagle", "dflash", "mtp"]
KINDS: tuple[Kind, ...] = ("medusa", "eagle", "eagle3", "peagle", "dflash", "mtp")
HEADS = 4
"""Medusa heads, where no number is given: beyond the fourth token little is gained (Medusa, Section 3.2)."""
LAYERS = 2
"""Layers of a draft that drafts all tokens at once, where no number is given."""
BLOCK = 8
"""Positions of a DFlash draft's block."""
SPREAD = 0.02
"""Standard deviation of random weights."""
INNER = 4
"""Width of a decoder layer's inner half as a multiple of H, where the target names none."""
LARGEST = 8192
"""Positions of a draft whose target names no limit."""
ROPE_WHOLE = {"partial_rotary_factor": 1.0}
ALIKE = ("hidden_size", "vocab_size", "hidden_act", "max_position_embeddings", "rope_parameters", "tie_word_embeddings")
SHAPE = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "rms_norm_eps")


def new_feature_draft(
    kind: Kind, target: FeatureTarget, *, heads: int | None = None, token_map: Sequence[int] | None = None,
    layers: int | None = None, seed: int = 0,
) -> FeatureDraft:  # fmt: skip
    """Return a draft of random weights, in the target's type of number and on its device. ``heads``: of Medusa;
    ``layers``: of P-EAGLE and DFlash; ``token_map``: the target's ids that it can propose. Raises FeatureDraftMismatch
    for ids that cannot be it, and for a target whose hidden states these drafts cannot read."""
    require_vocabulary(f"new {kind} draft", token_map, target)
    require_readable(f"new {kind} draft", target)
    weight = target.head.weight
    ids = None if token_map is None else torch.tensor(list(token_map), dtype=torch.long)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draft = _medusa(target, heads or HEADS, ids) if kind == "medusa" else _layered(kind, target, ids, layers)
        _randomise(draft)
    return draft.to(device=weight.device, dtype=weight.dtype).eval().requires_grad_(False)


def first_vocabulary(target: FeatureTarget, size: int | None) -> list[int] | None:
    """Return the ``size`` ids that a draft proposes before its traffic is known: the end tokens, and those with the
    lowest numbers, which tokenizers of byte pairs found to be most frequent. None for all."""
    if size is None or size >= target.vocab_size:
        return None
    ends = sorted(token for token in eos_ids(target.module) if token < target.vocab_size)
    others = (token for token in range(target.vocab_size) if token not in ends)
    return sorted([*ends, *islice(others, max(0, size - len(ends)))])


def _medusa(target: FeatureTarget, heads: int, token_map: Tensor | None) -> MedusaDraft:
    few = None if token_map is None else len(token_map)
    config = MedusaConfig(target.hidden_size, target.vocab_size, heads, truncated_vocab_size=few)
    return MedusaDraft(config, token_map)


def _layered(kind: Kind, target: FeatureTarget, token_map: Tensor | None, layers: int | None) -> FeatureDraft:
    config: Any = layer_config(target)
    if kind == "eagle":
        return EagleDraft(config, token_map)
    if kind == "mtp":
        return MtpDraft(LlamaConfig(**config.to_dict() | {"num_hidden_layers": target.layers}), token_map)
    if kind == "dflash":
        return _dflash(target, token_map, config, layers)
    config.eagle_aux_hidden_state_layer_ids = list(depths(target.layers))
    config.target_hidden_size = target.hidden_size
    if kind == "eagle3":
        return Eagle3Draft(config, token_map)
    config.num_hidden_layers, config.mask_token_id = layers or LAYERS, target.vocab_size - 1
    return PEagleDraft(config, token_map)


def _dflash(target: FeatureTarget, token_map: Tensor | None, like: LlamaConfig, layers: int | None) -> DFlashDraft:
    """Make a DFlash draft with layers that are as wide as those of ``like``. Raises FeatureDraftMismatch."""
    read = [number - 1 for number in depths(target.layers) if 0 < number < target.layers]
    if not read:
        reason = "it has no layer before its last, whose output DFlash reads."
        raise FeatureDraftMismatch(draft="new dflash draft", target=target.name, reason=reason)
    facts = {name: value for name, value in like.to_dict().items() if name in (*SHAPE, *ALIKE)}
    config: Any = Qwen3Config(**facts, num_hidden_layers=layers or LAYERS, bos_token_id=None, eos_token_id=None)
    config.target_layer_ids, config.mask_token_id, config.block_size = read, target.vocab_size - 1, BLOCK
    return DFlashDraft(config, token_map)


def layer_config(target: FeatureTarget) -> LlamaConfig:
    """Return the configuration of one decoder layer of Llama's kind that is as wide as the target's: its heads, inner
    width and rotary positions, where it has such."""
    theirs = target.config
    facts = {name: value for name in SHAPE if (value := named(theirs, name)) is not None}
    if "head_dim" not in facts and target.hidden_size % facts.setdefault("num_attention_heads", 1):
        facts["num_attention_heads"] = facts["num_key_value_heads"] = 1
    facts.setdefault("intermediate_size", INNER * target.hidden_size)
    rope = named(theirs, "rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        facts["rope_parameters"] = {name: value for name, value in rope.items() if name in ROPE} | ROPE_WHOLE
    limit = min(position_limit(target.module.config), LARGEST)
    positions = max(limit, named(theirs, "max_position_embeddings") or 0)
    return LlamaConfig(
        **facts, hidden_size=target.hidden_size, vocab_size=target.vocab_size, num_hidden_layers=1, hidden_act="silu",
        max_position_embeddings=positions, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


def _randomise(draft: FeatureDraft) -> None:
    """Draw the weights. Where the draft begins at the target's feature it lets it through, and Medusa's blocks begin at
    zero, so that its heads say at first what the target says (Medusa, Section 3.1)."""
    for name, part in draft.named_modules():
        if isinstance(part, nn.Linear):
            part.weight.data.normal_(0.0, 0.0 if name.startswith("blocks.") else SPREAD)
            if part.bias is not None:
                part.bias.data.zero_()
    if isinstance(draft, PEagleDraft):
        draft.mask_hidden.data.normal_(0.0, SPREAD)
    if isinstance(draft, EagleDraft | DFlashDraft):
        size = draft.hidden_size
        feature = draft.fc.weight.data[:, :size] if draft.kind == "mtp" else draft.fc.weight.data[:, -size:]
        feature += torch.eye(size)
