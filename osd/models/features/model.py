"""A feature draft in a pair, in the place of a draft model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch

from osd.models.decoder import Decoder
from osd.models.features.base import FeatureDraft
from osd.models.features.decoder import FeatureDecoder
from osd.models.features.files import load_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.limits import position_limit
from osd.models.model import Model


@dataclass(frozen=True)
class FeatureModel(Model):
    """A feature draft in memory, ready to decode beside its target."""

    target: Model = field(kw_only=True)
    """The target that it reads."""

    @property
    def draft(self) -> FeatureDraft:
        """Its weights."""
        return cast(FeatureDraft, cast(Any, self.module))

    @cached_property
    def vocab_size(self) -> int:
        """Width of its logits: the target's."""
        return self.target.vocab_size

    @cached_property
    def device(self) -> torch.device:
        """The device of the target's output layer, where it computes."""
        return next(self.draft.parameters()).device

    def decoder(self, rows: int, length: int) -> Decoder:
        """Return its passes, with a cache for ``rows`` rows of ``length`` positions."""
        return cast(Decoder, FeatureDecoder(self.draft, feature_target(self.target), rows, length, self.limit))


def feature_target(model: Model) -> FeatureTarget:
    """Return a target in memory as feature drafts read it."""
    return FeatureTarget(model.module, model.name, model.digest)


def feature_model(name: str, draft: FeatureDraft, target: Model) -> FeatureModel:
    """Return a feature draft beside its target. ``name``: the folder that it came from."""
    limit = target.limit if draft.kind == "medusa" else min(target.limit, position_limit(draft.config))
    return FeatureModel(name, cast(Any, draft), limit, _built_by_its_decoder, target=target)


def _built_by_its_decoder(module: object) -> None:
    """Take the place of a forward pass over the whole model, which a feature draft has not."""


def load_feature_model(folder: Path, target: Model) -> FeatureModel:
    """Load a feature draft for a target in memory. Raises FeatureDraftNotLoaded, FeatureDraftMismatch."""
    return feature_model(str(folder), load_feature_draft(folder, feature_target(target)), target)
