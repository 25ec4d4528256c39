"""A table on the disk: model.safetensors with its lists, ngram.json with its settings. A folder like any draft's.

    model.safetensors   keys (C,) uint64, lengths (C,) uint8, entries (N,) uint32: see osd.drafters.ngram.table
    ngram.json          {"format": "osd-ngram", "version": 1, "order", "memory", "half_life", "learned", "tokenizer"}

``tokenizer`` is the digest of the vocabulary whose token ids the table counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from osd.drafters.ngram import BadTable, OtherTokenizer
from osd.drafters.ngram.cells import WIDEST
from osd.drafters.ngram.table import Lists, Table, TableSettings, table_from
from storage.errors import ModelFileDamaged
from storage.files.files import TemporaryPath, writing
from storage.records import DraftVersion, new_id
from storage.sql.forgotten import TABLE_KIND
from storage.sql.ledger import require_name
from storage.versions.versions import VersionLedger
from storage.versions.weights import NGRAM_CONFIG

FORMAT, VERSION, ARRAYS = "osd-ngram", 1, "model.safetensors"
TYPES = {"keys": np.uint64, "lengths": np.uint8, "entries": np.uint32}
ROOM_TO_GROW = 7
"""Room, as a multiple of its contexts, for a table that is to count longer n-grams than it has."""


def write_table(folder: Path, table: Table, tokenizer: str) -> None:
    """Write the two files into an existing folder. The table may go on learning meanwhile."""
    settings = table.settings
    facts = {
        "format": FORMAT, "version": VERSION, "order": settings.order, "memory": settings.memory,
        "half_life": settings.half_life, "learned": table.learned, "tokenizer": tokenizer,
    }  # fmt: skip
    with writing(folder):
        save_file(table.snapshot()._asdict(), folder / ARRAYS, metadata={"tokenizer": tokenizer})
        (folder / NGRAM_CONFIG).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def keep_table(
    versions: VersionLedger, draft: str, table: Table, tokenizer: str, target: str | None = None
) -> DraftVersion:
    """Enter a table as the current version of a draft's line for a target; the first becomes its number 0.

    No gate evaluates it: a table that counted more of the same traffic is the same draft, later. Raises ForgottenSince
    where something was forgotten after it had begun, StoreError, BadInput for a name that cannot be a folder's.
    """
    facts = {"kind": TABLE_KIND, "learned": table.learned}
    if (parent := versions.find(draft, target)) is None:
        require_name(draft)
        with TemporaryPath(versions.weights_folder / draft, new_id(), folder=True) as made:  # a sweep finds it
            write_table(made.path, table, tokenizer)
            return versions.register_root(draft, made.path, facts, born=table.born, target=target)
    staged = versions.stage(
        parent.draft, parent.id, TABLE_KIND, lambda folder: write_table(folder, table, tokenizer), provenance=facts,
        born=table.born,
    )  # fmt: skip
    return versions.promote(staged.id)


def read_facts(folder: Path) -> dict[str, Any]:
    """Read ngram.json. Raises ModelFileDamaged."""
    path = Path(folder) / NGRAM_CONFIG
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or facts.get("version") != VERSION:
        raise _damaged(path, f"its format is not {FORMAT} {VERSION}")
    return facts


def load_table(folder: Path, tokenizer: str | None = None, memory: int | None = None, order: int = 0) -> Table:
    """Load a table from its folder, with room to go on learning.

    ``tokenizer`` is the digest of the vocabulary that it will be used with, ``memory`` another bound, ``order`` the
    least n: longer n-grams than it has counted come as it learns. Raises ModelFileDamaged, and OtherTokenizer for a
    table of other tokens.
    """
    folder = Path(folder)
    facts = read_facts(folder)
    require_tokenizer(f"The table {folder}", facts.get("tokenizer"), tokenizer)
    try:
        longer, half_life = max(order, int(facts["order"])), int(facts["half_life"])
        settings = TableSettings(longer, memory or int(facts["memory"]), half_life)
        spare = 1 if longer == facts["order"] else ROOM_TO_GROW
        return table_from(_lists(folder / ARRAYS), settings, int(facts["learned"]), spare)
    except (KeyError, TypeError, ValueError, BadTable) as error:
        raise _damaged(folder / NGRAM_CONFIG, error) from None


def require_tokenizer(what: str, found: Any, wanted: str | None) -> None:
    """Check that two digests are one. Raises OtherTokenizer."""
    if wanted is not None and found != wanted:
        raise OtherTokenizer(what=what, found=str(found), tokenizer="the one it is to be used with", wanted=wanted)


def _lists(path: Path) -> Lists:
    try:
        arrays = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise _damaged(path, error) from None
    if {name: array.dtype.type for name, array in arrays.items()} != TYPES:
        raise _damaged(path, "it has other arrays than " + ", ".join(TYPES))
    lists = Lists(arrays["keys"], arrays["lengths"], arrays["entries"])
    if any(array.ndim != 1 for array in lists) or len(lists.keys) != len(lists.lengths):
        raise _damaged(path, "its arrays do not fit one another")
    if len(lists.keys) and not 1 <= lists.lengths.min() <= lists.lengths.max() <= 1 << WIDEST:
        raise _damaged(path, "it has a list of an impossible length")
    if int(lists.lengths.sum(dtype=np.int64)) != len(lists.entries) or not np.all(lists.entries >> np.uint32(20)):
        raise _damaged(path, "its lists are not those that its lengths tell of")
    return lists


def _damaged(path: Path, reason: object) -> ModelFileDamaged:
    said = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return ModelFileDamaged(path=path, what="an n-gram table", reason=str(said).strip().splitlines()[0])
