"""What keeping costs: `osd bench replay`.

One store is filled with synthetic requests (:mod:`osd.bench.replay_data`), in segments of the size that serving
writes. Then runs claim and read as the trainer does, and single requests are forgotten. Rates are by CPU seconds of
this process, one core, so that a busy machine does not change them; milliseconds are medians by the clock.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from osd.bench.replay_data import POSITIONS, draw_requests, renewed, request_id
from storage.records import DEFAULT_DRAFT, RunState, TrainingRun, now
from storage.settings import Settings
from storage.store import Store, open_store

POOL = 1_024
"""Requests whose content is drawn; more repeat it under other ids."""
CLAIMS, PURGES = 9, 9
Report = Callable[[int, int], None]
"""Positions kept so far, and how many there will be."""


class Stopwatch:
    """CPU seconds of this process, and seconds by the clock."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add what happens inside."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu, self.wall = self.cpu + time.process_time() - cpu, self.wall + time.perf_counter() - wall


def bench_replay(settings: Settings, positions: int, folder: Path | None, report: Report) -> dict[str, Any]:
    """The figures that the command prints as its last line. The store is made in ``folder``, and removed afterwards."""
    with TemporaryDirectory(prefix="osd-bench-", dir=folder) as made:
        own = settings.changed(storage={"directory": Path(made), "url": None, "holdout": 0.0})
        with open_store(own) as store:
            count = -(-positions // POSITIONS)
            ingested = fill(store, count, own.storage.top_k, own.storage.flush_requests, report)
            _register(store, Path(made) / "model")
            return ingested | _claim_and_read(store, settings.learn.max_requests) | _scattered(store, count) | (
                _purge(store, count)
            )  # fmt: skip


def fill(store: Store, count: int, k: int, batch: int, report: Report) -> dict[str, Any]:
    """Keep ``count`` requests, a segment a batch."""
    pool, watch, begun = draw_requests(min(POOL, count), k), Stopwatch(), now()
    store.samples.add(renewed(pool[:batch], count, begun - 1))  # pyarrow is imported by the first
    for first in range(0, count, batch):
        some = [pool[i % len(pool)] for i in range(first, min(first + batch, count))]
        some = renewed(some, first, begun)
        with watch.running():
            store.samples.add(some)
        report((first + len(some)) * POSITIONS, count * POSITIONS)
    stats = store.samples.stats()
    kept, size = sum(row.positions for row in stats), sum(row.bytes for row in stats)
    return {
        "positions": kept, "requests": sum(row.requests for row in stats), "k": k, "bytes": size,
        "bytes_per_position": round(size / kept, 1),
        "ingest_positions_per_s": round(count * POSITIONS / watch.cpu),
        "ingest_positions_per_s_by_clock": round(count * POSITIONS / watch.wall),
    }  # fmt: skip


def _register(store: Store, folder: Path) -> None:
    """A draft has to have weights before a run can claim for it."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bench"}', encoding="utf-8")
    save_file({"weight": np.zeros(8, np.float32)}, folder / "model.safetensors")
    store.versions.register_root(DEFAULT_DRAFT, folder)


def _claim_and_read(store: Store, most: int) -> dict[str, Any]:
    """Claims from among all that waits, oldest first; each is read whole in a shuffled order, as the trainer does."""
    chance, reading, claims, read = random.Random(0), Stopwatch(), [], 0
    for _ in range(CLAIMS):
        run, took = _claim(store, most)
        if run is None:
            break
        claims.append(took)
        ids = list(run.request_ids)
        chance.shuffle(ids)
        with reading.running():
            samples = store.samples.read(ids)
        read += sum(map(len, samples))
        store.runs.finish(run, RunState.REJECTED)
    return {
        "read_positions_per_s": round(read / reading.cpu),
        "claim_ms": round(statistics.median(claims), 2), "claim_requests": most, "claims": len(claims),
    }  # fmt: skip


def _claim(store: Store, most: int) -> tuple[TrainingRun | None, float]:
    began = time.perf_counter()
    run = store.runs.claim(
        DEFAULT_DRAFT, "bench", min_requests=1, max_age_seconds=0, lease_seconds=600, max_requests=most
    )
    return run, 1000 * (time.perf_counter() - began)


def _scattered(store: Store, count: int) -> dict[str, Any]:
    """Requests from anywhere: each from a segment of its own, the worst that reading can meet."""
    ids = [request_id(n) for n in random.Random(1).sample(range(count), min(64, count))]
    watch = Stopwatch()
    with watch.running():
        read = sum(map(len, store.samples.read(ids)))
    return {"read_scattered_positions_per_s": round(read / watch.cpu)}


def _purge(store: Store, count: int) -> dict[str, Any]:
    """Single requests, with all that names them."""
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


def recorder_share(settings: Settings, target: str, draft: str, pairs: int) -> dict[str, Any]:
    """Share of decode time that recording takes at batch 1, by the recorder's own clock: of the decode loop, and CPU
    of its thread beside; and throughput lost, by so many pairs of turns. See :mod:`osd.bench.recording`."""
    from osd.bench.recording import recording_cost
    from osd.demo.prompts import DOMAINS
    from osd.demo.prompts import prompts as shipped
    from osd.models.pair import load_pair
    from osd.prompts import encode

    pair = load_pair(target, draft, device=settings.serve.device, dtype=settings.serve.dtype)
    texts = [encode(pair.tokenizer, text) for domain in DOMAINS for text in shipped(domain, 8)]
    found = recording_cost(pair, texts, settings, batch=1, new_tokens=64, pairs=pairs)
    return found.as_dict() | {"recorder_pair": f"{Path(target).parent.name}/{Path(target).name}"}
