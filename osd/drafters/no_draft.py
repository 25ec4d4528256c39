"""What stands in a pool where there is no draft model: it takes rows in and drafts nothing."""

from __future__ import annotations

from typing import Any, cast

import torch

from osd.drafters.causal import CausalDrafter
from osd.drafters.loaded_draft import DraftModel
from osd.models.decoder import Decoder
from osd.models.needs_draft import NeedsDraft
from osd.models.target_only import EVERYWHERE
from osd.sequence import SequenceState


class Nobody(DraftModel):
    """Null object: there is no draft model. It takes rows, drafts nothing, and has no weights and no cache."""

    def __init__(self, device: torch.device) -> None:
        self.drafter = cast(CausalDrafter, Silent())
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

    def regroup(self) -> None:
        """Do nothing: nothing depends on which rows there are."""


class Silent:
    """Null drafter: what a draft model's drafter is asked without drafting."""

    head: Any = None
