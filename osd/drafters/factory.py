"""Drafters by name: osd's own, and those that installed packages bring by the entry point group ``osd.drafters``.

How to add one: docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from osd.drafters.base import Drafting
from osd.drafters.model_free import LookupProposer, TableProposer
from osd.drafters.pool import DraftPool
from osd.drafters.tree import DraftTrees, Proposer, TreeDrafter
from osd.gamma import RULES, needs_head
from osd.models.decoder import Decoder
from osd.models.encoder_decoder import require_decoder_only
from osd.models.needs_draft import MODEL_DRAFTERS, UNIVERSAL, NeedsDraft
from osd.models.pair import CHAINS, Pair
from osd.models.target_only import has_draft
from osd.models.tree_check import check_model
from storage.settings import Registry, Section, Settings


@dataclass(frozen=True, slots=True)
class DraftingParts:
    """What a drafter is made of."""

    settings: Settings
    pool: DraftPool
    """The drafts in memory; without a draft model they seat rows and draft nothing."""
    target: Decoder
    """Has the cache that drafted tokens go to."""
    proposer: Proposer | None
    """Who names tokens beside or in place of the drafts."""
    pair: Pair

    @property
    def nodes(self) -> int:
        """Drafted tokens of a row at most where drafts are trees."""
        return self.settings.drafters.tree_nodes

    @property
    def sized(self) -> bool:
        """Whether nodes that are not worth their verification are left out of trees."""
        return RULES.entry(self.settings.gamma.rule).weighs_costs


def _alone(parts: DraftingParts) -> Drafting:
    assert parts.proposer is not None
    return TreeDrafter(parts.pool, parts.proposer, parts.nodes, parts.target, sized=parts.sized)


def _blended(parts: DraftingParts) -> Drafting:
    from osd.drafters.blended import BlendedDrafter, PlacesRows

    return BlendedDrafter(parts.pool, cast(PlacesRows, parts.proposer))


def _universal(parts: DraftingParts) -> Drafting:
    from osd.drafters.universal import UniversalProposer

    pair = parts.pair
    if pair.text_draft is None or pair.tokenizer is None:
        raise NeedsDraft(what="drafters.kind = universal")
    proposer = UniversalProposer(pair.text_draft, pair.tokenizer, parts.settings.serve.max_batch)
    return _alone(replace(parts, proposer=proposer))


def _trigram(settings: Settings, _: Section) -> Proposer:
    from osd.drafters.ngram.drafter import NgramDrafter, SearchSettings  # brings Numba
    from osd.drafters.ngram.table import Table, TableSettings

    table = Table(TableSettings(settings.ngram.order, settings.ngram.memory_mb << 20))
    return TableProposer("trigram", NgramDrafter(table, SearchSettings.of(settings)))


def _lookup(settings: Settings, _: Section) -> Proposer:
    from osd.drafters.ngram.lookup import PromptLookup  # brings Numba

    return LookupProposer("lookup", PromptLookup())


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """A value of ``drafters.kind``: an entry of the registry below, or of a third party's package."""

    propose: Callable[[Settings, Any], Proposer] | None = None
    """Makes a proposer that begins with nothing, of all settings and the kind's own table as ``settings`` has checked
    it. None: there is none, or its ``drafting`` makes its own."""
    settings: type[Section] = Section
    """The settings in ``[drafters.NAME]``; left out: there are none."""
    drafting: Callable[[DraftingParts], Drafting] = _alone
    """Puts drafts and proposer together; left out: the proposer alone drafts, in trees."""


DRAFTERS: Mapping[str, DrafterKind] = {
    "causal": DrafterKind(drafting=lambda parts: parts.pool),
    "blended": DrafterKind(drafting=_blended),
    "trigram": DrafterKind(_trigram),
    "lookup": DrafterKind(_lookup),
    "tree": DrafterKind(drafting=lambda parts: DraftTrees(parts.pool, parts.nodes, parts.target, sized=parts.sized)),
    UNIVERSAL: DrafterKind(drafting=_universal),
}
"""The drafters that ship with osd."""
KINDS = Registry("drafters", "drafters.kind", "osd.drafters", DrafterKind, DRAFTERS)


def require_drafter(pair: Pair, settings: Settings) -> None:
    """Check that the pair has a draft model where these settings ask for one, and one that reads its own text where
    they ask for an acceptance head. Raises NeedsDraft, DecoderOnly."""
    if settings.serve.record_branches:
        require_decoder_only(pair.target.module, "serve.record_branches", pair.target.name)
    asker = "gamma.rule = specdecpp" if "specdecpp" in settings.gamma.rules else "gamma.goodput.head"
    if needs_head(settings.gamma):
        require_decoder_only(pair.target.module, asker, pair.target.name)
    if has_draft(pair):
        return
    has_other = settings.drafters.kind == UNIVERSAL and pair.text_draft is not None
    if settings.drafters.kind in MODEL_DRAFTERS and not has_other:
        raise NeedsDraft(what=f"drafters.kind = {settings.drafters.kind}")
    if needs_head(settings.gamma):
        raise NeedsDraft(what=asker)
    if settings.gamma.specdecpp.head is not None:
        raise NeedsDraft(what="gamma.specdecpp.head")


def make_drafting(
    pair: Pair, settings: Settings, pool: DraftPool, target: Decoder, proposer: Proposer | None = None
) -> Drafting:
    """Return the drafter of ``drafters.kind``. ``target`` is the target's decoder; ``proposer`` takes the place of the
    one that the settings name. Raises BadSetting, CannotServeTrees and NeedsDraft."""
    require_drafter_kind(settings)
    if settings.drafters.kind not in CHAINS:
        check_model(pair.target)
    if proposer is None and (name := proposer_name(settings)) is not None:
        proposer = make_proposer(name, settings)
    return KINDS.entry(settings.drafters.kind).drafting(DraftingParts(settings, pool, target, proposer, pair))


def require_drafter_kind(settings: Settings) -> None:
    """Raise BadSetting where a drafter's name or table is wrong, or a table belongs to no drafter."""
    KINDS.require_known(settings.drafters)
    KINDS.table(settings.drafters.kind, settings.drafters)


def proposer_name(settings: Settings) -> str | None:
    """Return who proposes tokens; None where drafts are the draft's alone."""
    kind = settings.drafters.kind
    return {"causal": None, "tree": None, UNIVERSAL: None, "blended": "trigram"}.get(kind, kind)


def make_proposer(name: str, settings: Settings) -> Proposer:
    """Return a proposer that begins with nothing; Numba is loaded for those that ask for one. The settings are those
    that :func:`require_drafter_kind` lets pass."""
    propose = KINDS.entry(name).propose
    assert propose is not None, name
    return propose(settings, KINDS.table(name, settings.drafters))
