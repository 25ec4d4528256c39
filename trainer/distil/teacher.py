"""Teachers: where a draft's lessons come from, if not from the recorded distributions alone.

    RecomputeTeacher   the target reads the recorded texts again: its hidden states, and its whole distributions
    EngineTeacher      a vLLM reads them (:mod:`trainer.distil.engine_teacher`)
    RecordedTeacher    hidden states that serving kept beside the distributions (``serve.record_hidden_states``)

A feature draft needs one of them; any other draft may learn from the first. Column t of a text is the token at t; the
hidden state there predicts token t + 1 (:mod:`trainer.distil.collate`).

Which of them a run has is named by ``learn.teacher`` (:mod:`trainer.distil.teachers`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from osd.attached.vllm.plugin.osd_vllm.weights import placeholders
from osd.models.features.target import FeatureTarget, read_states
from storage.errors import FeaturesNotKept
from storage.records import RequestSamples
from trainer.distil.branching import context_length
from trainer.distil.collate import TrainingBatch, collate, plan

MB = 1 << 20
READ_TOKENS = 2048
"""Tokens that the target reads in one pass, padding included: a bound on memory."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a draft learns from and is judged by, beside what was recorded of the target's distributions."""

    teacher: Teacher
    steps: int
    """Steps of a feature draft's chains."""


class Teacher(Protocol):
    """Completes batches with what the target computed."""

    shared: FeatureTarget
    """The target whose embeddings and output layer feature drafts use."""

    def can_read(self, samples: RequestSamples) -> bool:
        """Return whether a request can be learned from."""

    def complete(self, batch: TrainingBatch, samples: Sequence[RequestSamples]) -> TrainingBatch:
        """Return a batch of these requests, on the target's device, with features or whole distributions added. Raises
        FeaturesNotKept."""


@dataclass(frozen=True, slots=True)
class Read:
    """What the target computed over a text of n tokens."""

    features: Tensor
    """(n, F) what a feature draft reads; (n, 0) where none does."""
    last: Tensor
    """(n − p, H) what the output layer reads, from the prompt's last token on, p the column of that."""

    @property
    def bytes(self) -> int:
        return self.features.nbytes + self.last.nbytes


class RecomputeTeacher:
    """A target that reads recorded texts again; what it computed is kept while there is memory for it."""

    def __init__(self, shared: FeatureTarget, layers: Sequence[int] = (), cache_mb: int = 0) -> None:
        """``layers``: numbers of the hidden states that a feature draft reads, see
        :meth:`osd.models.features.base.FeatureDraft.feature_layers`; none for other drafts."""
        self.shared, self.layers = shared, tuple(layers)
        self._limit, self._bytes = cache_mb * MB, 0
        self._read: OrderedDict[str, Read] = OrderedDict()
        self._placeholders = placeholders(shared.module.config.to_dict())

    def can_read(self, samples: RequestSamples) -> bool:
        """See :meth:`Teacher.can_read`: texts alone, for of images only their places were kept."""
        return not np.isin(samples.tokens, self._placeholders).any()

    @torch.no_grad()
    def complete(self, batch: TrainingBatch, samples: Sequence[RequestSamples]) -> TrainingBatch:
        """See :meth:`Teacher.complete`: hidden states of all columns, and whole distributions at all positions."""
        found = self._found(samples)
        last = torch.cat([
            each.last[torch.from_numpy(s.positions - s.prompt_len).to(each.last.device, torch.long)]
            for s, each in zip(samples, found, strict=True)
        ])  # fmt: skip
        rows = self.shared.head(last).float().log_softmax(-1)
        width = batch.input_ids.shape[1]
        features = torch.stack([_padded(each.features[:width], width) for each in found]) if self.layers else None
        return replace(batch.to(rows.device), features=features, rows_logprobs=rows)

    def _found(self, samples: Sequence[RequestSamples]) -> list[Read]:
        """Return what the target says of these texts, reading those that are not in memory."""
        known = {s.request_id: self._read[s.request_id] for s in samples if self._covers(s)}
        lacking = [s for s in samples if s.request_id not in known]
        for chunk in plan(lacking, READ_TOKENS):
            some = [lacking[i] for i in chunk]
            for s, read in zip(some, self._compute(some), strict=True):
                known[s.request_id] = read
                self._keep(s.request_id, read)
        for s in samples:
            if s.request_id in self._read:
                self._read.move_to_end(s.request_id)
        return [known[s.request_id] for s in samples]

    def _covers(self, samples: RequestSamples) -> bool:
        """Return whether enough of the text was read: which positions are learned from may differ by draft."""
        read = self._read.get(samples.request_id)
        return read is not None and len(read.last) > samples.positions[-1] - samples.prompt_len

    def _compute(self, samples: Sequence[RequestSamples]) -> list[Read]:
        """Let the target read texts in one pass; its output layer computes nothing here."""
        module, batch = self.shared.module, collate(samples)
        batch = batch.to(next(module.parameters()).device)
        layers = (*self.layers, self.shared.layers)
        *wanted, last = read_states(module, batch.input_ids, layers, attention_mask=batch.attention_mask)
        features = torch.cat([each.to(last.device) for each in wanted], -1) if wanted else last[..., :0]
        lengths = map(context_length, samples)
        return [
            Read(features[row, :length].clone(), last[row, s.prompt_len - 1 : length].clone())
            for row, (s, length) in enumerate(zip(samples, lengths, strict=True))
        ]

    def _keep(self, request_id: str, read: Read) -> None:
        """Keep what was read, and let what was used longest ago go where memory is short."""
        old = self._read.pop(request_id, None)
        self._bytes += read.bytes - (old.bytes if old else 0)
        self._read[request_id] = read
        while self._bytes > self._limit:
            _, gone = self._read.popitem(last=False)
            self._bytes -= gone.bytes


