"""The format of a segment: one Parquet file (zstd), one row a request. No files are opened for writing here.

=================  ==================  ====================================================================
column             type                meaning (see :class:`storage.records.RequestSamples`)
=================  ==================  ====================================================================
request_id         string
route, tenant      string
draft_version      string
created_at         double              Unix seconds
prompt_len         int32
k                  int32               log-probabilities kept at a position; 0 where texts alone were kept
tokens             list<int32>         (n,) prompt and output
positions          list<int32>         (m,)
kinds              list<uint8>         (m,) 0 accepted, 1 rejected, 2 undrafted
drafted            list<int32>         (m,)
topk_ids           list<int32>         (m · k,) position after position, each likeliest first
topk_logprobs      list<float>         (m · k,) natural logarithms, in the same order; each is a float16 exactly
outside            list<float>         (m,) probability outside the k
acceptance         list<float>         (m,) min(1, p/q) of the drafted token, NaN where none was; empty where it was
                                       not kept; each is a float16 exactly
target             string              digest of the target that answered
hidden_states      list<float>         (m · D,) the target's last hidden states, position after position; empty where
                                       they were not kept; each is a float16 exactly
=================  ==================  ====================================================================

Where requests have branches (:class:`storage.branches.Branches`), these are not empty:

====================  ===========  ========================================================================
branch_begins         list<int32>  (r,) where a branch leaves the text
branch_lengths        list<int32>  (r,) its tokens
branch_tokens         list<int32>  (n,) the draft's own tokens, branch after branch
branch_topk_ids       list<int32>  (n · k,) the target's after each, likeliest first
branch_topk_logprobs  list<float>  (n · k,) natural logarithms; each is a float16 exactly
branch_outside        list<float>  (n,) probability outside the k
====================  ===========  ========================================================================

A file may lack ``acceptance``, ``target``, ``hidden_states`` and the columns of branches; it is read as if they were
empty.

Numbers are split by byte before zstd, which is smaller than a dictionary and faster; half of a float16's bytes in a
float are zeros and cost nothing, and DuckDB, Polars and others read them where they do not read halves. Every page
has a checksum, which reading verifies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.branches import Branches
from storage.errors import BadInput, CannotDecrypt
from storage.files.cipher import Cipher, KeyProblem, is_encrypted
from storage.records import RequestSamples

Array = npt.NDArray[Any]

SCALARS = ("request_id", "route", "tenant", "draft_version", "created_at", "prompt_len")
LISTS: dict[str, type[np.generic]] = {  # types as stored
    "tokens": np.int32,
    "positions": np.int32,
    "kinds": np.uint8,
    "drafted": np.int32,
    "topk_ids": np.int32,
    "topk_logprobs": np.float32,
    "outside": np.float32,
    "acceptance": np.float32,
    "hidden_states": np.float32,
    "branch_begins": np.int32,
    "branch_lengths": np.int32,
    "branch_tokens": np.int32,
    "branch_topk_ids": np.int32,
    "branch_topk_logprobs": np.float32,
    "branch_outside": np.float32,
}
BRANCH = "branch_"
"""Prefix of the lists that are fields of a request's branches."""
READ = dict.fromkeys(("topk_logprobs", "acceptance", "hidden_states", "branch_topk_logprobs"), np.float16)
"""Types of a record's arrays where they differ from the stored ones."""
LATER = ("acceptance", "target", "hidden_states", *(name for name in LISTS if name.startswith(BRANCH)))
"""Columns that a file may lack."""

FORMAT = 4
"""Format version, raised when readers of the format before cannot read what is written."""
FORMAT_KEY = "osd.segment"
WRITE: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": False,
    "write_page_checksum": True,
    "column_encoding": {
        f"{name}.list.element": "BYTE_STREAM_SPLIT" for name, dtype in LISTS.items() if dtype is not np.uint8
    },
}
"""Options of the Parquet writer."""


