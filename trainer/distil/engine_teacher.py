"""A teacher that is a vLLM: it reads recorded texts again and hands over its hidden states (``learn.teacher =
engine``), for targets whose layers the trainer has no memory for, or cannot compute."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from osd.attached.vllm.hidden_states import HiddenStatesVllm
from osd.models.features.target import FeatureTarget
from osd.models.features.without_layers import final_norm
from storage.errors import BadSetting
from storage.records import RequestSamples
from trainer.distil.branching import text_length
from trainer.distil.teacher import Read, RecomputeTeacher

TOGETHER = 8
"""Texts that the vLLM reads at a time."""
LIKELIEST = 4
"""The vLLM's own choice of the next token must be among so many of ours."""


class EngineTeacher(RecomputeTeacher):
    """Completes batches with what a vLLM computed; final norm and output layer are computed here."""

    def __init__(self, shared: FeatureTarget, layers: Sequence[int], cache_mb: int, engine: HiddenStatesVllm) -> None:
        """``shared``: its module need have no layers; the others are as of :class:`RecomputeTeacher`."""
        super().__init__(shared, layers, cache_mb)
        self._engine, self._norm = engine, final_norm(shared.module)

    def _compute(self, samples: Sequence[RequestSamples]) -> list[Read]:
        """Raises EngineError; BadSetting where the vLLM serves another target."""
        with ThreadPoolExecutor(TOGETHER) as pool:
            return list(pool.map(self._one, samples))

    @torch.no_grad()
    def _one(self, samples: RequestSamples) -> Read:
        tokens, count, weight = samples.tokens[: text_length(samples)], self.shared.layers, self.shared.head.weight
        found = self._engine.read(tokens.tolist())
        states = {number: each.to(weight.device, weight.dtype) for number, each in found.by_layer.items()}
        if lacking := {min(number, count) for number in (*self.layers, count)} - states.keys():
            reason = f"{self._engine.name} hands over hidden states {sorted(states)}, and {sorted(lacking)} are learned"
            raise BadSetting(source="settings", key="learn.teacher_url", reason=f"{reason} from (osd engines teacher)")
        ours = states | {count + 1: states[count], count: self._norm(states[count])}
        self._require_same(ours[count][-1], found.next_token)
        features = [ours[number] for number in self.layers]
        last = ours[count]
        return Read(torch.cat(features, -1) if features else last[:, :0], last[samples.prompt_len - 1 :])

    def _require_same(self, state: Tensor, token: int) -> None:
        if token not in self.shared.head(state).topk(LIKELIEST).indices:
            reason = f"{self._engine.name} goes on otherwise than {self.shared.name} does; is that its target?"
            raise BadSetting(source="settings", key="learn.teacher_url", reason=reason)
