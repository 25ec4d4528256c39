"""Which teacher a run has (``learn.teacher``), and the target that it needs, which stays in memory between runs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from osd.attached.vllm.hidden_states import connect_hidden_states
from osd.models.features.files import load_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.features.without_layers import load_without_layers
from osd.models.hf_forward import drop_layers
from osd.models.model_digest import model_digest
from osd.models.pair import dtype_of, load_reader
from storage.errors import BadSetting
from storage.records import DraftVersion
from storage.settings import LearnSettings, Settings
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS, why_no_method
from storage.versions.targets import SHORT
from trainer.distil.engine_teacher import EngineTeacher
from trainer.distil.teacher import Lessons, RecomputeTeacher, RecordedTeacher, Teacher


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
    return EngineTeacher(shared, layers, learn.teacher_cache_mb, connect_hidden_states(settings))


def load_target(settings: Settings, device: torch.device) -> FeatureTarget:
    """Load the target, as far as ``learn.teacher`` computes with it: its layers only for recompute. Raises BadSetting,
    ModelNotLoaded."""
    name, hollow = settings.serve.target, settings.learn.teacher == "recorded"
    if name is None:
        reason = "learn.teacher = recompute, and drafts that read hidden states, need the target: name its folder"
        raise BadSetting(source="settings", key="serve.target", reason=reason)
    if settings.learn.teacher == "engine":
        dtype = dtype_of(settings.serve.dtype, device)
        ends = load_without_layers(name, device, None if dtype == "auto" else dtype)
        return FeatureTarget(ends, name, model_digest(name))
    module = load_reader(name, device, settings.serve.dtype, None if hollow else settings.serve.device_map)
    shared = FeatureTarget(module, name, model_digest(name))
    if hollow:
        drop_layers(module)
    return shared
