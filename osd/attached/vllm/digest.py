"""The digest by which osd and vLLM's workers name a draft's weights. Standard library only: it runs in both."""

from __future__ import annotations

import hashlib
from pathlib import Path


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of a folder's weights: of each .safetensors file's name and
    contents, in order of names."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        found.update(path.name.encode() + b"\0")
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                found.update(piece)
    return found.hexdigest()
