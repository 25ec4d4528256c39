"""Folders of versions as engines load them: full weights, adapters merged into those that they were made for."""

from __future__ import annotations

from pathlib import Path

from osd.hotswap.export import export
from osd.hotswap.whole_features import lacks_rows
from storage.records import DraftVersion
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS

MERGED = "merged"
"""Folder of the store's directory for merged versions; it may be deleted at any time."""


def servable_folder(store: Store, version: DraftVersion) -> Path:
    """Return a local folder with a version's full weights; a feature draft's with the rows of the target's output layer
    that engines need.

    Raises WeightsDamaged, StoreWriteFailed, PlaceUnreachable.
    """
    folder = store.versions.folder(version)
    if version.kind != "lora" and not (version.kind in FEATURE_KINDS and lacks_rows(version.kind, folder)):
        return folder
    place = store.directory / MERGED / version.id
    if not place.is_dir():
        place.parent.mkdir(mode=0o700, exist_ok=True)
        export(store, version.id, place)
    return place
