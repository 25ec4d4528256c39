"""Recorded texts, with the draft's chain at every position: enough to replay any controller without a model.

A round that starts at output position t drafts a chain from the text before t. Whatever a controller decides, it
sees a beginning of that chain, so one chain of G tokens at each of the n positions holds every round that could
have been. :mod:`benchmarks.gamma.record` makes traces, :mod:`benchmarks.gamma.simulate` replays them.

Greedy: the match length at each position is exact, and so is a replay. Sampled: the text is one sample of the
target's, and the acceptance probabilities along a chain are exact given the text before it. What is approximated:
a replayed round goes on along the recorded text, not along the text which its own accepted tokens and its own
correction would have begun. Both are samples of the target, but in a real run how a text goes on, and so how easy
the next round is, hangs on which of its drafted tokens were accepted; here it does not.

A file of them is one Parquet file (zstd), one row a trace:

============================  ==================  ====================================================
column                        type                meaning (see :class:`RecordedText`)
============================  ==================  ====================================================
data_set                      string
temperature                   double
end                           int32
prompt, text                  list<int32>
drafted                       list<int32>         (n · G,) chain after chain
confidence, peak, acceptance  list<float>         (n · G,) in the same order
head                          list<float>         the same, or null
likeliest                     list<int32>         the same; with the next three not in older files
margin, entropy, overlap      list<halffloat>     the same
============================  ==================  ====================================================

The rest of a :class:`Recording` stands in the schema's metadata, as JSON under ``osd.rounds``
with the version of this layout. Every page has a checksum, which reading verifies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.errors import BadBenchFile
from storage.files.files import write_whole

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedText:
    """One request: its output of n tokens, and at each position the chain of G tokens drafted from there."""

    data_set: str
    temperature: float
    end: int
    """Output tokens at which the request would have been cut: n, or more where an end token came first."""
    prompt: Ints
    text: Ints
    """(n,) the output, its end token included."""
    drafted: Ints
    """(n, G) the chain's tokens; [t, i] proposes output token t + i."""
    confidence: Floats
    """(n, G) the draft's probability of that token, temperature and cuts left out (Signal ``confidence``)."""
    peak: Floats
    """(n, G) the draft's largest probability there (Signal ``peak``)."""
    acceptance: Floats
    """(n, G) min(1, p ÷ q) of that token if all before it are accepted; greedy: 1 or 0, and 0 after the first 0."""
    head: Floats | None = None
    """(n, G) what an acceptance head says at each of the chain's passes, of the token before (Signal ``acceptance``);
    its first column means nothing. None without a head."""
    likeliest: Ints | None = None
    """(n, G) the draft's likeliest token, whichever was drawn. None, as the next three, in files of an older osd."""
    margin: Floats | None = None
    """(n, G) ``peak`` less the draft's second largest probability."""
    entropy: Floats | None = None
    """(n, G) the draft's entropy, in nats, temperature and cuts left out."""
    overlap: Floats | None = None
    """(n, G) Σ min(p, q), how often a token drawn there is accepted; of greedy texts at temperature 1, and 0 after the
    first token that was refused."""

    @property
    def length(self) -> int:
        """n."""
        return len(self.text)

    @property
    def depth(self) -> int:
        """G."""
        return int(self.drafted.shape[1])

    @property
    def greedy(self) -> bool:
        """Whether it was decoded at temperature 0."""
        return self.temperature == 0

    def matches(self, seed: int = 0) -> Ints:
        """(n,) how many tokens of each chain are accepted.

        Greedy: exact, the seed plays no part. Sampled: a coin thrown for each token of each chain, which is the same
        for every controller that is replayed with this seed.
        """
        stream = np.random.default_rng((seed, 1))  # not the one that the chains were drawn from
        coins = 0.5 if self.greedy else stream.random(self.acceptance.shape)
        kept = coins < self.acceptance
        return np.asarray(kept.cumprod(axis=1).sum(axis=1), np.int32)


@dataclass(frozen=True, slots=True)
class Recording:
    """What a file of traces holds."""

    target: str
    """Folder or hub name."""
    target_digest: str
    """Digest of its weights."""
    draft: str
    draft_digest: str
    depth: int
    """G."""
    new_tokens: int
    """Tokens of an output at most."""
    seed: int
    top_k: int = field(default=0, kw_only=True)
    """Tokens that sampled texts and chains were drawn from, the likeliest; 0: all."""
    traces: tuple[RecordedText, ...] = ()

    def of(self, data_set: str, temperature: float) -> tuple[RecordedText, ...]:
        """The traces of one data set at one temperature, in the order of its prompts."""
        return tuple(t for t in self.traces if t.data_set == data_set and t.temperature == temperature)


VERSION = 1
"""Version of the layout."""
_CHAINS: dict[str, type[np.generic]] = {
    "drafted": np.int32, "confidence": np.float32, "peak": np.float32, "acceptance": np.float32, "head": np.float32,
    "likeliest": np.int32, "margin": np.float16, "entropy": np.float16, "overlap": np.float16,
}  # fmt: skip
_MAY_LACK = {"head", "likeliest", "margin", "entropy", "overlap"}
_NO_CHANCES = {"drafted", "likeliest", "entropy"}
_LISTS: dict[str, type[np.generic]] = {"prompt": np.int32, "text": np.int32, **_CHAINS}
_ABOUT = [each.name for each in fields(Recording) if each.name != "traces"]


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
    write_whole(path, memoryview(sink.getvalue()))


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
    columns = {name: [_flat(name, getattr(trace, name)) for trace in recording.traces] for name in types}
    return pa.table(columns, schema=pa.schema(types.items(), metadata={"osd.rounds": json.dumps(about)}))


def _flat(name: str, value: Any) -> Any:
    return value.ravel().astype(_LISTS[name]) if isinstance(value, np.ndarray) else value


def _values(column: Any, is_list: bool) -> list[Any]:
    """A Python value a row, or an array."""
    if not is_list:
        return list(column.to_pylist())
    return [item.values.to_numpy().copy() if item.is_valid else None for item in column]


def _about(path: Path, schema: Any) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((schema.metadata or {}).get(b"osd.rounds", "null"))
    if about is None:
        raise BadBenchFile(path=path, reason="holds no recorded rounds")
    fits = about.pop("version", None) == VERSION and {"top_k", *about} == {*_ABOUT}
    if not fits or {*schema.names} | _MAY_LACK != {"data_set", "temperature", "end", *_LISTS}:
        raise BadBenchFile(
            path=path, reason=f"was written by another osd (this one reads layout {VERSION}); record anew"
        )
    return about


def _trace(path: Path, number: int, row: dict[str, Any], depth: int) -> RecordedText:
    """One row; what does not fit together is damage that no checksum sees."""
    n = len(row["text"])
    for name in _CHAINS:
        chain = row.get(name)
        if chain is None and name in _MAY_LACK:
            continue
        chances = name not in _NO_CHANCES
        if chain is None or len(chain) != n * depth or (chances and not np.all((chain >= 0) & (chain <= 1))):
            raise BadBenchFile(path=path, reason=f"{name} of trace {number} is not {n} chains of {depth} tokens")
        row[name] = chain.astype(np.int32 if chain.dtype.kind == "i" else np.float32).reshape(n, depth)
    return RecordedText(**row)
