"""The digest of a model's files: the same for the same weights, tokenizer and generation settings.

Hashing gigabytes takes seconds, so the digest of a large file is remembered in the cache directory, for as long as the
file has the same size and time of change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from platformdirs import user_cache_path

from storage.errors import OsdError
from storage.files.files import TemporaryPath

TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.spm", "*.tiktoken", "tekken.json")
"""What tokenizers are saved as."""
FILES = (
    "*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "adapter_config.json",
    "special_tokens_map.json", "added_tokens.json", "chat_template*", *TOKENIZER,
)  # fmt: skip
"""What makes a model's texts."""
LARGE = 16 << 20
"""Bytes from which a file's digest is remembered."""
MEMORY = "digests.json"


def model_digest(name: str) -> str | None:
    """Return the digest of a folder or hub name, hexadecimal; None for a model that came from no files."""
    if Path(name).is_file():  # a GGUF file, whatever it is called
        return file_digest(Path(name).resolve())
    folder = local_folder(name)
    if folder is None:
        return None
    paths = {path for pattern in FILES for path in folder.glob(pattern) if path.is_file()}
    return digest_of({path.name: file_digest(path.resolve()) for path in paths})


def local_folder(name: str) -> Path | None:
    """Return the folder of a model that is on this machine, by its path or hub name."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download  # not at once: engines are probed without it
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def digest_of(files: Mapping[str, str]) -> str:
    """Return the digest of a model by the SHA-256 of each of its files, by name; files that make no text are left
    out."""
    whole = hashlib.sha256()
    for name in sorted(name for name in files if any(fnmatchcase(name, pattern) for pattern in FILES)):
        whole.update(f"{name}\0{files[name]}\n".encode())
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """Return a file's SHA-256, from memory where it is large and has not changed."""
    found = path.stat()
    if found.st_size < LARGE:
        return _hash(path)
    memory = user_cache_path("osd") / MEMORY
    mark, known = [found.st_size, found.st_mtime_ns], _known(memory)
    if str(path) in known and known[str(path)][:2] == mark:
        return str(known[str(path)][2])
    digest = _hash(path)
    _remember(memory, _known(memory) | {str(path): [*mark, digest]})
    return digest


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _known(memory: Path) -> dict[str, list[object]]:
    try:
        found = json.loads(memory.read_text("utf-8"))
        return {name: entry for name, entry in found.items() if len(entry) == 3}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remember(memory: Path, known: dict[str, list[object]]) -> None:
    with suppress(OSError, OsdError):  # without it, the next start takes longer
        memory.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryPath(memory.parent, memory.name) as aside:
            aside.path.write_text(json.dumps(known), "utf-8")
            aside.rename(memory)
