"""Runs a target over recorded text: its likeliest tokens at every position of an answer that was given elsewhere, and
where asked the hidden states that they come from. It serves `replay import`, and answers that an engine hands over
without distributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from osd.models.encoder_decoder import require_decoder_only
from osd.models.model import Model
from osd.recording.topk import TopKLogprobs, reduce_plain

HiddenStates = npt.NDArray[np.float16]
CHUNK = 256
"""Positions whose logits are in memory at once."""


class Scorer:
    """A target that reads. Used by one thread."""

    def __init__(self, target: Model, k: int, length: int) -> None:
        """``k``: likeliest tokens that are kept; ``length``: tokens of a text at most. Raises DecoderOnly."""
        require_decoder_only(target.module, "what reads texts that were served elsewhere", target.name)
        self.length, self.target = min(length, target.limit), target.digest
        self._k, self._decoder = k, target.decoder(1, self.length)

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[int], begin: int) -> TopKLogprobs:
        """Return the target's distributions of tokens ``begin`` … n − 1, each given those before it: n − begin of them.

        ``tokens`` (n,), 1 ≤ begin < n ≤ length.
        """
        return self._read(tokens, begin)[0]

    @torch.inference_mode()
    def with_states(self, tokens: Sequence[int], begin: int) -> tuple[TopKLogprobs, HiddenStates]:
        """Return the same, and (n − begin, D) the final hidden states, after the final norm, that predict them."""
        cache = self._decoder.cache
        cache.wants_embedding = True
        try:
            tops, states = self._read(tokens, begin)
        finally:
            cache.wants_embedding, cache.embedding = False, None
        return tops, np.concatenate(states)

    def _read(self, tokens: Sequence[int], begin: int) -> tuple[TopKLogprobs, list[HiddenStates]]:
        self._decoder.prefill(0, tokens[: begin - 1])
        parts, states = [], []
        for start in range(begin - 1, len(tokens) - 1, CHUNK):
            fed = torch.tensor([tokens[start : min(start + CHUNK, len(tokens) - 1)]], device=self._decoder.device)
            parts.append(reduce_plain(self._decoder.logits(fed, [start])[0], self._k))
            if self._decoder.cache.wants_embedding and (hidden := self._decoder.cache.embedding) is not None:
                states.append(hidden[0].half().cpu().numpy())
        return TopKLogprobs(*(np.concatenate(columns) for columns in zip(*parts, strict=True))), states
