"""Who drafts, by the settings."""

from __future__ import annotations

from osd.decoder import Decoder
from osd.drafters.base import Drafting
from osd.drafters.mixed import MixedDrafter
from osd.drafters.pool import DraftPool
from osd.drafters.proposers import Finding, Keeping
from osd.drafters.tree import Proposer, TreeDrafter
from osd.models import Model
from osd.trees.checking import check_model
from storage.settings import ServeSettings

SIZED = ("analytic", "goodput")
"""Controllers that weigh costs; with them trees have the nodes that are worth their cost, with others all."""


def make_drafting(
    model: Model, serve: ServeSettings, pool: DraftPool, target: Decoder, proposer: Proposer | None = None
) -> Drafting:
    """The pool, a proposer alone, or both: ``serve.drafter``. ``model`` is the target, ``target`` its decoder. Raises
    CannotServeTrees."""
    if serve.drafter == "causal":
        return pool
    check_model(model)
    mixed = serve.drafter == "mixed"
    if proposer is None:
        proposer = make_proposer(serve.branches if mixed else serve.drafter)
    sized = serve.gamma in SIZED
    return (MixedDrafter if mixed else TreeDrafter)(pool, proposer, serve.tree_nodes, target, sized=sized)


def make_proposer(name: str) -> Proposer:
    """A proposer that begins with nothing; Numba is loaded for those that ask for one."""
    if name == "trigram":
        from osd.ngram.maker import DraftMaker
        from osd.ngram.table import Table

        return Keeping(name, DraftMaker(Table()))
    from osd.ngram.lookup import PromptLookup

    return Finding(name, PromptLookup())
