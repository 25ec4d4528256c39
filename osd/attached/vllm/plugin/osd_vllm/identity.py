"""Which target this vLLM serves: the digests of its files, so that what is learned can name it."""

from __future__ import annotations

import hashlib
from pathlib import Path

PATTERNS = (
    "*.safetensors", "*.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "*.spm", "*.tiktoken", "chat_template*",
)  # fmt: skip
"""Files that may have a part in a model's texts; osd chooses among them."""


def file_digests(name: str, revision: str | None) -> dict[str, str]:
    """Return the SHA-256 of each file of a model's folder, or of its snapshot in Hugging Face's cache; empty where the
    files are not here."""
    folder = Path(name)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        except (OSError, ValueError):
            return {}
    paths = {path for pattern in PATTERNS for path in folder.glob(pattern) if path.is_file()}
    return {path.name: _sha256(path) for path in sorted(paths)}


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()
