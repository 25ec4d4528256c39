"""Loads draft versions from the store as an engine takes them: forward passes and adapters, made aside.

What all versions of one number 0 have in common (their architecture's forward pass, their limits, the sizes that an
adapter must fit) is a :class:`Family`, kept by the digest of that number 0.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from osd.drafters.residency import LoadedVersion
from osd.models.decoder import Decoder, lay_out
from osd.models.features.base import FeatureDraft, FeatureDraftNotLoaded
from osd.models.features.decoder import FeatureModel, load_feature_model
from osd.models.features.files import load_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.forward import Builder
from osd.models.lora.adapter import Adapter, LowRank, Sizes, read_adapter, sizes_of
from osd.models.lora.merging import merged
from osd.models.model import Model
from osd.models.pair import Pair, load_model
from osd.models.sanity_check import TOKENS, require_drafts, require_finite, require_runs, require_same
from osd.models.vocabulary import SharedIds, check_vocabularies, load_tokenizer
from osd.models.weights import LOAD_ERRORS, first_line, read_weights
from storage.errors import DraftUnsound, ModelNotLoaded, NotPlain, WeightsDamaged
from storage.names import draft_of
from storage.records import DraftVersion
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """What the versions that descend from one number 0 share."""

    build: Builder
    limit: int
    attention: str
    device: torch.device
    dtype: torch.dtype
    sizes: Sizes
    shared: SharedIds | None
    """What they are fed for the target's ids, where their vocabulary is another in some places."""
    module: PreTrainedModel | None
    """The weights of number 0, where they are in memory anyhow."""

    @classmethod
    def of(cls, model: Model) -> Family:
        """Return the family of a model in memory."""
        weight = next(model.module.parameters())
        attention = model.module.config._attn_implementation
        sizes = sizes_of(model.module)
        return cls(model.build, model.limit, attention, weight.device, weight.dtype, sizes, model.shared, model.module)


class Loader:
    """Loads versions for one pair. Used by one thread."""

    def __init__(self, store: Store, pair: Pair, digest: str, length: int) -> None:
        """Start with the pair's own draft. ``digest``: its digest as number 0; ``length``: positions of a row."""
        self.store, self.pair, self.length, self._digest = store, pair, length, digest
        self._families = {} if isinstance(pair.draft, FeatureModel) else {digest: Family.of(pair.draft)}

    def load(self, version: DraftVersion, bases: Collection[str], *, shares: bool) -> LoadedVersion:
        """Load a version whose files are sound. ``bases``: digests of the full weights that are in memory; with
        ``shares`` an adapter stays an adapter over its base, else it is merged into a copy of it.

        A number 0 that no draft here came from is tried first. Raises WeightsDamaged, AdapterMismatch, ModelNotLoaded,
        CannotServeRagged, VocabularyMismatch, DraftUnsound.
        """
        if version.kind in FEATURE_KINDS:
            return self._features(version, bases)
        root = self.store.versions.lineage(version.id)[-1]
        family = self._family(root)
        if version.kind == "full":
            return self._over(version, family, version, bases, None)
        if shares and (parts := self._parts(version, root, family)) is not None:
            adapter = lay_out(family.build, parts, family.sizes)
            require_finite(adapter, version.id)
            return self._over(root, family, version, bases, adapter)
        module = load_version(self.store, version, family)
        decoder = self._decoder(module, family, version.id)
        return LoadedVersion(
            draft_of(version.draft), version.id, family.limit, None, decoder, weight_bytes(module), owned=True
        )

    def _over(
        self, base: DraftVersion, family: Family, version: DraftVersion, bases: Collection[str], adapter: Adapter | None
    ) -> LoadedVersion:
        """Return full weights, bare or under an adapter, loading them only where they are not in memory under any name:
        a draft that was forked from another shares its weights until it learns."""
        there = LoadedVersion(draft_of(version.draft), version.id, family.limit, base.digest, adapter=adapter)
        if base.digest in bases:
            return there
        if family.module is not None and base.number == 0:
            module = family.module
        else:
            self.store.versions.verify(base)
            module = load_version(self.store, base, family)
        return replace(
            there, decoder=self._decoder(module, family, base.id), weight_bytes=weight_bytes(module),
            owned=module is not family.module,
        )  # fmt: skip

    def _features(self, version: DraftVersion, bases: Collection[str]) -> LoadedVersion:
        """Return a feature draft, which is loaded where its weights are not in memory under any name."""
        draft = self.pair.draft
        if not (isinstance(draft, FeatureModel) and version.digest == self._digest):
            if version.digest in bases:
                return LoadedVersion(draft_of(version.draft), version.id, self.pair.target.limit, version.digest)
            try:
                draft = load_feature_model(self.store.versions.folder(version), self.pair.target)
            except FeatureDraftNotLoaded as error:
                raise WeightsDamaged(version=version.id, reason=error.facts["reason"].rstrip(".")) from None
        decoder = cast(Any, draft.decoder(1, self.length))
        require_drafts(decoder, version.id)
        return LoadedVersion(
            draft_of(version.draft), version.id, draft.limit, version.digest,
            None if version.digest in bases else decoder, weight_bytes(draft.module), owned=True,
        )  # fmt: skip

    def _decoder(self, module: PreTrainedModel, family: Family, version: str) -> Decoder:
        forward = family.build(module)
        assert forward is not None
        decoder = Decoder(module, forward, 1, self.length, family.limit)
        decoder.shared = family.shared
        require_runs(decoder, module, version)
        return decoder

    def _parts(self, version: DraftVersion, root: DraftVersion, family: Family) -> dict[str, LowRank] | None:
        """Read the adapter module by module; None where it can only be merged."""
        folder = self.store.versions.folder(version)
        try:
            return read_adapter(folder, version.id, family.sizes, root.digest, family.device, family.dtype)
        except NotPlain:
            return None

    def _family(self, root: DraftVersion) -> Family:
        if root.digest not in self._families:
            self.store.versions.verify(root)
            folder, like = self.store.versions.folder(root), next(self.pair.draft.module.parameters())
            model = load_model(folder, like.device, str(like.dtype).removeprefix("torch."))
            shared = check_vocabularies(self.pair.target, model, self.pair.tokenizer, load_tokenizer(folder))
            self._families[root.digest] = replace(Family.of(model), shared=shared, module=None)
        return self._families[root.digest]


