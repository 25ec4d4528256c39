"""Runs a target over recorded text: its likeliest tokens at every position of an answer that was given elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from osd.models.pair import Model
from osd.recording.topk import TopKLogprobs, reduce_plain

CHUNK = 256
"""Positions whose logits are in memory at once."""


class Scorer:
    """A target that reads. Used by one thread."""

    def __init__(self, target: Model, k: int, length: int) -> None:
        """``k``: likeliest tokens that are kept; ``length``: tokens of a text at most."""
        self.length, self.target = min(length, target.limit), target.digest
        self._k, self._decoder = k, target.decoder(1, self.length)

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[int], begin: int) -> TopKLogprobs:
        """Return the target's distributions of tokens ``begin`` … n − 1, each given those before it: n − begin of them.

        ``tokens`` (n,), 1 ≤ begin < n ≤ length.
        """
        self._decoder.prefill(0, tokens[: begin - 1])
        parts = []
        for start in range(begin - 1, len(tokens) - 1, CHUNK):
            fed = torch.tensor([tokens[start : min(start + CHUNK, len(tokens) - 1)]], device=self._decoder.device)
            parts.append(reduce_plain(self._decoder.logits(fed, [start])[0], self._k))
        return TopKLogprobs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
