"""New drafts forked from an existing version, so that nothing is learned from scratch.

    the version forked    number 0 of the new draft       number 1
    full weights          its files                       –
    an adapter            its base                        the adapter, current

Drafts of adapters that were forked from one base have the same number 0, file by file: an engine may load it once.
Files are hard links where the file system has them, so a fork takes next to no room.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from storage.errors import WrongState
from storage.records import DraftVersion
from storage.versions import weights
from storage.versions.feature_kinds import FEATURE_KINDS
from storage.versions.versions import VersionLedger


def fork(ledger: VersionLedger, draft: str, of: str) -> DraftVersion:
    """Create ``draft`` from the version ``of``; return the new draft's current version.

    Forking the same version again returns the same. Raises UnknownVersion, WeightsDamaged, BadInput for a name that
    cannot be a folder's, StoreError when the draft exists with other weights, WrongState for an acceptance head.
    """
    origin = ledger.get(of)
    if origin.kind == "head":
        raise WrongState(version=of, state="an acceptance head", action="forking", needed="a draft's weights")
    ledger.verify(origin)
    if origin.kind in ("full", *FEATURE_KINDS):
        return _root(ledger, draft, origin)
    base = ledger.lineage(of)[-1]
    ledger.verify(base)
    return _adapter(ledger, _root(ledger, draft, base), origin)


def adopt(ledger: VersionLedger, draft: str, base: str, folder: Path) -> DraftVersion:
    """Create ``draft`` from a PEFT folder: number 0 has the files of the version ``base``, number 1 is the adapter.

    The caller ensures that the adapter fits. Raises as :func:`fork`, and ModelNotLoaded for a folder without
    safetensors.
    """
    files = weights.servable_files(folder)
    root = _root(ledger, draft, ledger.get(base))
    staged = ledger.stage(
        draft, root.id, "lora", lambda aside: weights.copy_files(folder, files, aside),
        provenance={"registered_from": folder.name},
    )  # fmt: skip
    return ledger.promote(staged.id)


def base_of(ledger: VersionLedger, draft: str, target: str | None = None) -> DraftVersion:
    """Return the base for a new adapter: the current version if it is an adapter too, else number 0, which never moves.

    Raises UnknownDraft.
    """
    current = ledger.current(draft, target)
    return current if current.kind == "lora" else ledger.lineage(current.id)[-1]


def _root(ledger: VersionLedger, draft: str, origin: DraftVersion) -> DraftVersion:
    provenance = {"forked_from": origin.id, "digest": origin.digest}
    target = ledger.target_of(origin.draft)
    return ledger.register_root(draft, ledger.folder(origin), provenance, link_files, target=target)


def _adapter(ledger: VersionLedger, root: DraftVersion, origin: DraftVersion) -> DraftVersion:
    current = ledger.current(root.draft)
    if current.id != root.id:  # forked before
        return current
    source = ledger.folder(origin)
    staged = ledger.stage(
        root.draft, root.id, "lora", lambda folder: link_files(source, weights.weight_files(source), folder),
        provenance={"forked_from": origin.id, "digest": origin.digest},
    )  # fmt: skip
    return ledger.promote(staged.id)


def link_files(folder: Path, files: list[Path], destination: Path) -> None:
    """Hard-link files, or copy them where the file system has no links."""
    for path in files:
        target = destination / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target)
        except OSError:
            shutil.copyfile(path, target)
    weights.sync_tree(destination)
