"""The format of a file of traces: one Parquet file (zstd), one row a trace.

============================  ==================  ====================================================
column                        type                meaning (see :class:`osd.bench.gamma.rounds.RecordedText`)
============================  ==================  ====================================================
data_set                      string
temperature                   double
end                           int32
prompt, text                  list<int32>
drafted                       list<int32>         (n · G,) chain after chain
confidence, peak, acceptance  list<float>         (n · G,) in the same order
head                          list<float>         the same, or null
============================  ==================  ====================================================

The rest of a :class:`~osd.bench.gamma.rounds.Recording` stands in the schema's metadata, as JSON under ``osd.rounds``
with the version of this layout. Every page has a checksum, which reading verifies.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from osd.bench.gamma.rounds import RecordedText, Recording
from storage.errors import BadBenchFile
from storage.files.files import TemporaryPath

VERSION = 1
"""Version of the layout."""
_CHAINS: dict[str, type[np.generic]] = {
    "drafted": np.int32, "confidence": np.float32, "peak": np.float32, "acceptance": np.float32, "head": np.float32,
}  # fmt: skip
_LISTS: dict[str, type[np.generic]] = {"prompt": np.int32, "text": np.int32, **_CHAINS}
_ABOUT = [field.name for field in fields(Recording) if field.name != "traces"]


def write_recording(path: Path, recording: Recording) -> None:
    """The whole file, by rename. Raises StoreWriteFailed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    encoding = {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in _LISTS}
    pq.write_table(
        _table(recording), sink, compression="zstd", use_dictionary=False, write_page_checksum=True,
        column_encoding=encoding,
    )  # fmt: skip
    with TemporaryPath(path.absolute().parent, path.name) as aside:
        aside.write(memoryview(sink.getvalue()))
        aside.rename(path.absolute())


def read_recording(path: Path) -> Recording:
    """Raises BadBenchFile for a file that is missing, damaged, or something else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            about = _about(path, file.schema_arrow)
            table = file.read(use_threads=False)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).strip().splitlines()[0]
        raise BadBenchFile(path=path, reason=f"is not a recording that can be read ({reason})") from None
    columns = {name: _values(table[name], name in _LISTS) for name in table.column_names}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return Recording(
        **about, traces=tuple(_trace(path, number, row, about["depth"]) for number, row in enumerate(rows))
    )


def _table(recording: Recording) -> Any:
    import pyarrow as pa

    types = {"data_set": pa.string(), "temperature": pa.float64(), "end": pa.int32()}
    types |= {name: pa.list_(pa.from_numpy_dtype(dtype)) for name, dtype in _LISTS.items()}
    about = {"version": VERSION} | {name: getattr(recording, name) for name in _ABOUT}
    columns = {name: [_flat(getattr(trace, name)) for trace in recording.traces] for name in types}
    return pa.table(columns, schema=pa.schema(types.items(), metadata={"osd.rounds": json.dumps(about)}))


def _flat(value: Any) -> Any:
    return value.ravel() if isinstance(value, np.ndarray) else value


def _values(column: Any, is_list: bool) -> list[Any]:
    """A Python value a row, or an array."""
    if not is_list:
        return list(column.to_pylist())
    return [item.values.to_numpy().copy() if item.is_valid else None for item in column]


def _about(path: Path, schema: Any) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((schema.metadata or {}).get(b"osd.rounds", "null"))
    if about is None:
        raise BadBenchFile(path=path, reason="holds no recorded rounds")
    fits = about.pop("version", None) == VERSION and sorted(about) == sorted(_ABOUT)
    if not fits or set(schema.names) != {"data_set", "temperature", "end", *_LISTS}:
        raise BadBenchFile(
            path=path, reason=f"was written by another osd (this one reads layout {VERSION}); record anew"
        )
    return about


def _trace(path: Path, number: int, row: dict[str, Any], depth: int) -> RecordedText:
    """One row; what does not fit together is damage that no checksum sees."""
    n = len(row["text"])
    for name in _CHAINS:
        chain = row[name]
        if chain is None and name == "head":
            continue
        if chain is None or len(chain) != n * depth or (name != "drafted" and not np.all((chain >= 0) & (chain <= 1))):
            raise BadBenchFile(path=path, reason=f"{name} of trace {number} is not {n} chains of {depth} tokens")
        row[name] = chain.reshape(n, depth)
    return RecordedText(**row)
