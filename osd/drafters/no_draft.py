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
    """Seats rows and drafts for none; it has no weights and no cache."""

    def __init__(self, device: torch.device) -> None:
        self.drafter = cast(CausalDrafter, Silent())
        self.name = self.base = self.newest = None
        self.weight_bytes, self.limit, self.rows = 0, EVERYWHERE, []
        self._device = device

    @property
    def decoder(self) -> Decoder:
        """Raises NeedsDraft."""
        raise NeedsDraft(what="This")

    @property
    def device(self) -> torch.device:
        """Where the target is."""
        return self._device

    @property
    def cache_bytes(self) -> int:
        """None."""
        return 0

    def join(self, row: SequenceState) -> None:
        """See :meth:`osd.drafters.loaded_draft.DraftModel.join`."""
        self.rows.append(row)

    def leave(self, row: SequenceState) -> None:
        """See :meth:`osd.drafters.loaded_draft.DraftModel.leave`."""
        self.rows.remove(row)

    def regroup(self) -> None:
        """Nothing hangs on which rows there are."""


class Silent:
    """What a body's drafter is asked without drafting."""

    head: Any = None
