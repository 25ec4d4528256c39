"""Which teacher a run has: what ``learn.teacher`` names, and the target that it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from osd.models.features.files import load_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.hidden_states import layer_stack
from osd.models.pair import load_model
from storage.errors import BadSetting
from storage.records import DraftVersion
from storage.settings import LearnSettings, Settings
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS
from storage.versions.targets import SHORT
from trainer.distil.teacher import Lessons, RecomputeTeacher, RecordedTeacher, Teacher


@dataclass(slots=True)
class TeacherShelf:
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
            recompute = partial(RecomputeTeacher, cache_mb=learn.teacher_cache_mb)
            make = RecordedTeacher if learn.teacher == "recorded" else recompute
            self._teachers[layers] = make(shared, layers)
        return Lessons(self._teachers[layers], learn.steps)

    def _loaded(self, settings: Settings, digest: str | None, device: torch.device) -> FeatureTarget:
        """Return the target that the settings name."""
        learn, serve = settings.learn, settings.serve
        named = serve.target, serve.dtype, serve.device_map, str(device), learn.teacher, learn.teacher_cache_mb
        if self._shared is None or self._named != named:
            self._teachers.clear()
            self._shared = None  # not two of them in memory
            self._shared, self._named = load_target(settings, device, hollow=learn.teacher == "recorded"), named
        if digest is not None and self._shared.digest not in (None, digest):
            ours = str(self._shared.digest)[:SHORT]
            reason = f"the draft is about the target {digest[:SHORT]}, and {serve.target} is {ours}"
            raise BadSetting(source="settings", key="serve.target", reason=reason)
        return self._shared


def learning_of(learn: LearnSettings, version: DraftVersion) -> LearnSettings:
    """Return the settings that a draft is trained by: one that reads hidden states is about as large as an adapter, and
    is trained whole. Raises BadSetting for positions that it cannot learn from."""
    if version.kind not in FEATURE_KINDS:
        return learn
    if learn.teacher == "recorded" and learn.positions == "rejected":
        reason = "between the rejected positions hidden states are missing; set verified, or learn.teacher = recompute"
        raise BadSetting(source="settings", key="learn.positions", reason=reason)
    return learn.model_copy(update={"method": "full"})


def load_target(settings: Settings, device: torch.device, *, hollow: bool) -> FeatureTarget:
    """Load the target; with ``hollow`` its layers are let go at once, and its embeddings and output layer stay. Raises
    BadSetting, ModelNotLoaded."""
    name = settings.serve.target
    if name is None:
        reason = "learn.teacher = recompute, and drafts that read hidden states, need the target: name its folder"
        raise BadSetting(source="settings", key="serve.target", reason=reason)
    model = load_model(name, device, settings.serve.dtype, None if hollow else settings.serve.device_map)
    shared = FeatureTarget(model.module, name, model.digest)
    if hollow:
        stack = layer_stack(model.module)
        for number in range(len(stack)):
            stack[number] = nn.Identity()
    return shared
