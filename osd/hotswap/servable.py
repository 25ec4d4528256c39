"""Proves, before a version is READY, that servers load what was judged."""

from __future__ import annotations

from typing import cast

import torch
from transformers import PreTrainedModel

from osd.hotswap.loader import Loader
from osd.models.decoder import Decoder
from osd.models.features.base import FeatureDraft
from osd.models.features.files import load_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.pair import Pair, load_model
from osd.models.sanity_check import TOKENS, require_same
from storage.errors import DraftUnsound
from storage.records import DraftVersion
from storage.store import Store

STEPS = 2
"""Steps of a feature draft that are compared."""
CLOSE = 1e-3
"""How far logits may be apart, both being computed in float32 from weights of equal rounding."""


def require_servable(store: Store, version: DraftVersion, judged: PreTrainedModel) -> None:
    """Load a version as servers do, an adapter both ways, and compare a pass of each with the model that was judged.

    Raises as :meth:`Loader.load`.
    """
    root, like = store.versions.lineage(version.id)[-1], next(judged.parameters())
    model = load_model(store.versions.folder(root), like.device, "float32")
    loader = Loader(store, Pair(model, model, None, frozenset()), root.digest, TOKENS)
    for shares in (False, True) if version.kind == "lora" else (False,):
        loaded = loader.load(version, (), shares=shares)
        assert loaded.decoder
        require_same(cast(Decoder, loaded.decoder), loaded.adapter, judged, version.id)


@torch.no_grad()
def require_servable_features(store: Store, version: DraftVersion, judged: FeatureDraft, target: FeatureTarget) -> None:
    """Load a version of a feature draft as servers do, and compare its first steps over a text with those of what was
    judged. Raises FeatureDraftNotLoaded, FeatureDraftMismatch, DraftUnsound."""
    loaded = load_feature_draft(store.versions.folder(version), target).float()
    weight = target.head.weight
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, TOKENS, judged.feature_size, generator=generator).to(weight.device)
    tokens = torch.randint(target.vocab_size, (1, TOKENS), generator=generator).to(weight.device)
    ours, theirs = (
        [step.logits for step in draft.unroll(features, tokens, target.embed, target.head, STEPS)]
        for draft in (loaded, judged)
    )
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape or not torch.allclose(one, other, rtol=CLOSE, atol=CLOSE):
            raise DraftUnsound(version=version.id, reason="what was written computes something else than was judged")
