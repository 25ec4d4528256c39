"""Folders of weights: their files, their digest, and the marker that they may be served.

    <data>/weights/<draft>/<version id>/
        config.json, model.safetensors …     a Hugging Face folder, a PEFT adapter, or an acceptance head
        osd.json                              where the weights came from
        master.float32                        float32 weights to train on, where those served have fewer bits
        READY                                 empty, written last

What is served has the number type of the checkpoint that osd started with. A run moves most weights by less than
bfloat16 can represent, and runs build on each other, so the newest version has its float32 weights beside it, outside
the digest: training checks that rounded they are what is served.

Weights are safetensors only: unpickling a checkpoint runs its code.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from storage.errors import ModelNotLoaded, StoreWriteFailed, WeightsDamaged
from storage.files.files import sync_path, writing
from storage.sql.drivers import plain
from storage.versions.feature_kinds import feature_kind, read_header

PROVENANCE = "osd.json"
MARKER = "READY"
MASTER = "master.float32"
"""Safetensors, under a name that loaders of whole folders pass by."""
BESIDE = frozenset({PROVENANCE, MARKER, MASTER})
"""Files that are not the version's own: neither digested nor served."""
HEAD_CONFIG = "acceptance_head.json"
NGRAM_CONFIG = "ngram.json"
SUFFIXES = frozenset({".safetensors", ".json", ".txt", ".model", ".jinja", ".md"})
NAMES = frozenset({"LICENSE", "NOTICE"})


def weight_files(folder: Path) -> list[Path]:
    """Return the folder's own files, sorted, without those beside them."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if path.relative_to(folder).as_posix() not in BESIDE)


def has_master(folder: Path) -> bool:
    """Return whether float32 weights lie beside those that are served."""
    return (folder / MASTER).is_file()


def servable_files(folder: Path) -> list[Path]:
    """Return the files of a foreign model folder that osd keeps: safetensors, configuration, tokenizer; nothing hidden.

    Raises ModelNotLoaded when there are no safetensors.
    """
    if not folder.is_dir():
        raise ModelNotLoaded(path=folder, reason="There is no such folder.")
    files = [path for path in weight_files(folder) if _is_allowed(path) and not _is_hidden(path.relative_to(folder))]
    if not any(path.suffix == ".safetensors" for path in files):
        raise ModelNotLoaded(path=folder, reason="The folder has no .safetensors file.")
    return files


def kind_of(folder: Path) -> str:
    """Return ``lora`` for a PEFT adapter, ``head`` for an acceptance head, ``ngram`` for a table, a feature
    draft's kind, else ``full``."""
    if (folder / HEAD_CONFIG).exists():
        return "head"
    if (folder / NGRAM_CONFIG).exists():
        return "ngram"
    if (folder / "adapter_config.json").exists():
        return "lora"
    return feature_kind(folder) or "full"


def _is_allowed(path: Path) -> bool:
    return path.suffix in SUFFIXES or path.name in NAMES


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def digest_of(folder: Path, files: Iterable[Path]) -> str:
    """Compute the SHA-256 over the files' names, sizes and contents, hexadecimal."""
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return whole.hexdigest()


def copy_files(folder: Path, files: Iterable[Path], destination: Path) -> None:
    """Copy contents (links followed) and sync them."""
    for path in files:
        target = destination / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    sync_tree(destination)


def seal(folder: Path) -> str:
    """Check what a trainer wrote, sync it, and return its digest.

    Raises StoreWriteFailed for a folder without safetensors, a cut-off one, or files that osd does not keep.
    """
    files = weight_files(folder)
    if strange := [path.name for path in files if not _is_allowed(path)]:
        raise StoreWriteFailed(path=folder, reason=f"{', '.join(strange)}: not safetensors, configuration or tokenizer")
    tensors = [path for path in files if path.suffix == ".safetensors"]
    if not tensors:
        raise StoreWriteFailed(path=folder, reason="no .safetensors file was written")
    with writing(folder):
        for path in [*tensors, *([folder / MASTER] if has_master(folder) else [])]:
            require_whole(path)
        sync_tree(folder)
        return digest_of(folder, files)


def require_whole(path: Path) -> None:
    """Raise StoreWriteFailed unless the safetensors file is as long as its header says."""
    size = path.stat().st_size
    try:
        length, tensors = read_header(path)
        end = max((entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"), default=0)
    except (ValueError, TypeError, KeyError):
        raise StoreWriteFailed(path=path, reason="it has no safetensors header") from None
    if size != 8 + length + end:
        raise StoreWriteFailed(path=path, reason=f"it has {size} bytes, its header says {8 + length + end}")


def sync_tree(folder: Path) -> None:
    """Wait until the disk has every file and every name below the folder."""
    for path in [*folder.rglob("*"), folder]:
        sync_path(path)


def write_provenance(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write osd.json and sync it."""
    path = folder / PROVENANCE
    with writing(path):
        path.write_text(json.dumps(plain(facts), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        sync_path(path)
        sync_path(folder)


def mark_ready(folder: Path) -> None:
    """Write the READY marker and sync it; fine if it is there already."""
    with writing(folder / MARKER):
        (folder / MARKER).touch()
        sync_path(folder / MARKER)
        sync_path(folder)


def verify(folder: Path, version: str, digest: str, *, ready: bool) -> None:
    """Raise WeightsDamaged unless the files match their digest and, if ``ready``, the READY marker is there."""
    try:
        if ready and not (folder / MARKER).exists():
            raise not_marked(version)
        found = digest_of(folder, weight_files(folder))
    except OSError as error:
        raise WeightsDamaged(version=version, reason=error.strerror or str(error)) from error
    if found != digest:
        raise other_digest(version, found, digest)


def not_marked(version: str) -> WeightsDamaged:
    """Return the error for a version without its READY marker."""
    return WeightsDamaged(version=version, reason=f"{MARKER} is missing, so its publication never finished")


def other_digest(version: str, found: str, published: str) -> WeightsDamaged:
    """Return the error for a version whose files are not those that were published."""
    reason = f"their digest is {found[:8]}…, published was {published[:8]}…"
    return WeightsDamaged(version=version, reason=reason)
