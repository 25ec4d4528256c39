"""What a feature draft is: a small network over the target's hidden states that proposes the tokens after the next.

Column t of a text is a position whose hidden state the target has computed, so that the token after it, t + 1, is
known. A draft's first step predicts token t + 2 from there; its step k, on its own features, token t + 2 + k. The
embeddings and the output layer are the target's: they are passed in, and never among a draft's own weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from osd.models.features.target import Embed, OutputHead
from storage.errors import PairError

AHEAD = 2
"""Tokens from a column to the one that a draft's first step predicts there."""


@dataclass(frozen=True, slots=True)
class Unrolled:
    """One step of a draft over whole texts."""

    logits: Tensor
    """(B, C, V), or (B, C, Vd) over the draft vocabulary, of the C columns that were asked for; those at column t
    predict token t + ``shift``."""
    shift: int
    """Columns t ≥ T − ``shift`` mean nothing."""
    features: Tensor | None
    """(B, C, H) the draft's own features: what stands at column t is to be the target's at column t + ``shift`` − 1.
    None for a draft that has none."""


class FeatureDraft(nn.Module):
    """A draft that reads the target's hidden states."""

    kind: ClassVar[str]
    """One of :data:`storage.versions.feature_kinds.FEATURE_KINDS`."""
    at_once: ClassVar[bool] = False
    """Whether one pass drafts all tokens, behind columns that are masked."""

    def __init__(self, config: Any, token_map: Tensor | None = None) -> None:
        """``config``: as its folder's config.json says it; ``token_map`` (Vd,): the target's ids that it can propose,
        None for all."""
        super().__init__()
        self.config = config
        self.lm_head: nn.Linear | None = None
        """An output layer of its own, (V or Vd, H); None where it is the target's."""
        self.token_map: Tensor | None
        self.register_buffer("token_map", token_map, persistent=False)

    def own_output_layer(self, wanted: bool) -> None:
        """Make an output layer of its own, over what it can propose, where that is wanted."""
        if wanted:
            size = self.vocab_size if self.token_map is None else len(self.token_map)
            self.lm_head = nn.Linear(self.hidden_size, size, bias=False)

    @property
    def mask_token(self) -> int:
        """The token whose embedding stands in masked columns, of a draft that has such."""
        return int(self.config.mask_token_id)

    @property
    def hidden_size(self) -> int:
        """Width H of its features."""
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Number of the target's token ids."""
        return int(self.config.vocab_size)

    def feature_layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        """Return the numbers of the target's hidden states that it reads, by
        :func:`osd.models.hf_forward.hidden_states_noted`."""
        return (int(target.config.get_text_config().num_hidden_layers),)

    @property
    def feature_size(self) -> int:
        """Width F of what it reads at a column."""
        return self.hidden_size

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, head: OutputHead, steps: int, first: int = 0
    ) -> list[Unrolled]:
        """Compute ``steps`` steps over whole texts, as it drafts them: step 0 on the target's features (B, T, F), each
        later one on its own (training-time test, EAGLE-3, Section 3.2). ``tokens`` (B, T); padding stands on the
        right. Chains begin at column ``first`` or later: what stands before is only looked back at."""
        raise NotImplementedError

    def logits(self, hidden: Tensor, head: OutputHead) -> Tensor:
        """Return logits over what it can propose, (…, Vd or V), for hidden states (…, H)."""
        own = self.lm_head
        return head(hidden, self.token_map) if own is None else head.finish(own(hidden))

    def whole(self, logits: Tensor) -> Tensor:
        """Spread logits (…, Vd) over the target's ids, (…, V): −∞ where it proposes nothing."""
        if self.token_map is None:
            return logits
        spread = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        return spread.index_copy_(-1, self.token_map, logits)

    def set_vocabulary(self, token_map: Tensor | None) -> None:
        """Let it propose these ids (Vd,) of the target alone; None for all. An output layer of its own is given up."""
        self.lm_head = None
        self.token_map = None if token_map is None else token_map.to(next(self.parameters()).device)

    @property
    def weight_bytes(self) -> int:
        """Memory of its own weights, in bytes."""
        return sum(weight.numel() * weight.element_size() for weight in self.parameters())


def shifted(tokens: Tensor, by: int) -> Tensor:
    """Return tokens (B, T) that many columns earlier; 0 where there is none."""
    return torch.nn.functional.pad(tokens[:, by:], (0, min(by, tokens.shape[1])))


def id_list(token_map: Tensor | Sequence[int] | None) -> list[int] | None:
    """Return a draft vocabulary as numbers."""
    if token_map is None:
        return None
    return cast(list[int], token_map.tolist()) if isinstance(token_map, Tensor) else list(token_map)


class FeatureDraftNotLoaded(PairError):
    """{path} is no feature draft: {reason} A folder of one holds config.json and model.safetensors, as vLLM's loaders
    of Medusa, EAGLE, EAGLE-3, P-EAGLE and DFlash take them; `osd drafts new NAME --kind eagle` makes one."""


class FeatureDraftMismatch(PairError):
    """The feature draft {draft} does not fit the target {target}: {reason} It reads the hidden states of the target
    that it was trained for, and of no other."""
