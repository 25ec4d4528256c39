"""Sampling as it is captured: settings and uniforms are inputs, so that one graph serves all batches of a kind.

The uniforms are the rows' own, drawn by each row's Philox stream before the round, as they are for the eager pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from osd.models.fixed_pass import Choose
from osd.verification.warping import Warp, draw


@dataclass(frozen=True, slots=True)
class SampledChoice:
    """Draws the next tokens of a batch; see :class:`osd.models.fixed_pass.Chooser`."""

    warp: Warp
    chance: Tensor
    """(B, G or more) float64 uniforms."""
    step: int
    """Tokens of the chain that were chosen before."""

    @property
    def kind(self) -> tuple[bool, ...]:
        """Which steps of warping are made."""
        return self.warp.steps

    def inputs(self, drafts: int) -> Sequence[Tensor]:
        """Return settings (B, 4), and the uniforms of the next ``drafts`` tokens."""
        settings = torch.from_numpy(self.warp.settings).to(self.chance.device, torch.float32)
        return settings, self.chance[:, self.step : self.step + drafts]

    def over(self, inputs: Sequence[Tensor]) -> Choose:
        """Return the choice by other numbers of this kind."""
        settings, chance = inputs

        def choose(logits: Tensor, step: int) -> tuple[Tensor, Tensor]:
            q = self.warp.over(settings)(logits)[:, 0]
            return draw(q, chance[:, step]), q

        return choose