class RecordedTeacher:
    """Hidden states out of the store. The texts begin where those do: at the prompt's last token."""

    def __init__(self, shared: FeatureTarget, layers: Sequence[int] = ()) -> None:
        """``layers``: as for :class:`RecomputeTeacher`. Raises FeaturesNotKept where the store keeps others."""
        if tuple(layers) != (shared.layers,):
            reason = f"It reads hidden states {', '.join(map(str, layers))} of {shared.layers}, and the last is kept."
            raise FeaturesNotKept(reason=reason)
        self.shared = shared

    def can_read(self, samples: RequestSamples) -> bool:
        """See :meth:`Teacher.can_read`: whether hidden states stand at all its positions, and distributions."""
        return samples.k > 0 and lacks_hidden(samples) is None

    def complete(self, batch: TrainingBatch, samples: Sequence[RequestSamples]) -> TrainingBatch:
        """See :meth:`Teacher.complete`: a batch of the texts from the first kept hidden state on."""
        if reason := next(filter(None, map(lacks_hidden, samples)), None):
            raise FeaturesNotKept(reason=reason)
        device = self.shared.head.weight.device
        begins = [int(s.positions[0]) - 1 for s in samples]
        kept = [torch.from_numpy(cast(np.ndarray, s.hidden_states)).to(device) for s in samples]
        width = max(map(len, kept))
        counts = torch.tensor([len(s) for s in samples])
        offsets = torch.repeat_interleave(torch.tensor(begins), counts)
        ids = torch.zeros(len(samples), width, dtype=torch.long)
        for row, (s, begin) in enumerate(zip(samples, begins, strict=True)):
            ids[row, : len(s)] = torch.from_numpy(s.tokens[begin : begin + len(s)].astype(np.int64))
        dtype = self.shared.head.weight.dtype
        cut = replace(
            batch, input_ids=ids, attention_mask=(torch.arange(width) < counts[:, None]).long(),
            columns=batch.columns.cpu() - offsets, starts=(batch.starts.cpu() - offsets).clamp(min=0),
        )  # fmt: skip
        return replace(cut.to(device), features=torch.stack([_padded(each, width) for each in kept]).to(dtype))


def lacks_hidden(samples: RequestSamples) -> str | None:
    """Return why hidden states do not stand at all positions, those one after another; None where they do."""
    if samples.hidden_states is None:
        return f"Of request {samples.request_id} none were kept."
    if samples.positions[-1] - samples.positions[0] + 1 != len(samples):
        return f"Of request {samples.request_id} some positions were not kept (serve.record, learn.positions)."
    return None


def _padded(features: Tensor, width: int) -> Tensor:
    """Pad (n, F) on the right to (``width``, F)."""
    return torch.nn.functional.pad(features, (0, 0, 0, width - len(features)))
