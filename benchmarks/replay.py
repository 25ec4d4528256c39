"""What keeping costs: writing, reading, claiming and forgetting samples, and recording's share of decoding.

One store is filled with synthetic requests, in segments of the size that serving writes. Then runs claim and read as
the trainer does, and single requests are forgotten. Rates are by CPU seconds of this process, one core, so that a busy
machine does not change them; milliseconds are medians by the clock.

The requests are drawn from a seed: shapes and skew as in traffic, no text behind them. Token ids are log-uniform over
the vocabulary (Zipf's law), distinct within a position; the likeliest token has 10 % to 98 % of the mass, and the
others fall off as rank^-a with noise, as next-token distributions do.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from safetensors.numpy import save_file

from osd.bench.harness.options import DraftOption, JsonOption, TargetOption
from osd.bench.harness.prompts import texts_by_set
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch, watching
from osd.server.start import PairNames, choose_pair
from storage.records import DEFAULT_DRAFT, DraftVersion, RequestSamples, RunState, TokenKind, now
from storage.settings import Settings, load_settings
from storage.store import Store, open_store

POOL = 1_024
"""Requests whose content is drawn; more repeat it under other ids."""
CLAIMS, PURGES = 9, 9
SMALL = 20_000
"""Positions of ``--small``."""
VOCABULARY = 151_936
POSITIONS, PROMPT = 100, 120
"""Positions of a request, and tokens of its prompt."""


def command(
    target: TargetOption = None,
    draft: DraftOption = None,
    positions: Annotated[int, typer.Option(help="Positions to keep.", min=1_000)] = 10_000_000,
    small: Annotated[bool, typer.Option("--small", help=f"Only {SMALL:,} positions: does it work at all?")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            help="Where the store is made; removed afterwards. 10 million positions need 3 GB.", exists=True,
            file_okay=False, metavar="FOLDER",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """What keeping costs: writing, reading, claiming and forgetting samples, and recording's share of decoding.

    The pair only decodes for the recorder's share.

    Example: `python -m benchmarks replay --target ./target --draft ./draft --json`
    """
    settings = load_settings()
    pair = choose_pair(settings.serve, target, draft)
    figures: dict[str, Any] = {}
    with watching() as watch, watch.until_ctrl_c():
        figures |= bench_replay(settings, SMALL if small else positions, directory, watch)
        figures |= recorder_share(settings, pair, 4 if small else 300, watch)
    facts = {"target": pair.target, "draft": pair.draft, "top_k": settings.storage.top_k}
    tables = {"What keeping costs": [{"figure": name, "value": value} for name, value in figures.items()]}
    raise typer.Exit(BenchResult("replay", facts, figures, tables, interrupted=watch.stopped).show(as_json=json))


class CpuSeconds:
    """CPU seconds of this process."""

    def __init__(self) -> None:
        self.total = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add what happens inside."""
        begun = time.process_time()
        yield
        self.total += time.process_time() - begun


