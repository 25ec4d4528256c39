"""Digests by which osd and vLLM's process name weights and targets. Standard library only: it runs in both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

TARGET_FILES = (
    "*.safetensors", "*.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "*.spm", "*.tiktoken", "chat_template*",
)  # fmt: skip
"""Files that may have a part in a model's texts; osd chooses among them."""


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of a folder's weights: of each .safetensors file's name and
    contents, in order of names."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode() + b"\0")
        for piece in _pieces(path):
            digest.update(piece)
    return digest.hexdigest()


def target_digests(name: str, revision: str | None) -> dict[str, str]:
    """Return the SHA-256 of each file of a model's folder, or of its snapshot in Hugging Face's cache; empty where the
    files are not here."""
    folder = Path(name)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        except (OSError, ValueError):
            return {}
    paths = {path for pattern in TARGET_FILES for path in folder.glob(pattern) if path.is_file()}
    return {path.name: _file_digest(path) for path in sorted(paths)}


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            yield piece
