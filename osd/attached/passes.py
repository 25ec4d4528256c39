"""Passes of the draft and of the target over texts that were served elsewhere.

:class:`DraftPass` runs the version that drafted, to recover which tokens were refused. :class:`Scorer` runs the target:
its likeliest tokens at every position of an answer, and where asked the hidden states that they come from. It serves
`replay import`, and answers that an engine hands over without distributions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from osd.attached.follower import servable_folder
from osd.models.encoder_decoder import require_decoder_only
from osd.models.features.target import FeatureTarget, read_states
from osd.models.limits import position_limit
from osd.models.model import Model
from osd.models.weights import read_weights
from osd.recording.topk import TopKLogprobs, reduce_plain
from storage.errors import OsdError
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS

KEPT = 2
"""Versions that are kept in memory: the one that serves, and the one before it whose answers are still under way."""
HiddenStates = npt.NDArray[np.float16]
CHUNK = 256
"""Positions whose logits are in memory at once."""
MOST = 1024
"""Positions of which a draft's are: for more it reads the text again."""


class DraftPass:
    """The drafts of a store, run one text at a time. Used by one thread."""

    def __init__(self, store: Store, device: str = "cpu") -> None:
        self._store, self._device = store, device
        self._loaded: OrderedDict[str, Any] = OrderedDict()

    @torch.inference_mode()
    def __call__(self, version: str, tokens: Sequence[int], positions: Sequence[int]) -> list[int] | None:
        """Return the draft's likeliest token at each position given the tokens before it; None where the version's
        weights are not to be had, or do not know the text, or read what the target has computed."""
        module = self._module(version)
        if module is None or max(tokens) >= module.get_input_embeddings().weight.shape[0]:
            return None
        fed = torch.tensor([tokens[: positions[-1]]], device=module.device)
        said = list[int]()
        for begin in range(0, len(positions), MOST):
            keep = torch.tensor([place - 1 for place in positions[begin : begin + MOST]], device=module.device)
            said += module(input_ids=fed, use_cache=False, logits_to_keep=keep).logits[0].argmax(-1).tolist()
        return said

    def _module(self, version: str) -> Any:
        if version not in self._loaded:
            self._loaded[version] = self._load(version)
            while len(self._loaded) > KEPT:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(version)
        return self._loaded[version]

    def _load(self, version: str) -> Any:
        try:
            found = self._store.versions.get(version)
            if found.kind in FEATURE_KINDS:
                return None
            module: Any = read_weights(servable_folder(self._store, found), torch.float32)
        except OsdError:
            return None
        return module.to(self._device).eval().requires_grad_(False)


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


class PlainScorer(Scorer):
    """The same by a target that osd's engine cannot serve: each text in one pass of its module."""

    def __init__(self, target: FeatureTarget, k: int, length: int) -> None:
        """``k``, ``length``: as for :class:`Scorer`."""
        self.length, self.target = min(length, position_limit(target.module.config)), target.digest
        self._k, self._shared = k, target

    @torch.inference_mode()
    def __call__(self, tokens: Sequence[int], begin: int) -> TopKLogprobs:
        """See :meth:`Scorer.__call__`."""
        return self.with_states(tokens, begin)[0]

    @torch.inference_mode()
    def with_states(self, tokens: Sequence[int], begin: int) -> tuple[TopKLogprobs, HiddenStates]:
        """See :meth:`Scorer.with_states`."""
        shared = self._shared
        fed = torch.tensor([tokens[:-1]], device=shared.head.weight.device)
        states = read_states(shared.module, fed, [shared.layers])[0][0, begin - 1 :]
        parts = [reduce_plain(shared.head(some), self._k) for some in torch.split(states, CHUNK)]
        tops = TopKLogprobs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        return tops, states.half().cpu().numpy()