def load_version(store: Store, version: DraftVersion, family: Family) -> PreTrainedModel:
    """Load a version's weights as a module; a LoRA adapter is merged into the weights that learning started from.

    Raises WeightsDamaged when the files do not load, AdapterMismatch when they do not fit together.
    """
    folder = store.versions.folder(version)
    try:
        if version.kind == "lora":
            root = store.versions.lineage(version.id)[-1]
            with suppress(NotPlain):
                read_adapter(folder, version.id, family.sizes, root.digest, torch.device("cpu"), family.dtype)
            module = merged(read_weights(store.versions.folder(root), family.dtype), folder)
        else:
            module = read_weights(folder, family.dtype)
    except ModelNotLoaded as error:
        raise WeightsDamaged(version=version.id, reason=error.facts["reason"].rstrip(".")) from None
    except LOAD_ERRORS as error:
        raise WeightsDamaged(version=version.id, reason=first_line(error)) from None
    module.config._attn_implementation = family.attention
    with torch.inference_mode(False):
        ready: PreTrainedModel = cast(Any, module).to(family.device).eval().requires_grad_(False)
        return ready


def weight_bytes(module: PreTrainedModel) -> int:
    """Return the memory of a model's weights in bytes, each counted once; what a forward pass packs for itself is
    extra."""
    return sum(weight.numel() * weight.element_size() for weight in module.parameters())


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
    loaded, weight = load_feature_draft(store.versions.folder(version), target), target.head.weight
    served = copy.deepcopy(judged).to(next(loaded.parameters()).dtype).float()  # rounded as the target's numbers are
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, TOKENS, judged.feature_size, generator=generator).to(weight.device)
    tokens = torch.randint(target.vocab_size, (1, TOKENS), generator=generator).to(weight.device)
    ours, theirs = (
        [step.logits for step in draft.unroll(features, tokens, target.embed, target.head, STEPS)]
        for draft in (loaded.float(), served)
    )
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape or not torch.allclose(one, other, rtol=CLOSE, atol=CLOSE):
            raise DraftUnsound(version=version.id, reason="what was written computes something else than was judged")
