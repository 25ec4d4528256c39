"""Folders of versions as engines load them: full weights, adapters merged into those that they were made for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from osd.models.lora.merging import merged
from storage.files.files import TemporaryPath, writing
from storage.records import DraftVersion
from storage.store import Store

MERGED = "merged"
"""Folder of the store's directory for merged versions; it may be deleted at any time."""


def servable_folder(store: Store, version: DraftVersion) -> Path:
    """Return a local folder with a version's full weights.

    Raises WeightsDamaged, StoreWriteFailed, PlaceUnreachable.
    """
    folder = store.versions.folder(version)
    if version.kind != "lora":
        return folder
    place = store.directory / MERGED / version.id
    if not place.is_dir():
        place.parent.mkdir(mode=0o700, exist_ok=True)
        _merge(store, version, folder, place)
    return place


def _merge(store: Store, version: DraftVersion, adapter: Path, place: Path) -> None:
    root = store.versions.folder(store.versions.lineage(version.id)[-1])
    base: Any = AutoModelForCausalLM.from_pretrained(root, dtype=torch.float32, use_safetensors=True)
    with TemporaryPath(place.parent, place.name, folder=True) as aside:
        with writing(aside.path):
            merged(base, adapter).save_pretrained(aside.path)
        aside.rename(place)
