"""What was proven about models of one configuration, kept on disk, so that it is proven once a machine."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import platformdirs
from transformers import PreTrainedModel

from osd.kernels.code_cache import digest_of


@cache
def _makers() -> str:
    """Return what proofs depend on beside the model: our passes, and the libraries."""
    return " ".join((digest_of(Path(__file__).parent), version("torch"), version("transformers")))


class ProofRecord:
    """Proofs about the models of a class and a configuration: a JSON file, by name what was found wrong, or null."""

    def __init__(self, module: PreTrainedModel) -> None:
        """Name the file by the digest of all that the proofs depend on."""
        told = json.dumps(module.config.to_dict(), sort_keys=True, default=str)
        digest = hashlib.sha256(f"{type(module).__qualname__} {told} {_makers()}".encode()).hexdigest()
        self._path = platformdirs.user_cache_path("osd") / "proofs" / f"{digest[:32]}.json"

    def recall(self, name: str, prove: Callable[[], str | None]) -> str | None:
        """Return what a proof found wrong, None for nothing; it runs where it is not known yet."""
        known: dict[str, str | None] = {}
        with suppress(OSError, ValueError):
            known = json.loads(self._path.read_text(encoding="utf-8"))
        if name not in known:
            known[name] = prove()
            self._keep(known)
        return known[name]

    def _keep(self, known: dict[str, str | None]) -> None:
        aside = self._path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):  # nowhere to write: it is proven again next time
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(known), encoding="utf-8")
            aside.replace(self._path)
