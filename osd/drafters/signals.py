"""Signals of a draft pass for gamma rules, computed only when asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from osd.gamma.base import Signal
from osd.gamma.goodput.contexts import Peak
from osd.gamma.goodput.repeats import BatchRepeats
from osd.models.acceptance_head import Heads
from osd.verification.compiled_sampling import ReadOff


class PassInfo(NamedTuple):
    """What is known beside a pass's logits."""

    repeats: BatchRepeats | None = None
    """Repeated n-grams of the rows that share the pass; None where no signal reads their texts."""
    drafted: Sequence[Tensor] = ()
    """The tokens of their chains before this pass, (B,) each."""
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
        if signal == "peak_echo":
            return self._echoed()
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

    def _echoed(self) -> list[Peak]:
        """Return ``peak_echo`` of each row's likeliest token, whatever was drawn: what is drawn must not decide whether
        it is verified."""
        repeats = self._told.repeats
        assert repeats is not None
        drafted, likeliest, peaks = self._on_host(self._told.drafted[repeats.heard :])
        repeats.hear(drafted)
        return repeats.signals(peaks, likeliest)

    def _on_host(self, drafted: Sequence[Tensor]) -> tuple[list[list[int]], list[int], list[float]]:
        """Bring these tokens, the likeliest next ones and their probabilities to the host in one transfer."""
        known = self._told.read_off
        if known:
            return [tokens.tolist() for tokens in drafted], known.choices.tolist(), known.peaks
        lines = [*drafted, self._logits.argmax(-1), self._likelihood("peak")]
        table = torch.stack([line.double() for line in lines]).tolist()
        tokens = [[int(token) for token in line] for line in table[:-1]]
        return tokens[:-1], tokens[-1], table[-1]
