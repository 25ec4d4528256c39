"""What is forgotten leaves no trace in any file or table, and the versions that learned from it are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, text

from storage.errors import BadInput, ForgottenAhead, UnknownRequest
from storage.records import DraftVersion, RequestSamples, RunState, TrainingRun, now
from storage.routes.proposals import CANDIDATES, ProposalKind, ProposalState
from storage.sql import audit
from storage.sql.tables import Base, RunRow
from storage.store import Store
from storage.versions.forks import fork
from storage.versions.lineage import Learned
from tests.storage.make import add_root, claim, outcome, samples, stage, write_weights

MANY = 1_000
TENANTS = ("acme", "zeta")


def spoken(number: int) -> RequestSamples:
    """A request whose tokens nobody else has: nine of them, from 100,000 × its number on."""
    tokens = (100_000 * (number + 1) + np.arange(9)).astype(np.int32)
    ids = np.repeat(tokens[5:8, None], 4, axis=1)
    return samples(number, tenant=TENANTS[number % 2], tokens=tokens, drafted=tokens[5:8], topk_ids=ids)


def all_bytes(store: Store) -> bytes:
    """Every file below the data directory as it is, every Parquet column decoded, every cell of every table."""
    parts = []
    for path in sorted(path for path in store.directory.rglob("*") if path.is_file()):
        parts.append(path.name.encode() + path.read_bytes())
        if path.suffix == ".parquet":
            columns = pq.read_table(path).combine_chunks().columns
            parts += [bytes(b) for c in columns for chunk in c.chunks for b in chunk.buffers() if b is not None]
    with store.db.session(read_only=True) as session:
        for table in Base.metadata.sorted_tables:
            if table.name not in ("training_runs", "audit"):  # they keep ids, and nothing else of a request
                parts += [repr(tuple(row)).encode() for row in session.execute(select(table))]
    return b"\0".join(parts)


def traces(content: bytes, numbers: range) -> list[int]:
    """Requests of which three tokens in a row, or one alone at a place of its own, can be found."""
    found = []
    for number in numbers:
        tokens = spoken(number).tokens
        words = [tokens[i : i + 3].tobytes() for i in range(len(tokens) - 2)] + [tokens[5].tobytes() * 4]
        if any(word in content for word in words):
            found.append(number)
    return found


def test_a_thousand_requests_leave_no_trace(store: Store) -> None:
    kept, gone = range(MANY, MANY + 40), range(MANY)
    everybody = [spoken(number) for number in (*gone, *kept)]
    mixed = np.random.default_rng(0).permutation(len(everybody))
    for some in np.array_split(mixed, 12):
        store.samples.add([everybody[i] for i in some])
    store.outcomes.add([outcome(request_id=f"r{number}") for number in gone], "w")
    assert traces(all_bytes(store), gone) == list(gone), "the search finds what is there"
    forgotten = store.forgetter.forget([f"r{number}" for number in gone])
    assert (forgotten.purged.requests, forgotten.outcomes) == (MANY, MANY)
    content = all_bytes(store)
    assert traces(content, gone) == []
    assert traces(content, kept) == list(kept)
    assert not any(b"'r%d'" % number in content for number in gone), "not even their ids, outside the trail"
    assert len(store.samples.read([f"r{number}" for number in kept])) == len(kept)


def test_the_sqlite_file_itself_holds_no_id_of_them(store: Store) -> None:
    """Freed pages and the log of writes included: nothing was trained, so no run has a reason to name them."""
    if store.db.dialect != "sqlite":
        pytest.skip("PostgreSQL's files are its own; it overwrites dead rows when it vacuums")
    names = [f"secret-request-{number:04d}" for number in range(300)]
    store.samples.add([samples(number, request_id=name, tenant="acme") for number, name in enumerate(names)])
    store.outcomes.add([outcome(request_id=name, tenant="acme") for name in names], "w")
    store.forgetter.forget(tenant="acme")
    for path in store.directory.glob("osd.db*"):
        assert b"secret-request" not in path.read_bytes(), path.name


def test_what_comes_after_it_was_forgotten_is_not_kept(store: Store) -> None:
    with pytest.raises(ForgottenAhead, match="r1"):
        store.forgetter.forget(["r1", "r3"])
    store.forgetter.forget(tenant="acme")
    late = [replace(spoken(number), created_at=now() - 10) for number in range(5)]  # acme's are 0, 2 and 4
    assert store.samples.add(late[:4]) is None
    assert store.samples.add([*late, replace(spoken(6), created_at=now() + 10), spoken(9)]) is not None
    assert store.samples.kept([f"r{number}" for number in range(10)]) == {"r6", "r9"}
    ended = [outcome(request_id=each.request_id, tenant=each.tenant, finished_at=each.created_at) for each in late]
    store.outcomes.add([*ended, outcome(request_id="r9", tenant="zeta")], "w")
    assert [each.request_id for each in store.outcomes.recent()] == ["r9"]
    assert store.outcomes.acceptance()[0].requests == 6, "sums name no request"
    assert traces(all_bytes(store), range(10)) == [6, 9]


def test_what_is_forgotten_while_it_is_written_is_not_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at what was forgotten and the commit."""
    holding = type(store.samples.files.place).holding

    def hold_and_forget(place: object, path: str, data: memoryview) -> object:
        monkeypatch.setattr(type(store.samples.files.place), "holding", holding)
        with pytest.raises(ForgottenAhead):
            store.forgetter.forget(["r0"])
        return holding(place, path, data)

    monkeypatch.setattr(type(store.samples.files.place), "holding", hold_and_forget)
    store.samples.add([spoken(0), spoken(1)])
    assert store.samples.kept(["r0", "r1"]) == {"r1"}
    assert traces(all_bytes(store), range(2)) == [1]


