"""Files of rows: JSON lines, a JSON list, Parquet, Arrow; folders of them, such as `datasets` saves; compressed text.

Every row is given on as JSON, so that it is read in one way whatever held it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from osd.prompts import OPENERS, UNREADABLE, open_bytes, read_lines, unreadable
from storage.errors import BadPromptFile

T = TypeVar("T")
Read: TypeAlias = Callable[[Path, int, bytes], Sequence[T]]
"""Makes some things of a row, given its file, its number from 1, and its JSON."""

ABOUT = {"dataset_info.json", "dataset_dict.json", "state.json"}
"""What the library `datasets` writes beside its rows."""
BATCH = 256
"""Rows of a table that are in memory at once."""


def kind_of(path: Path) -> str:
    """Return the end of a file's name, without that of its compression."""
    return Path(path.stem).suffix if path.suffix in OPENERS else path.suffix


def read_rows(path: Path, read: Read[T]) -> Iterator[T | BadPromptFile]:
    """Yield all that ``read`` makes of each row of a file, or of each file of a folder.

    A file that cannot be read to its end comes out as its error behind its rows. Raises BadPromptFile for a folder
    without rows.
    """
    files = [path] if not path.is_dir() else [one for one in sorted(path.rglob("*")) if _has_rows(one, path)]
    if not files:
        raise BadPromptFile(path=path, reason=f"no file in it has rows ({', '.join(READERS)})")
    for file in files:
        try:
            for some in READERS.get(kind_of(file), read_lines)(file, read):
                yield from some
        except BadPromptFile as error:
            yield error


def _has_rows(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith((".", "cache-")) for part in file.relative_to(folder).parts)
    return kind_of(file) in READERS and file.name not in ABOUT and not hidden and file.is_file()


def _read_list(path: Path, read: Read[T]) -> Iterator[Sequence[T]]:
    """Read a JSON list of rows; JSON lines where it is none."""
    try:
        with open_bytes(path) as file:
            whole = file.read().strip()
        rows = json.loads(whole) if whole.startswith(b"[") else None
    except (*UNREADABLE, ValueError, RecursionError) as error:
        raise unreadable(path, 0, error) from None
    if rows is None:
        yield from read_lines(path, read)
    for number, row in enumerate(rows or (), start=1):
        yield read(path, number, json.dumps(row).encode())


def _read_table(path: Path, read: Read[T]) -> Iterator[Sequence[T]]:
    """Read the rows of a Parquet or an Arrow file."""
    number = 0
    try:
        for row in chain.from_iterable(batch.to_pylist() for batch in _batches(path)):
            number += 1
            yield read(path, number, json.dumps(row, default=str).encode())
    except (OSError, ValueError) as error:  # Arrow's own are among them
        raise unreadable(path, number, error) from None


def _batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        yield from pq.ParquetFile(path).iter_batches(BATCH)
        return
    with pa.memory_map(str(path)) as file:
        for batch in pa.ipc.open_stream(file):  # as `datasets` writes it
            yield from (batch.slice(begin, BATCH) for begin in range(0, len(batch), BATCH))


READERS: dict[str, Callable[..., Iterator[Any]]] = {
    ".jsonl": read_lines, ".ndjson": read_lines, ".json": _read_list, ".parquet": _read_table, ".arrow": _read_table,
}  # fmt: skip
"""How a file's rows are read, by its kind."""