def bench_replay(settings: Settings, positions: int, folder: Path | None, watch: Watch) -> dict[str, Any]:
    """Return the figures of a store that is made in ``folder``, and removed afterwards."""
    with TemporaryDirectory(prefix="osd-bench-", dir=folder) as made:
        own = settings.changed(storage={"directory": Path(made), "url": None, "holdout": 0.0})
        with open_store(own) as store:
            count = -(-positions // POSITIONS)
            ingested = fill(store, count, own.storage.top_k, own.storage.flush_requests, watch)
            register_draft(store, Path(made) / "model")
            claimed = _claim_and_read(store, settings.learn.max_requests)
            return ingested | claimed | _scattered(store, count) | _purge(store, count)


def fill(store: Store, count: int, k: int, batch: int, watch: Watch) -> dict[str, Any]:
    """Keep ``count`` requests, a segment a batch."""
    pool, cpu, begun = draw_requests(min(POOL, count), k), CpuSeconds(), now()
    store.samples.add(renewed(pool[:batch], count, begun - 1))  # pyarrow is imported by the first
    watch.begin(count)
    watch.at("keeping requests")
    for first in range(0, count, batch):
        some = renewed([pool[i % len(pool)] for i in range(first, min(first + batch, count))], first, begun)
        with cpu.running():
            store.samples.add(some)
        watch.did(len(some))
    stats = store.samples.stats()
    kept, size = sum(row.positions for row in stats), sum(row.bytes for row in stats)
    return {
        "positions": kept, "requests": sum(row.requests for row in stats), "k": k, "bytes": size,
        "bytes_per_position": round(size / kept, 1), "ingest_positions_per_s": round(count * POSITIONS / cpu.total),
    }  # fmt: skip


def register_draft(store: Store, folder: Path) -> DraftVersion:
    """Give the draft a small file of weights, before which no run can claim for it; return number 0."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "bench"}', encoding="utf-8")
    save_file({"weight": np.zeros(8, np.float32)}, folder / "model.safetensors")
    return store.versions.register_root(DEFAULT_DRAFT, folder)


def _claim_and_read(store: Store, most: int) -> dict[str, Any]:
    """Claim from among all that waits, oldest first, and read each whole in a shuffled order, as the trainer does."""
    chance, cpu, claims, read = random.Random(0), CpuSeconds(), [], 0
    for _ in range(CLAIMS):
        began = time.perf_counter()
        run = store.runs.claim(
            DEFAULT_DRAFT, "bench", min_requests=1, max_age_seconds=0, lease_seconds=600, max_requests=most
        )
        if run is None:
            break
        claims.append(1000 * (time.perf_counter() - began))
        ids = list(run.request_ids)
        chance.shuffle(ids)
        with cpu.running():
            samples = store.samples.read(ids)
        read += sum(map(len, samples))
        store.runs.finish(run, RunState.REJECTED)
    return {
        "read_positions_per_s": round(read / cpu.total),
        "claim_ms": round(statistics.median(claims), 2), "claim_requests": most, "claims": len(claims),
    }  # fmt: skip


def _scattered(store: Store, count: int) -> dict[str, Any]:
    """Read requests from anywhere: each from a segment of its own, the worst that reading can meet."""
    ids = [request_id(n) for n in random.Random(1).sample(range(count), min(64, count))]
    cpu = CpuSeconds()
    with cpu.running():
        read = sum(map(len, store.samples.read(ids)))
    return {"read_scattered_positions_per_s": round(read / cpu.total)}


def _purge(store: Store, count: int) -> dict[str, Any]:
    """Forget single requests, with all that names them."""
    took, rewritten = [], []
    for number in random.Random(2).sample(range(count), min(PURGES, count)):
        began = time.perf_counter()
        forgotten = store.forgetter.forget([request_id(number)])
        took.append(1000 * (time.perf_counter() - began))
        rewritten.append(forgotten.purged.rewritten)
    return {
        "purge_one_request_ms": round(statistics.median(took), 1),
        "purge_bytes_rewritten": round(statistics.median(rewritten)),
    }


def recorder_share(settings: Settings, names: PairNames, pairs: int, watch: Watch) -> dict[str, Any]:
    """Return the share of decode time that recording takes at batch 1, by the recorder's own clock: of the decode loop,
    and CPU of its thread beside; and throughput lost, by so many pairs of turns. See :mod:`osd.bench.recording`."""
    from osd.bench.recording import recording_cost
    from osd.prompts import encode

    pair = names.load(settings.serve)
    texts = [encode(pair.tokenizer, text) for some in texts_by_set(None, 8).values() for text in some]
    return recording_cost(pair, texts, settings, batch=1, new_tokens=64, pairs=pairs, watch=watch).as_dict()


def draw_requests(count: int, k: int, seed: int = 0) -> list[RequestSamples]:
    """Return ``count`` finished requests with ``POSITIONS`` positions of k tokens each."""
    rng = np.random.default_rng(seed)
    return [_draw_request(rng, number, k) for number in range(count)]


def renewed(pool: list[RequestSamples], first: int, created_at: float) -> list[RequestSamples]:
    """Return the same content as other requests: ids from ``first`` on, a millisecond apart, prompts of their own."""
    return [_renew(samples, first + i, created_at + (first + i) / 1000) for i, samples in enumerate(pool)]


def request_id(number: int) -> str:
    """Return an id as long as those that servers give."""
    return f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:016x}"


def _renew(samples: RequestSamples, number: int, created_at: float) -> RequestSamples:
    tokens = samples.tokens.copy()
    tokens[:3] = number % 1000, number // 1000 % 1000, number // 1_000_000
    return replace(samples, request_id=request_id(number), created_at=created_at, tokens=tokens)


def _draw_request(rng: np.random.Generator, number: int, k: int) -> RequestSamples:
    m = POSITIONS
    ids, logprobs, outside = _draw_top(rng, m, k)
    kinds = rng.choice(np.array([0, 1, 2], np.uint8), m, p=[0.7, 0.2, 0.1])
    emitted = ids[:, 0]
    drafted = np.where(kinds == TokenKind.REJECTED, ids[:, 1], emitted).astype(np.int32)
    chances = np.where(kinds == TokenKind.UNDRAFTED, np.nan, rng.beta(4, 1, m)).astype(np.float16)
    return RequestSamples(
        request_id=request_id(number), route="default", tenant=f"tenant-{number % 7}", draft_version="default-000001",
        created_at=0.0, prompt_len=PROMPT, tokens=np.concatenate([_log_uniform(rng, PROMPT), emitted]),
        positions=np.arange(PROMPT, PROMPT + m, dtype=np.int32), kinds=kinds, drafted=drafted, topk_ids=ids,
        topk_logprobs=logprobs, outside=outside, acceptance=chances,
    )  # fmt: skip


def _draw_top(
    rng: np.random.Generator, m: int, k: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16], npt.NDArray[np.float32]]:
    """Return (m, k) ids, (m, k) log-probabilities, likeliest first, (m,) mass outside."""
    first = rng.uniform(0.1, 0.98, (m, 1))
    ranks = np.arange(1, 4 * k)
    tail = ranks ** -rng.uniform(1.1, 2.0, (m, 1)) * rng.lognormal(0, 0.3, (m, 4 * k - 1))
    tail = -np.sort(-tail * (1 - first) / tail.sum(1, keepdims=True), axis=1)
    p = -np.sort(-np.concatenate([first, tail], axis=1), axis=1)
    outside = (1 - p[:, :k].sum(1)).clip(0, 1).astype(np.float32)
    ids = np.stack([_distinct(rng, k) for _ in range(m)])
    return ids, np.log(p[:, :k]).astype(np.float16), outside


def _distinct(rng: np.random.Generator, k: int) -> npt.NDArray[np.int32]:
    drawn = np.unique(_log_uniform(rng, 4 * k))
    return rng.permutation(drawn)[:k]


def _log_uniform(rng: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
    return (VOCABULARY ** rng.random(count)).astype(np.int32)
