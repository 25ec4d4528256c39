"""Models and optimizers' moments that stay in memory between the runs of one process, so that a run reads nothing that
the last one wrote.

Of each draft there are two: what serves (not for adapters, which are merged as they are read), and what was trained
last, which the next run goes on from. A run takes the second out, because it changes it, and puts both back once its
candidate is staged; one that fails puts nothing back. They move along where a run is on another device.
Where all take more than ``trainer.resident_mb``, the drafts that were trained longest ago leave.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import torch
from torch import nn

from osd.models.lora.merging import tie
from storage.records import DraftVersion
from trainer.distil.optimizer import Moments
from trainer.distil.teachers import Teachers

MB = 1 << 20
Kept = tuple[str, nn.Module | None]
"""A version and its model."""


@dataclass(slots=True)
class MomentMemory:
    """The moments that led to each draft's newest candidate."""

    _kept: dict[str, tuple[str, Moments]] = field(default_factory=dict)

    def recall(self, draft: str, version: str) -> Moments | None:
        """Return the moments that led to this version, if they are the newest."""
        owner, moments = self._kept.get(draft, ("", None))
        return moments if owner == version else None

    def keep(self, draft: str, version: str, moments: Moments) -> None:
        """Replace the draft's moments."""
        self._kept[draft] = (version, moments)


@dataclass(slots=True)
class _Models:
    serving: Kept = ("", None)
    trained: Kept = ("", None)

    @property
    def bytes(self) -> int:
        models = [model for _, model in (self.serving, self.trained) if model is not None]
        return sum(weight.numel() * weight.element_size() for model in models for weight in model.parameters())


@dataclass(slots=True)
class ResidentModels:
    """The drafts' models, the one trained longest ago first. Used by one thread."""

    limit_mb: int = 0
    memory: MomentMemory = field(default_factory=MomentMemory)
    teachers: Teachers = field(default_factory=Teachers)
    """The target that teaches, which does not count towards the limit."""
    _kept: OrderedDict[str, _Models] = field(default_factory=OrderedDict)

    def serving(self, version: DraftVersion, device: torch.device) -> nn.Module | None:
        """Return the model of a version that serves, not to be changed; None where it is not here."""
        owner, model = self._kept.get(version.draft, _Models()).serving
        return model.to(device) if model is not None and owner == version.id else None

    def take_trained(self, version: DraftVersion, device: torch.device) -> nn.Module | None:
        """Take the model of the version that was trained last out; None where it is not here."""
        models = self._kept.get(version.draft, _Models())
        (owner, model), models.trained = models.trained, ("", None)
        if model is None or owner != version.id:
            return None
        tie(model.to(device))
        return model

    def keep(self, draft: str, serving: Kept, trained: Kept) -> None:
        """Keep a draft's models."""
        self._kept[draft] = _Models(serving, trained)
        self._kept.move_to_end(draft)
        while self._kept and sum(models.bytes for models in self._kept.values()) > self.limit_mb * MB:
            self._kept.popitem(last=False)