def encode(batch: Sequence[RequestSamples], cipher: Cipher | None = None) -> memoryview:
    """Encode a batch as a segment's bytes, encrypted where there is a cipher. Raises BadInput for shapes that do not
    fit."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table(batch), sink, **writer_options(cipher))
    return memoryview(sink.getvalue())


def writer_options(cipher: Cipher | None) -> dict[str, Any]:
    """Return the Parquet writer's options for one file."""
    return WRITE if cipher is None else WRITE | cipher.for_writing()


def schema() -> Any:
    """Return the Arrow schema of a segment."""
    import pyarrow as pa

    fields = [(name, pa.string()) for name in SCALARS[:4]]
    fields += [("created_at", pa.float64()), ("prompt_len", pa.int32()), ("k", pa.int32()), ("target", pa.string())]
    fields += [(name, pa.list_(pa.from_numpy_dtype(dtype))) for name, dtype in LISTS.items()]
    return pa.schema(fields, metadata={FORMAT_KEY: str(FORMAT)})


def table(batch: Sequence[RequestSamples]) -> Any:
    """Return the batch as an Arrow table. Raises BadInput."""
    import pyarrow as pa

    for samples in batch:
        require_shapes(samples)
    columns: dict[str, Any] = {name: [getattr(samples, name) for samples in batch] for name in (*SCALARS, "target")}
    columns["k"] = [samples.k for samples in batch]
    for name, dtype in LISTS.items():
        columns[name] = _list_column([_array(samples, name) for samples in batch], dtype)
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in schema()}, schema=schema())


def _array(samples: RequestSamples, name: str) -> Array | None:
    """Return the array of a request's list; None where it was not kept."""
    owner = samples.branches if name.startswith(BRANCH) else samples
    return None if owner is None else getattr(owner, name.removeprefix(BRANCH))


def _list_column(arrays: Sequence[Array | None], dtype: type[np.generic]) -> Any:
    import pyarrow as pa

    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum([0 if array is None else array.size for array in arrays], out=offsets[1:])
    there = [array.ravel() for array in arrays if array is not None]
    whole = np.concatenate(there) if there else np.zeros(0)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(whole.astype(dtype, copy=False)))


def require_shapes(samples: RequestSamples) -> None:
    """Raise BadInput when a request's arrays do not fit together."""
    m = len(samples.positions)
    flat = all(getattr(samples, name).shape == (m,) for name in ("positions", "kinds", "drafted", "outside"))
    flat &= samples.acceptance is None or samples.acceptance.shape == (m,)
    states = samples.hidden_states
    flat &= states is None or (states.ndim == 2 and len(states) == m)
    wide = samples.topk_ids.ndim == 2 and len(samples.topk_ids) == m
    if not (flat and wide and samples.topk_logprobs.shape == samples.topk_ids.shape and samples.tokens.ndim == 1):
        shapes = {name: getattr(getattr(samples, name), "shape", None) for name in LISTS if not name.startswith(BRANCH)}
        raise BadInput(reason=f"The samples of request {samples.request_id} have shapes that do not fit: {shapes}.")
    wrong = samples.branches and samples.branches.misfit(len(samples.tokens), samples.topk_ids.shape[1])
    if wrong:
        raise BadInput(reason=f"The samples of request {samples.request_id} cannot be kept: {wrong}.")


class NewerFormat(ValueError):
    """The file was written by a newer osd."""


def require_schema(found: Any) -> None:
    """Raise ValueError for columns that osd does not write, as the file's list of them has no checksum, or
    NewerFormat."""
    written = (found.metadata or {}).get(FORMAT_KEY.encode(), b"1").decode(errors="replace")
    if written.isdecimal() and int(written) > FORMAT:
        raise NewerFormat(f"It is of format {written}, and this osd reads up to {FORMAT}.")
    theirs = {field.name: field.type for field in found}
    if theirs != {each.name: each.type for each in schema() if each.name in theirs or each.name not in LATER}:
        raise ValueError(f"its columns are not a segment's: {', '.join(found.names)}")


def decode(source: Any, cipher: Cipher | None = None) -> list[RequestSamples]:
    """Return every row of a path or buffer, in order.

    Raises CannotDecrypt, OSError, ValueError or Arrow's own errors for what is not a whole segment.
    """
    with opened(source, cipher) as file:
        return _records(file.read(use_threads=False))


