"""Teachers: where a draft's lessons come from, if not from the recorded distributions alone.

    RecomputeTeacher   the target reads the recorded texts again: its hidden states, and its whole distributions
    EngineTeacher      a vLLM reads them (:mod:`trainer.distil.engine_teacher`)
    RecordedTeacher    hidden states that serving kept beside the distributions (``serve.record_hidden_states``)

A feature draft needs one of them; any other draft may learn from the first. Column t of a text is the token at t; the
hidden state there predicts token t + 1 (:mod:`trainer.distil.collate`).

Which of them a run has is named by ``learn.teacher``; the target that it needs stays in memory between runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from osd.attached.vllm.plugin.osd_vllm.weights import placeholders
from osd.models.features.ends import load_ends
from osd.models.features.files import load_feature_draft
from osd.models.features.target import FeatureTarget, read_states
from osd.models.hf_forward import layer_stack
from osd.models.model_digest import model_digest
from osd.models.pair import load_reader, number_type
from storage.errors import BadSetting, FeaturesNotKept
from storage.records import DraftVersion, RequestSamples
from storage.settings import LearnSettings, Settings
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS, why_no_method
from storage.versions.targets import SHORT
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


@dataclass(slots=True)
class Teachers:
    """The target that teaches in a training process, which stays in memory between runs, as what it has read does."""

    _named: tuple[object, ...] = ()
    """The settings that the target was loaded by."""
    _shared: FeatureTarget | None = None
    _teachers: dict[tuple[int, ...], Teacher] = field(default_factory=dict)
    """By the hidden states that they give."""

    def lessons(self, store: Store, settings: Settings, version: DraftVersion, device: torch.device) -> Lessons | None:
        """Return what a draft learns from; None where that is the recorded distributions alone.

        Raises BadSetting where the target is not named, or another than the draft's line is about, ModelNotLoaded,
        FeatureDraftMismatch, and FeaturesNotKept for a draft that reads hidden states which are never kept.
        """
        learn, kind = settings.learn, version.kind if version.kind in FEATURE_KINDS else None
        if kind is None and learn.teacher == "recorded":
            return None
        shared = self._loaded(settings, store.versions.target_of(version.draft), device)
        layers: tuple[int, ...] = ()
        if kind is not None:
            layers = load_feature_draft(store.versions.folder(version), shared).feature_layers(shared.module)
        if layers not in self._teachers:
            self._teachers[layers] = _teacher(settings, shared, layers)
        return Lessons(self._teachers[layers], learn.steps)

    def _loaded(self, settings: Settings, digest: str | None, device: torch.device) -> FeatureTarget:
        """Return the target that the settings name."""
        learn, serve = settings.learn, settings.serve
        named = (
            serve.target, serve.dtype, serve.device_map, str(device), learn.teacher, learn.teacher_cache_mb,
            learn.teacher_url,
        )  # fmt: skip
        if self._shared is None or self._named != named:
            self._teachers.clear()
            self._shared = None  # not two of them in memory
            self._shared, self._named = load_target(settings, device), named
        if digest is not None and self._shared.digest not in (None, digest):
            ours = str(self._shared.digest)[:SHORT]
            reason = f"the draft is about the target {digest[:SHORT]}, and {serve.target} is {ours}"
            raise BadSetting(source="settings", key="serve.target", reason=reason)
        return self._shared


def learning_of(learn: LearnSettings, version: DraftVersion) -> LearnSettings:
    """Return the settings that a draft is trained by.

    Raises BadSetting for a method that is not for its kind, and for positions that a feature draft cannot learn from.
    """
    if reason := why_no_method(version.kind, learn.method):
        raise BadSetting(source="settings", key="learn.method", reason=f"{version.draft}: {reason}")
    if version.kind in FEATURE_KINDS and learn.teacher == "recorded" and learn.positions == "rejected":
        reason = "between the rejected positions hidden states are missing; set verified, or learn.teacher = recompute"
        raise BadSetting(source="settings", key="learn.positions", reason=reason)
    return learn


def _teacher(settings: Settings, shared: FeatureTarget, layers: tuple[int, ...]) -> Teacher:
    """Make the teacher that the settings name. Raises BadSetting."""
    learn = settings.learn
    if learn.teacher == "recorded":
        return RecordedTeacher(shared, layers)
    if learn.teacher == "recompute":
        return RecomputeTeacher(shared, layers, learn.teacher_cache_mb)
    from osd.attached.vllm.states import connect_states
    from trainer.distil.engine_teacher import EngineTeacher  # which is made of what stands here

    return EngineTeacher(shared, layers, learn.teacher_cache_mb, connect_states(settings))


def load_target(settings: Settings, device: torch.device) -> FeatureTarget:
    """Load the target, as far as ``learn.teacher`` computes with it: its layers only for recompute. Raises BadSetting,
    ModelNotLoaded."""
    name, hollow = settings.serve.target, settings.learn.teacher == "recorded"
    if name is None:
        reason = "learn.teacher = recompute, and drafts that read hidden states, need the target: name its folder"
        raise BadSetting(source="settings", key="serve.target", reason=reason)
    if settings.learn.teacher == "engine":
        dtype = number_type(settings.serve.dtype, device)
        return FeatureTarget(load_ends(name, device, None if dtype == "auto" else dtype), name, model_digest(name))
    module = load_reader(name, device, settings.serve.dtype, None if hollow else settings.serve.device_map)
    shared = FeatureTarget(module, name, model_digest(name))
    if hollow:
        stack = layer_stack(module)
        for number in range(len(stack)):
            stack[number] = nn.Identity()
    return shared
