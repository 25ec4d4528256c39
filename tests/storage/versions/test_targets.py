"""Targets: what was learned is about one, and only what is about the same one meets."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from sqlalchemy import text, update

from storage.errors import BadInput, NotFound, StoreError, UnknownDraft
from storage.names import draft_of, head_of, line_name
from storage.records import RunState
from storage.runs import ClaimTerms
from storage.sql.tables import DraftRow, SampleRow
from storage.store import Store
from storage.versions.forks import fork
from storage.versions.targets import UNNAMED
from tests.storage.make import samples, stage, write_weights

A, B, C = (letter * 64 for letter in "abc")


def folder(tmp_path: Path, value: float) -> Path:
    path = tmp_path / f"draft-{value}"
    write_weights(path, value)
    return path


def claim(store: Store, line: str) -> tuple[str, ...]:
    run = store.runs.claim(line, "test", ClaimTerms(1, 0, 60))
    return () if run is None else run.request_ids


def as_before_targets(store: Store) -> None:
    """Leave what the migration leaves of a store that is older than targets."""
    with store.db.session() as session:
        session.execute(update(DraftRow).where(DraftRow.current_version.is_not(None)).values(target=UNNAMED))
        session.execute(update(SampleRow).values(target=None))
        session.execute(text("DELETE FROM targets"))


def test_each_target_has_a_line_with_its_own_number_0_and_current_version(store: Store, tmp_path: Path) -> None:
    assert store.targets.arrive(A, "one") == []
    first = store.versions.register_root("default", folder(tmp_path, 1.0), target=A)
    (said,) = store.targets.arrive(B, "two")
    assert "changed" in said and "two (bbbbbbbb)" in said and "one (aaaaaaaa)" in said
    second = store.versions.register_root("default", folder(tmp_path, 2.0), target=B)  # other weights: another line
    assert (first.draft, second.draft) == ("default", "default@bbbbbbbb")
    assert first.number == second.number == 0 and draft_of(second.draft) == "default"
    assert store.versions.current("default", A) == first and store.versions.current("default", B) == second
    head = store.versions.register_root(head_of(second.draft), folder(tmp_path, 5.0), target=B)
    assert head.draft == "default@bbbbbbbb.head" and store.versions.current(head.draft) == head
    for name in ("sql@bbbbbbbb", "sql@../x.head", "sql@../../bbbbbbbb.head"):
        with pytest.raises(BadInput, match="cannot name a draft"):
            store.versions.register_root(name, folder(tmp_path, 5.0), target=B)
    with pytest.raises(UnknownDraft):
        store.versions.current("default", C)
    assert store.versions.register_root("default", folder(tmp_path, 3.0), target=C).draft == line_name("default", C)
    with pytest.raises(StoreError, match="other weights"):  # another draft under the same target
        store.versions.register_root("default", folder(tmp_path, 4.0), target=B)
    assert store.targets.arrive(B, "two") == [] and len(store.targets.arrive(A, "one")) == 1
    assert store.targets.newest() == A


def test_a_run_takes_its_own_targets_requests_only(store: Store, tmp_path: Path) -> None:
    lines = {A: "default", B: line_name("default", B)}
    for value, target in enumerate(lines):
        store.versions.register_root("default", folder(tmp_path, value), target=target)
    rng, kept = random.Random(0), 0
    for _ in range(8):
        owners = [rng.choice([A, B, None]) for _ in range(rng.randint(1, 12))]
        batch = [samples(kept + i, target=owner) for i, owner in enumerate(owners)]
        store.samples.add(batch)
        kept += len(batch)
        for target, line in lines.items():
            mine = {one.request_id for one in batch if one.target == target}
            assert store.samples.waiting(line).requests == len(mine - held(store))
            assert set(store.samples.recent(line, limit=100, claimed=False)) & {r.request_id for r in batch} == mine
            taken = claim(store, line)
            assert set(taken) == mine - held(store)
            if taken:
                store.runs.finish(store.runs.list(line, limit=1)[0], RunState.REJECTED)
    assert {one.target for one in store.samples.read(store.samples.recent(limit=1000, target=B))} == {B}


def held(store: Store) -> set[str]:
    return set(store.samples.recent(limit=10_000, holdout=True))


def test_what_was_kept_before_targets_were_named_is_set_aside_until_adopted(store: Store, tmp_path: Path) -> None:
    old = store.versions.register_root("default", folder(tmp_path, 1.0))
    store.samples.add([samples(i) for i in range(4)])
    as_before_targets(store)
    assert any("adopt" in said for said in store.targets.arrive(A, "one"))
    new = store.versions.register_root("default", folder(tmp_path, 2.0), target=A)
    assert new.draft == line_name("default", A)
    assert store.versions.lines(["default"]) == [new.draft]
    assert claim(store, new.draft) == () == claim(store, "default") and store.targets.unnamed() == 4
    done = store.targets.adopt(A, "one")
    assert (done.requests, done.drafts, done.left) == (4, ("default",), ())
    assert store.versions.current("default", A) == old and store.versions.lines(["default"]) == ["default"]
    assert len(claim(store, "default")) + len(held(store)) == 4
    assert {one.target for one in store.samples.read([f"r{i}" for i in range(4)])} == {A}
    assert store.targets.adopt(A, "one").requests == 0 and store.targets.arrive(A, "one") == []


def test_a_line_that_has_learned_by_now_is_not_replaced_by_an_adopted_one(store: Store, tmp_path: Path) -> None:
    store.versions.register_root("default", folder(tmp_path, 1.0))
    as_before_targets(store)
    root = store.versions.register_root("default", folder(tmp_path, 1.0), target=A)
    store.versions.promote(stage(store, root.id, 3.0).id)
    assert store.targets.adopt(A, "one").left == ("default",)
    assert store.versions.current("default", A).number == 1


def test_a_draft_of_no_target_yet_is_the_next_ones_and_a_fork_is_its_origins(store: Store, tmp_path: Path) -> None:
    store.versions.register_root("sql", folder(tmp_path, 1.0))
    store.targets.arrive(A, "one")
    store.targets.arrive(B, "two")
    assert store.targets.of_lines()["sql"] == A
    store.versions.set_options("sql", {"method": "lora"})
    root = store.versions.register_root("default", folder(tmp_path, 2.0), target=B)
    forked = fork(store.versions, "sql", root.id)
    assert forked.draft == line_name("sql", B) and store.targets.of_lines()[forked.draft] == B
    assert store.versions.options(forked.draft) == {"method": "lora"}
    assert store.versions.lines(["sql"]) == ["sql", forked.draft]


def test_samples_about_a_target_are_purged_by_the_beginning_of_its_digest(store: Store) -> None:
    store.targets.arrive(A, "one")
    store.targets.arrive(B, "two")
    store.samples.add([samples(i, target=A if i % 2 else B) for i in range(6)])
    with pytest.raises(NotFound, match="known: aaaaaaaa \\(one\\)"):
        store.targets.named("c")
    assert store.samples.purge(target=store.targets.named("aaa")).requests == 3
    assert {one.target for one in store.samples.read([f"r{i}" for i in range(6)])} == {B}


def test_an_export_keeps_the_target_and_older_segments_have_none(store: Store, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from storage.replay.segments import decode, encode

    found = decode(bytes_of(encode([samples(1, target=A), samples(2)])))
    assert [one.target for one in found] == [A, None]
    table = pq.read_table(bytes_of(encode([samples(1, target=A)])))
    pq.write_table(table.drop_columns(["target"]), tmp_path / "old.parquet")
    assert [one.target for one in decode(tmp_path / "old.parquet")] == [None]


def bytes_of(data: memoryview) -> io.BytesIO:
    return io.BytesIO(bytes(data))
