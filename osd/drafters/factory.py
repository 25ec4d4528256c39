"""Makes the drafter that the settings name."""

from __future__ import annotations

from typing import cast

from osd.drafters.base import Drafting
from osd.drafters.mixed import MixedDrafter
from osd.drafters.model_free import LookupProposer, TableProposer
from osd.drafters.pool import DraftPool
from osd.drafters.tree import Proposer, TreeDrafter
from osd.models.decoder import Decoder
from osd.models.pair import Model
from osd.models.tree_check import check_model
from storage.settings import ServeSettings

SIZED = ("analytic", "goodput")
"""Gamma rules that weigh costs; with them trees have the nodes that are worth their cost, with others all."""


def make_drafting(
    model: Model, serve: ServeSettings, pool: DraftPool, target: Decoder, proposer: Proposer | None = None
) -> Drafting:
    """Return the pool, a proposer alone, or both, as ``serve.drafter`` says. ``model`` is the target, ``target`` its
    decoder.

    Raises CannotServeTrees.
    """
    name = proposer_name(serve)
    if name is None:
        return pool
    if serve.drafter != "blended":
        check_model(model)
    proposer = proposer or make_proposer(name, serve)
    if serve.drafter == "blended":
        from osd.drafters.blended import BlendedDrafter, Remembering

        return BlendedDrafter(pool, cast(Remembering, proposer))
    kind = MixedDrafter if serve.drafter == "mixed" else TreeDrafter
    return kind(pool, proposer, serve.tree_nodes, target, sized=serve.gamma in SIZED)


def proposer_name(serve: ServeSettings) -> str | None:
    """Return the name of what proposes tokens; None where drafts are the draft model's alone."""
    return {"causal": None, "blended": "trigram", "mixed": serve.branches}.get(serve.drafter, serve.drafter)


def make_proposer(name: str, serve: ServeSettings) -> Proposer:
    """Make a proposer that begins with nothing; Numba is loaded only for one that is asked for."""
    if name == "trigram":
        from osd.drafters.ngram.maker import DraftMaker, MakerSettings
        from osd.drafters.ngram.table import Table, TableSettings

        table = Table(TableSettings(serve.table_order, serve.table_mb << 20))
        return TableProposer(name, DraftMaker(table, MakerSettings(threads=serve.threads)))
    from osd.drafters.ngram.lookup import PromptLookup

    return LookupProposer(name, PromptLookup())
