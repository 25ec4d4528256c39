"""The rest of a store with a year behind it: versions, training runs, the newest outcomes, kept requests."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from osd.bench.stats.year import END, StatsPlan
from storage.records import Outcome, RequestSamples, RunState, TokenKind, VersionState
from storage.sql.database import Database
from storage.sql.outcome_tables import OutcomeRow
from storage.sql.spans import HOUR, MINUTE
from storage.sql.tables import RunRow, VersionRow
from storage.store import Store

LOG_ROWS = 20_000
POSITIONS, TOP_K, VOCABULARY = 64, 64, 32_000


def add_versions(store: Store, plan: StatsPlan, folder: Path) -> None:
    """Number 0 with a small file of weights, and the others as rows: nobody loads them."""
    write_small_model(folder)
    root = store.versions.register_root("default", folder)
    with store.db.session() as session:
        for number in range(plan.versions):
            last = number == plan.versions - 1
            session.add(
                VersionRow(
                    id=plan.version(number), draft="default", number=number + 1, digest="0" * 64, kind="full",
                    evidence={},
                    parent=plan.version(number - 1) if number else root.id, path="", run_id=None,
                    state=(VersionState.SERVING if last else VersionState.RETIRED).value,
                    created_at=float(plan.begin + number * plan.turn),
                )
            )  # fmt: skip


def write_small_model(folder: Path) -> None:
    """A safetensors file of a thousand numbers."""
    folder.mkdir(parents=True)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4000))


def add_runs(db: Database, plan: StatsPlan) -> None:
    """A training run every hour, each of 64 requests."""
    states = [RunState.PUBLISHED, RunState.REJECTED, RunState.REJECTED, RunState.FAILED]
    ids = [f"{number:032x}" for number in range(64)]
    with db.session() as session:
        for number, start in enumerate(range(plan.begin, END, HOUR)):
            facts = {"positions": 9000 + number % 500, "steps": 70, "seconds": 41.5, "evidence": {"difference": 0.01}}
            session.add(
                RunRow(
                    id=f"run-{number:06d}", draft="default", holder="bench", state=states[number % 4].value,
                    started_at=float(start), heartbeat_at=float(start), lease_until=float(start + MINUTE),
                    parent=plan.version(min(plan.versions - 1, (start - plan.begin) // plan.turn)), request_ids=ids,
                    settings={}, finished_at=float(start + 50), version=None, result=facts,
                )
            )  # fmt: skip


def add_log(db: Database, plan: StatsPlan) -> None:
    """As many of the newest outcomes one by one as a store keeps; drafts of three lengths."""
    rng = np.random.default_rng(0)
    drafted = rng.choice([2, 4, 8], LOG_ROWS)
    with db.session() as session:
        session.bulk_insert_mappings(OutcomeRow.__mapper__, [_line(plan, n, int(g)) for n, g in enumerate(drafted)])


def _line(plan: StatsPlan, number: int, gamma: int) -> dict[str, object]:
    made = Outcome(
        f"{number:032x}", f"route-{number % plan.routes}", "tenant-0", plan.version(plan.versions - 1), "analytic",
        float(END - LOG_ROWS + number), 1, 20, 20 * gamma, 10 * gamma, 12, 20 + 10 * gamma, 90, 30.0 * gamma,
        20 * (21.0 + 1.5 * gamma),
    )  # fmt: skip
    names = OutcomeRow.__table__.columns.keys()
    return {"worker": "worker-0"} | {name: getattr(made, name) for name in names if hasattr(made, name)}


def add_samples(store: Store, plan: StatsPlan, requests: int) -> None:
    """Kept requests of the last two versions, ``requests`` of each, in segments of 64."""
    made = list(_samples(plan, requests))
    for at in range(0, len(made), 64):
        store.samples.add(made[at : at + 64])


def _samples(plan: StatsPlan, requests: int) -> Iterator[RequestSamples]:
    rng = np.random.default_rng(1)
    for number in range(2 * requests):
        tokens = np.minimum(rng.zipf(1.3, 50 + POSITIONS), VOCABULARY - 1).astype(np.int32)
        kinds = rng.choice([TokenKind.ACCEPTED, TokenKind.REJECTED, TokenKind.UNDRAFTED], POSITIONS, p=[0.6, 0.2, 0.2])
        drafted = np.where(kinds == TokenKind.REJECTED, tokens[50:] // 2, tokens[50:])
        version = plan.version(plan.versions - 2 + number // requests)
        yield RequestSamples(
            f"kept-{number:06d}", f"route-{number % plan.routes}", f"tenant-{number % 5}", version,
            float(END - 2 * requests + number), 50, tokens, np.arange(50, 50 + POSITIONS, dtype=np.int32),
            kinds.astype(np.uint8), drafted.astype(np.int32),
            rng.integers(0, VOCABULARY, (POSITIONS, TOP_K)).astype(np.int32),
            -np.sort(rng.exponential(4, (POSITIONS, TOP_K))).astype(np.float16), rng.random(POSITIONS, np.float32),
        )  # fmt: skip
