"""Writes a feature draft as engines load it: with the rows of the target's output layer that they cannot take from the
target themselves."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors import safe_open

from osd.models.features.files import WEIGHTS, load_feature_draft, save_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.weights import read_weights
from storage.errors import BadInput, ModelNotLoaded
from storage.records import DraftVersion
from storage.store import Store


def lacks_rows(kind: str, folder: Path) -> bool:
    """Return whether a folder of this kind lacks an output layer that vLLM's loader demands: Medusa's, and EAGLE-3's
    over a draft vocabulary."""
    with safe_open(folder / WEIGHTS, "pt") as file:
        names = set(file.keys())
    if any("lm_head" in name for name in names):
        return False
    return kind == "medusa" or (kind == "eagle3" and "d2t" in names)


def complete(store: Store, version: DraftVersion, folder: Path) -> None:
    """Add to a version's folder what engines need of its target's output layer, in place; check on the way that it
    loads for the target. Raises BadInput where the target is not to be had, FeatureDraftNotLoaded,
    FeatureDraftMismatch."""
    digest = store.targets.of_lines().get(version.draft)
    name = store.targets.name_of(digest) or store.versions.provenance(store.versions.lineage(version.id)[-1]).get(
        "provenance", {}
    ).get("made_for")
    try:
        target = FeatureTarget(read_weights(str(name), torch.float32), str(name), digest)
    except ModelNotLoaded:
        reason = f"{version.id} goes with its target's output layer, and the target ({name}) cannot be read here."
        raise BadInput(reason=reason) from None
    draft = load_feature_draft(folder, target)
    with TemporaryDirectory(prefix="osd-draft-") as made:
        save_feature_draft(draft, made, target, whole=True)
        for path in Path(made).iterdir():
            shutil.copyfile(path, folder / path.name)