def decode_groups(path: Path, cipher: Cipher | None = None) -> Iterator[list[RequestSamples]]:
    """Yield the rows of a file too large for memory, a row group at a time. Raises as :func:`decode`."""
    with opened(path, cipher) as file:
        require_schema(file.schema_arrow)
        for group in range(file.num_row_groups):
            yield _records(file.read_row_group(group, use_threads=False))


@contextmanager
def opened(source: Any, cipher: Cipher | None) -> Iterator[Any]:
    """Open a Parquet file that verifies its pages' checksums. Raises CannotDecrypt, and what Arrow raises."""
    import pyarrow.parquet as pq

    options = {} if cipher is None else cipher.for_reading()
    shown = source if isinstance(source, Path) else "a segment"
    try:
        with pq.ParquetFile(source, page_checksum_verification=True, **options) as file:
            yield file
    except KeyProblem as error:
        raise CannotDecrypt(path=shown, reason=error) from None
    except OSError:
        if cipher is None and is_encrypted(source):
            reason = "there is no key ring; name one in storage.encryption"
            raise CannotDecrypt(path=shown, reason=reason) from None
        raise


def _records(found: Any) -> list[RequestSamples]:
    require_schema(found.schema)
    whole = found.combine_chunks()
    scalars = [whole[name].to_pylist() for name in SCALARS]
    widths = whole["k"].to_pylist()
    targets = whole["target"].to_pylist() if "target" in whole.column_names else [None] * len(widths)
    kept = {name: READ.get(name, dtype) for name, dtype in LISTS.items() if name in whole.column_names}
    lists = {name: split_rows(whole[name], dtype) for name, dtype in kept.items()}
    return [
        _to_record(values, {name: arrays[row] for name, arrays in lists.items()}, widths[row], targets[row])
        for row, values in enumerate(zip(*scalars, strict=True))
    ]


def split_rows(column: Any, dtype: type[np.generic] | None = None) -> list[Array]:
    """Split a list column into one array a row. With a ``dtype`` they are views of one copy, so they are writable and
    outlive Arrow."""
    if not column.num_chunks:
        return []
    chunk = column.chunk(0)
    values = chunk.values.to_numpy()
    if dtype is not None:
        values = values.astype(dtype)
    return [values[start:end] for start, end in pairwise(chunk.offsets.to_numpy().tolist())]


def _to_record(values: tuple[Any, ...], arrays: dict[str, Any], k: int, target: str | None) -> RequestSamples:
    own = {name.removeprefix(BRANCH): arrays.pop(name) for name in LISTS if name.startswith(BRANCH) and name in arrays}
    m = len(arrays["positions"])
    for name in ("topk_ids", "topk_logprobs"):
        arrays[name] = arrays[name].reshape(m, k)
    if len(arrays.get("acceptance", ())) != m:
        arrays["acceptance"] = None
    states = arrays.get("hidden_states", ())
    arrays["hidden_states"] = states.reshape(m, -1) if len(states) else None
    return replace(RequestSamples(*values, **arrays), target=target, branches=_to_branches(own, k))


def _to_branches(own: dict[str, Any], k: int) -> Branches | None:
    if not len(own.get("begins", ())):
        return None
    for name in ("topk_ids", "topk_logprobs"):
        own[name] = own[name].reshape(len(own["tokens"]), k)
    return Branches(**own)


def shares(batch: Sequence[RequestSamples]) -> Array:
    """Return each request's share of the segment's bytes, by its element count before compression; (requests,), sums to
    1."""
    raw = np.array([_nbytes(samples, *LISTS) for samples in batch], np.float64)
    return np.asarray(raw / raw.sum())


def hidden_share(samples: RequestSamples) -> float:
    """Return the part that hidden states have in a request's bytes, by the same count."""
    return (_nbytes(samples, "hidden_states") - 1) / _nbytes(samples, *LISTS)


def _nbytes(samples: RequestSamples, *names: str) -> int:
    """Return the bytes of a request's lists, and one, as no request is without any."""
    return 1 + sum(getattr(_array(samples, name), "nbytes", 0) for name in names)
