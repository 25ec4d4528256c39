"""What stands in a pool where there is no draft model: it takes rows in and drafts nothing."""

from __future__ import annotations

from typing import Any, cast

import torch

from osd.drafters.causal import CausalDrafter
from osd.drafters.loaded_draft import DraftModel
from osd.gamma.factory import needs_head
from osd.models.decoder import Decoder
from osd.models.encoder_decoder import require_decoder_only
from osd.models.needs_draft import MODEL_DRAFTERS, UNIVERSAL, NeedsDraft
from osd.models.pair import Pair
from osd.models.target_only import EVERYWHERE, has_draft
from osd.sequence import SequenceState
from storage.settings import Settings


class NullDraftModel(DraftModel):
    """Null object: there is no draft model. It takes rows, drafts nothing, and has no weights and no cache."""

    def __init__(self, device: torch.device) -> None:
        self.drafter = cast(CausalDrafter, NullDrafter())
        self.name = self.base = self.newest = None
        self.weight_bytes, self.limit, self.rows = 0, EVERYWHERE, []
        self._device = device

    @property
    def decoder(self) -> Decoder:
        """No decoder: raises NeedsDraft."""
        raise NeedsDraft(what="This")

    @property
    def device(self) -> torch.device:
        """The target's device."""
        return self._device

    @property
    def cache_bytes(self) -> int:
        """Memory of its cache: 0."""
        return 0

    def join(self, row: SequenceState) -> None:
        """Take a row in; see :meth:`osd.drafters.loaded_draft.DraftModel.join`."""
        self.rows.append(row)

    def leave(self, row: SequenceState) -> None:
        """Let a row go; see :meth:`osd.drafters.loaded_draft.DraftModel.leave`."""
        self.rows.remove(row)

    def prepare(self) -> bool:
        """Prepare nothing."""
        return False

    def regroup(self) -> None:
        """Do nothing: nothing depends on which rows there are."""


class NullDrafter:
    """Null drafter: what a draft model's drafter is asked without drafting."""

    head: Any = None


def require_drafter(pair: Pair, settings: Settings) -> None:
    """Check that the pair has a draft model where these settings ask for one, and one that reads its own text where
    they ask for an acceptance head. Raises NeedsDraft, DecoderOnly."""
    if settings.serve.record_branches:
        require_decoder_only(pair.target.module, "serve.record_branches", pair.target.name)
    if needs_head(settings.gamma):
        require_decoder_only(pair.target.module, "gamma.rule = specdecpp", pair.target.name)
    if has_draft(pair):
        return
    has_other = settings.drafters.kind == UNIVERSAL and pair.text_draft is not None
    if settings.drafters.kind in MODEL_DRAFTERS and not has_other:
        raise NeedsDraft(what=f"drafters.kind = {settings.drafters.kind}")
    if needs_head(settings.gamma):
        raise NeedsDraft(what="gamma.rule = specdecpp")
    if settings.gamma.specdecpp.head is not None:
        raise NeedsDraft(what="gamma.specdecpp.head")
