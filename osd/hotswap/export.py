"""Exports a version as a folder that transformers and engines load, and loads it before it appears."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open

from osd.models.encoder_decoder import decoder_inputs
from osd.models.features.checkpoint import merge_heads
from osd.models.features.files import WEIGHTS as FEATURE_WEIGHTS
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.speculators import ARCHITECTURES, TYPE, rewrite_for_speculators
from osd.models.features.target import FeatureTarget
from osd.models.lora.adapter import CONFIG, WEIGHTS
from osd.models.lora.merging import merged as merged_adapter
from osd.models.lora.merging import quiet_peft
from osd.models.model_digest import local_folder
from osd.models.weights import LOAD_ERRORS, LOAD_LOCK, first_line, read_weights, write_full
from storage.errors import BadInput, ModelNotLoaded, WeightsDamaged
from storage.records import DraftVersion
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS, MTP, read_config


def lacks_rows(kind: str, folder: Path) -> bool:
    """Return whether a folder of this kind lacks an output layer that vLLM's loader demands: Medusa's, and any but
    EAGLE's over a draft vocabulary; or is in another form than later versions are, which are published over it."""
    if TYPE in read_config(folder):
        return True
    with safe_open(folder / FEATURE_WEIGHTS, "pt") as file:
        names = set(file.keys())
    if any("lm_head" in name for name in names):
        return False
    return kind == "medusa" or (kind != "eagle" and "d2t" in names)


def complete(store: Store, version: DraftVersion, folder: Path, speculators: int | None) -> None:
    """Add to a version's folder what engines need of its target's output layer, in place; check on the way that it
    loads for the target. ``speculators``: as of :func:`export`. Raises BadInput where the target is not to be had,
    FeatureDraftNotLoaded, FeatureDraftMismatch."""
    name, digest = _target_of(store, version)
    try:
        target = FeatureTarget(read_weights(name, torch.float32), name, digest)
    except ModelNotLoaded:
        reason = f"{version.id} goes with its target's output layer, and the target ({name}) cannot be read here."
        raise BadInput(reason=reason) from None
    draft = load_feature_draft(folder, target)
    with TemporaryDirectory(prefix="osd-draft-") as made:
        save_feature_draft(draft, made, target, whole=True)
        if speculators is not None:
            rewrite_for_speculators(Path(made), target, speculators)
        for path in Path(made).iterdir():
            shutil.copyfile(path, folder / path.name)


def _target_of(store: Store, version: DraftVersion) -> tuple[str, str | None]:
    """Return the name and the digest of a version's target."""
    digest = store.targets.of_lines().get(version.draft)
    root = store.versions.lineage(version.id)[-1]
    made_for = store.versions.provenance(root).get("provenance", {}).get("made_for")
    return str(store.targets.name_of(digest) or made_for), digest


def export(
    store: Store, version_id: str, destination: Path, *, adapter: bool = False, speculators: int | None = None,
    merged: bool = False,
) -> Path:  # fmt: skip
    """Write a version to a new folder. An adapter is merged into its base's weights, or with ``adapter`` stays one,
    over the base's folder in the store. With ``speculators`` an EAGLE-3 draft is written in that library's form, which
    asks for so many drafted tokens; with ``merged`` an MTP head in a copy of its target's checkpoint.

    Raises BadInput when the destination exists or the version is of another kind, UnknownVersion, WeightsDamaged when
    the folder does not load, StoreWriteFailed; nothing is left then.
    """
    version = store.versions.get(version_id)
    if adapter and version.kind != "lora":
        raise BadInput(reason=f"{version_id} is no adapter: it has weights of its own. Leave --adapter out.")
    if speculators is not None and version.kind not in ARCHITECTURES:
        reason = f"{version_id} is of kind {version.kind}; the speculators form is of {', '.join(ARCHITECTURES)} alone."
        raise BadInput(reason=reason)

    if merged and version.kind != MTP:
        raise BadInput(reason=f"{version_id} is of kind {version.kind}; only an mtp head goes into its target's files.")

    def finish(folder: Path) -> None:
        if merged:
            _put_back(store, version, folder)
        else:
            _finish(store, version, folder, adapter, speculators)

    return store.versions.export(version_id, destination, finish)


def _put_back(store: Store, version: DraftVersion, folder: Path) -> None:
    """Make a folder with a version's MTP head the target's, with this head in it."""
    name = _target_of(store, version)[0]
    checkpoint = local_folder(name)
    if checkpoint is None:
        raise BadInput(reason=f"{version.id} goes into its target's files, and {name} is not on this machine.")
    (folder / FEATURE_WEIGHTS).unlink()
    merge_heads(store.versions.folder(version), checkpoint, folder)
    read_weights(folder, torch.float32)


def _finish(store: Store, version: DraftVersion, folder: Path, adapter: bool, speculators: int | None) -> None:
    try:
        if version.kind == "lora":
            root = store.versions.lineage(version.id)[-1]
            store.versions.verify(root)
            (_point_to if adapter else _merge)(folder, store.versions.folder(root))
        if version.kind in FEATURE_KINDS:
            complete(store, version, folder, speculators)
        if version.kind in ("lora", "full"):
            _require_loads(folder, adapter)
    except ModelNotLoaded as error:
        raise WeightsDamaged(version=version.id, reason=f"they do not load: {error.facts['reason']}") from None
    except LOAD_ERRORS as error:
        raise WeightsDamaged(version=version.id, reason=f"they do not load: {first_line(error)}") from None


def _point_to(folder: Path, base: Path) -> None:
    """Name the base's folder in the adapter's configuration, in place of its digest."""
    path = folder / CONFIG
    facts = json.loads(path.read_text("utf-8")) | {"base_model_name_or_path": str(base.absolute())}
    path.write_text(json.dumps(facts, indent=2) + "\n", "utf-8")


def _merge(folder: Path, base: Path) -> None:
    module = merged_adapter(read_weights(base, torch.float32), folder)
    for name in (CONFIG, WEIGHTS):
        (folder / name).unlink()
    write_full(module, folder, base)


def _require_loads(folder: Path, adapter: bool) -> None:
    """Load the folder and run a pass. Raises ModelNotLoaded, or one of LOAD_ERRORS."""
    if adapter:
        from peft import PeftModel

        with LOAD_LOCK, quiet_peft():
            base = json.loads((folder / CONFIG).read_text("utf-8"))["base_model_name_or_path"]
            model: Any = PeftModel.from_pretrained(read_weights(base, torch.float32), str(folder))
    else:
        model = read_weights(folder, torch.float32)
    with torch.inference_mode():
        fed = decoder_inputs(model, torch.tensor([[0, 0]]), 1)
        if not bool(model.eval()(**fed).logits.isfinite().all()):
            raise ValueError("a pass gives no finite numbers")
