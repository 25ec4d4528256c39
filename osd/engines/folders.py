"""Folders of versions as engines load them: full weights, adapters merged into those that they were made for."""

from __future__ import annotations

from pathlib import Path

from osd.hotswap.export import export
from storage.records import DraftVersion
from storage.store import Store

MERGED = "merged"
"""Folder of the store's directory for merged versions; it may be deleted at any time."""


def servable_folder(store: Store, version: DraftVersion) -> Path:
    """Return a local folder with a version's full weights.

    Raises WeightsDamaged, StoreWriteFailed, PlaceUnreachable.
    """
    if version.kind != "lora":
        return store.versions.folder(version)
    place = store.directory / MERGED / version.id
    if not place.is_dir():
        place.parent.mkdir(mode=0o700, exist_ok=True)
        export(store, version.id, place)
    return place