def train(store: Store, folder: Path, *, better: bool = True, **facts: str) -> tuple[TrainingRun, DraftVersion]:
    """A run that claims what waits and publishes, or rejects, a version."""
    run = claim(store)
    version = stage(store, run.parent, 1.0 + len(store.versions.list()), run)
    ledger, state = store.versions, RunState.PUBLISHED if better else RunState.REJECTED
    version = ledger.publish(version.id, {}, run=run) if better else ledger.reject(version.id, {})
    return store.runs.finish(run, state, version.id, facts), version


def test_versions_that_learned_are_named_with_their_descendants(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "model")
    versions = []
    for number in range(3):
        keep_all.samples.add([spoken(number)])
        versions.append(train(keep_all, tmp_path)[1].id)
    assert keep_all.forgetter.forget(["r1"]).learned.versions == tuple(versions[1:])
    assert keep_all.forgetter.forget(["r0"]).learned.versions == tuple(versions)
    assert keep_all.forgetter.forget(["r2"]).learned.versions == (versions[2],)


def test_a_candidate_that_goes_on_from_a_rejected_one_learned_from_it_too(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([spoken(0)])
    _, refused = train(keep_all, tmp_path, better=False)
    keep_all.samples.add([spoken(1)])
    _, after = train(keep_all, tmp_path, started_from=refused.id)
    assert after.parent != refused.id
    assert keep_all.forgetter.forget(["r0"]).learned.versions == (refused.id, after.id)


def test_what_was_replayed_counts_and_a_run_under_way_is_named(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([spoken(0)])
    _, first = train(keep_all, tmp_path, better=False)
    keep_all.samples.add([spoken(1)])
    run = claim(keep_all)
    keep_all.runs.note_replayed(run, ["r0"])
    learned = keep_all.forgetter.forget(["r0"]).learned
    assert (learned.versions, learned.under_way) == ((first.id,), (run.id,))


def test_a_tenant_is_found_in_runs_whose_samples_are_long_gone(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([spoken(0), spoken(1)])
    _, version = train(keep_all, tmp_path)
    keep_all.samples.purge(everything=True)
    assert keep_all.forgetter.forget(tenant="zeta").learned.versions == (version.id,)
    assert keep_all.forgetter.forget(tenant="nobody").learned.versions == ()
    assert keep_all.forgetter.forget(["r0"]).learned.versions == (version.id,), "by its id too"


def test_a_draft_that_was_split_off_is_named_with_the_topic_of_its_examples(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([spoken(0)])
    _, first = train(keep_all, tmp_path)
    keep_all.samples.add([spoken(1), spoken(2)])
    facts = {"name": "sql", "draft": "default", "version": first.id, "examples": {"sql": ["r1"], "rest": ["r2"]}}
    proposal = keep_all.proposals.add(ProposalKind.SPLIT, {**facts, "members": ["r1"]})
    write_weights(tmp_path / "split", 7.0)
    root = keep_all.versions.register_root("queries", tmp_path / "split").id
    keep_all.proposals.set_state(proposal.id, ProposalState.APPLIED, {"route": "queries", "version": root})
    assert keep_all.forgetter.forget(["r2"]).learned == Learned((), (), ("rest",))
    keep_all.samples.add([spoken(1)])
    assert keep_all.forgetter.forget(["r1"]).learned == Learned((root,), (), ("queries",))
    assert keep_all.forgetter.forget(["r0"]).learned.versions == (first.id, root), "it began from one that learned"


@pytest.mark.parametrize("what", ["member", "tenant", "base"])
def test_a_split_that_waits_is_declined_with_its_draft(keep_all: Store, tmp_path: Path, what: str) -> None:
    """Else it could be applied later, and what learned from it would serve. Its samples may have gone before."""
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([spoken(0)])
    _, first = train(keep_all, tmp_path)
    keep_all.samples.add([spoken(1), spoken(2)])
    facts = {"name": "sql", "draft": "default", "version": first.id, "members": ["r1"], "tenants": ["zeta"]}
    proposal, other = (keep_all.proposals.add(ProposalKind.SPLIT, {**facts, **more}) for more in ({}, {
        "version": first.parent, "members": ["r2"], "tenants": ["acme"]}))  # fmt: skip
    (keep_all.directory / CANDIDATES).mkdir()
    for one in (proposal, other):
        write_weights(keep_all.directory / CANDIDATES / str(one.id), 1.0)
    if what != "base":
        keep_all.samples.purge(everything=True)
    done = keep_all.forgetter.forget(**{"member": {"request_ids": ["r1"]}, "tenant": {"tenant": "zeta"},
                                        "base": {"request_ids": ["r0"]}}[what])  # fmt: skip
    assert done.learned.open_splits == (proposal.id,)
    states = [keep_all.proposals.get(one.id).state for one in (proposal, other)]
    assert states == [ProposalState.DECLINED, ProposalState.OPEN]
    assert [path.name for path in (keep_all.directory / CANDIDATES).iterdir()] == [str(other.id)]


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_a_fork_learned_what_its_origin_did(keep_all: Store, tmp_path: Path, kind: str) -> None:
    root = add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([spoken(0)])
    run = claim(keep_all)

    def write(folder: Path) -> None:
        write_weights(folder, 1.0)
        if kind == "lora":
            (folder / "config.json").rename(folder / "adapter_config.json")

    version = keep_all.versions.stage("default", root, kind, write, run_id=run.id)
    keep_all.versions.publish(version.id, {}, run=run)
    keep_all.runs.finish(run, RunState.PUBLISHED, version.id)
    fresh, copy = fork(keep_all.versions, "fresh", root), fork(keep_all.versions, "sql", version.id)
    after = stage(keep_all, copy.id, 3.0)
    named = keep_all.forgetter.forget(["r0"]).learned.versions
    assert named == (version.id, copy.id, after.id) and fresh.id not in named


def test_the_trail_says_who_forgot_what_and_never_a_prompt(store: Store) -> None:
    store.samples.add([spoken(0), spoken(1), spoken(2)])
    store.forgetter.forget(["r0"], who="ada")
    store.forgetter.forget(tenant="zeta", who="bob")
    with store.db.session(read_only=True) as session:
        newest, first = audit.history(session)
        assert [change.id for change in audit.history(session, "zeta")] == [newest.id]
    assert (first.who, first.action, first.subject, first.after["requests"]) == ("ada", "replay forget", "r0", 1)
    assert (newest.who, newest.subject, newest.after["what"]) == ("bob", "zeta", "tenant")


def test_what_cannot_be_forgotten_is_said(store: Store) -> None:
    for arguments in ({}, {"request_ids": ["r0"], "tenant": "acme"}):
        with pytest.raises(BadInput, match="what to forget"):
            store.forgetter.forget(**arguments)
    with pytest.raises(UnknownRequest):
        store.forgetter.forget(["nobody"])
    with store.db.session(read_only=True) as session:
        assert [line.subject for line in audit.history(session)] == ["nobody"], "should it still come"


def test_runs_of_older_releases_have_no_tenants(keep_all: Store, tmp_path: Path) -> None:
    add_root(keep_all, tmp_path / "model")
    keep_all.samples.add([spoken(0)])
    run, version = train(keep_all, tmp_path)
    with keep_all.db.session() as session:
        session.execute(text("UPDATE training_runs SET tenants = '[]'"))
        assert session.get_one(RunRow, run.id).tenants == []
    assert keep_all.forgetter.forget(tenant="acme").learned.versions == (version.id,), "by the samples still kept"
