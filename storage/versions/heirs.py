"""Heirs: the newest version that a draft has about an earlier target, offered to its line about the successor.

An heir is a CANDIDATE of the new line, with the weights of the earlier one's current version and the new line's number
0 for parent. It serves nothing until it was judged on the new target (:meth:`VersionLedger.settle_heir`).

    kind       is inherited
    full       always: it stands alone
    lora       where both lines have the same number 0, over which it stands
    others     never: they read the earlier target's hidden states
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from sqlalchemy import select

from storage.names import draft_of
from storage.records import DraftVersion, VersionState
from storage.routes.proposals import ProposalState
from storage.sql.ledger import HEIR_OF
from storage.sql.tables import VersionRow
from storage.store import Store
from storage.versions import weights
from storage.versions.forks import link_files

NEAREST = 8
"""Lines of ancestors that are looked at."""


def begin_line(store: Store, draft: str, folder: Path, target: str | None) -> DraftVersion:
    """Enter a folder as number 0 of a draft's line for a target, as :meth:`VersionLedger.register_root` does; where an
    ancestor's line began with the same files, they are linked and take no room."""
    digest = weights.digest_of(folder, weights.servable_files(folder))
    for old in store.targets.ancestors(target):
        known = store.versions.find(draft, old)
        root = None if known is None else store.versions.lineage(known.id)[-1]
        if root is not None and root.digest == digest and root.deleted_at is None:
            facts = {"forked_from": root.id, "digest": digest}
            return store.versions.register_root(draft, store.versions.folder(root), facts, link_files, target=target)
    return store.versions.register_root(draft, folder, target=target)


def waiting_heir(store: Store, line: str) -> DraftVersion | None:
    """Return the line's heir that was not judged yet; None where there is none."""
    found = (one for one in store.versions.list(line) if HEIR_OF in one.evidence)
    return next((one for one in found if one.state is VersionState.CANDIDATE), None)


def offer_heir(store: Store, line: str) -> DraftVersion | None:
    """Return the line's heir that waits for its judgement, entering it where the line has learned nothing and an
    ancestor of its target has; None where there is nothing to inherit, or the line had an heir before.

    Raises WeightsDamaged, PlaceUnreachable, StoreWriteFailed.
    """
    versions = store.versions.list(line)
    if not versions or len(versions) > 1 or (origin := _origin(store, versions[0])) is None:
        return waiting_heir(store, line)
    source = store.versions.folder(origin)
    facts = {HEIR_OF: origin.id, "digest": origin.digest}
    return store.versions.stage(
        line, versions[0].id, origin.kind, lambda aside: link_files(source, weights.weight_files(source), aside),
        provenance=facts,
    )  # fmt: skip


def _origin(store: Store, root: DraftVersion) -> DraftVersion | None:
    """Return what can be inherited: the newest current version of the nearest ancestors' lines that have learned. Runs
    that began before a target moved publish about it later. An heir is as old as the version whose weights it has."""
    ancestors = store.targets.ancestors(store.versions.target_of(root.draft))
    found = list(islice(filter(None, (_learned(store, draft_of(root.draft), one) for one in ancestors)), NEAREST))
    if not found or root.kind != "full":
        return None
    known = [version for one in found for version in store.versions.list(one.draft)]
    made = {one.digest: one.created_at for one in sorted(known, key=lambda one: -one.created_at)}
    origin = max(found, key=lambda one: made[one.digest])
    same_base = store.versions.lineage(origin.id)[-1].digest == root.digest
    return origin if origin.kind == "full" or (origin.kind == "lora" and same_base) else None


def _learned(store: Store, draft: str, target: str) -> DraftVersion | None:
    """Return the current version of a draft's line about a target, if it has learned."""
    current = store.versions.find(draft, target)
    if current is None or store.versions.target_of(current.draft) != target:
        return None
    return current if current.number or _began_learned(store, current) else None


def _began_learned(store: Store, root: DraftVersion) -> bool:
    """Return whether a number 0 is a fork of a version that had learned, or what a split trained."""
    twin = select(VersionRow.id).where(VersionRow.digest == root.digest, VersionRow.number > 0).limit(1)
    applied = store.proposals.list(ProposalState.APPLIED, limit=1 << 30)
    return store.db.scalar(twin) is not None or any(one.facts.get("version") == root.id for one in applied)
