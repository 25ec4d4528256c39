"""Signals of a draft pass for gamma rules, computed only when asked for."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from osd.gamma.base import Signal
from osd.models.acceptance_head import Heads
from osd.verification.compiled_sampling import ReadOff


class PassInfo(NamedTuple):
    """What is known beside a pass's logits."""

    read_off: ReadOff | None = None
    """What the pass itself computed from its logits."""
    head: Heads | None = None
    embedding: Tensor | None = None
    """(B, 1, D) the draft's final hidden states for the tokens before."""


class Signals:
    """Signals of one pass."""

    def __init__(self, logits: Tensor, chosen: Tensor, told: PassInfo = PassInfo()) -> None:  # noqa: B008, it is a constant
        """Take ``logits`` (B, V), and the tokens chosen from them (B,)."""
        self._logits, self._chosen, self._told = logits, chosen, told

    def read(self, signal: Signal) -> list[Any]:
        """Read a signal, as :meth:`osd.drafters.chain_override.PassSignals.read`, before temperature and cuts, so that
        greedy and sampling rows compare. ``acceptance`` is NaN where there is no head yet."""
        if signal == "peak_token":
            return self._peak_tokens()
        if signal == "acceptance":
            return self._acceptance()
        known = self._told.read_off
        if known and (signal == "peak" or self._chosen is known.choices):
            return known.peaks
        return self._likelihood(signal).tolist()

    def _likelihood(self, signal: Signal) -> Tensor:
        likelihood = self._logits.softmax(-1, dtype=torch.float32)  # on the CPU three times as fast as logsumexp
        return likelihood.amax(-1) if signal == "peak" else likelihood.gather(1, self._chosen.unsqueeze(1)).squeeze(1)

    def _acceptance(self) -> list[float]:
        head, embedding, known = self._told.head, self._told.embedding, self._told.read_off
        if known and known.chances is not None:
            return known.chances
        if head is None or embedding is None:
            return [math.nan] * len(self._logits)
        return head(embedding[:, 0]).tolist()

    def _peak_tokens(self) -> list[tuple[float, int]]:
        """Return ``peak_token``: each row's likeliest token, whatever was drawn, for what is drawn must not decide
        whether it is verified. On a device one transfer brings both."""
        known = self._told.read_off
        if known:
            return list(zip(known.peaks, known.choices.tolist(), strict=True))
        peaks, tokens = self._logits.softmax(-1, dtype=torch.float32).max(-1)
        lines = torch.stack([peaks.double(), tokens.double()]).tolist()
        return [(peak, int(token)) for peak, token in zip(*lines, strict=True)]
