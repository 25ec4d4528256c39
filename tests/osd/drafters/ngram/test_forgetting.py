"""What is forgotten is in no table: not in a stored one, nor, within seconds, in a running server's. What others taught
stays, as far as they are kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osd.drafters.ngram import table_store
from osd.drafters.ngram import tables as tables_module
from osd.drafters.ngram.cells import TOKEN_MASK, entries_of, find, key_of
from osd.drafters.ngram.files import load_table
from osd.drafters.ngram.table import Table, TableSettings
from osd.drafters.ngram.table_store import Refill, learn_output
from osd.drafters.ngram.tables import Tables
from osd.engine.engine import Engine
from osd.engine.session import serving
from osd.models.pair import Pair
from osd.sequence import Completion
from storage.errors import ForgottenAhead
from storage.records import DraftVersion, Request, VersionState
from storage.store import Store, open_store
from tests.osd.drafters.ngram.conftest import settings_in
from tests.osd.drafters.ngram.test_serving import requests, tables_of
from tests.storage.make import samples
from tests.support.waiting import until

Gram = tuple[int, ...]


def grams(done: Completion, order: int = 4) -> set[Gram]:
    """The 4-grams that a table counts of a request: those that end in its output."""
    text = [*done.request.prompt_tokens, *done.tokens]
    first = len(done.request.prompt_tokens)
    return {tuple(text[i - order + 1 : i + 1]) for i in range(max(first, order - 1), len(text))}


def rare(done: Completion, others: Sequence[Completion]) -> set[Gram]:
    """Those that no other request has."""
    found = grams(done) - set().union(*map(grams, others))
    assert len(found) > 5
    return found


def known(table: Table, wanted: set[Gram]) -> set[Gram]:
    """Those of the 4-grams that a table has."""
    found = set()
    with table.lock:
        for gram in wanted:
            slot = find(table.cells, context_key(gram))
            if slot >= 0 and gram[-1] in (entries_of(table.cells, slot) & TOKEN_MASK).tolist():
                found.add(gram)
    return found


def context_key(gram: Gram) -> np.uint64:
    """Of its first three tokens, as a table has it."""
    return np.uint64(key_of(np.array(gram, np.int64), 3, 3))


def table_in(tables: Tables, key: tuple[str, str] = ("default", "")) -> Table:
    return tables._drafters[key].table


def stored(store: Store) -> list[DraftVersion]:
    """Versions of tables that have files."""
    return [each for each in store.versions.list() if each.kind == "ngram" and store.versions.folder(each).exists()]


def contexts_in(store: Store, wanted: set[Gram]) -> int:
    """How often the contexts of these 4-grams stand, as a table's file has them, in any file of the weights' folder."""
    files = b"\0".join(path.read_bytes() for path in store.versions.weights_folder.rglob("*") if path.is_file())
    return sum(key in files for key in {context_key(gram).tobytes() for gram in wanted})


def serve_all(engine: Engine, pair: Pair, **facts: Any) -> list[Completion]:
    """The three requests, in their order."""
    asked = requests(pair, **facts)
    done = {completion.request.id: completion for completion in engine.run(asked)}
    return [done[request.id] for request in asked]


def forget(store: Store, *ids: str) -> int:
    """As `osd replay forget` does."""
    return store.forgetter.forget(ids).tables


@pytest.mark.parametrize("drafter", ["trigram", "blended"])
def test_a_running_server_drops_it_and_drafts_on_with_what_others_taught(
    pair: Pair, store: Store, tmp_path: Path, drafter: str
) -> None:
    with open_store(settings_in(tmp_path)) as elsewhere, serving(
        pair, settings_in(tmp_path, drafters__kind=drafter), store
    ) as engine:  # fmt: skip
        tables = tables_of(engine)
        done = serve_all(engine, pair)
        until(lambda: len(store.samples.recent(limit=9)) == len(done))
        gone, kept = rare(done[0], done[1:]), grams(done[1]) | grams(done[2])
        old = table_in(tables)
        assert known(old, gone) == gone and known(old, kept) == kept
        forget(elsewhere, done[0].request.id)
        until(lambda: table_in(tables) is not old)
        assert known(table_in(tables), gone) == set()
        until(lambda: known(table_in(tables), kept) == kept)
        again = serve_all(engine, pair, learn=False)
        assert [each.tokens for each in again] == [each.tokens for each in done]
        assert sum(r.accepted for each in again[1:] for r in each.rounds) > sum(len(each.rounds) for each in again[1:])
    (version,) = stored(store)
    table = load_table(store.versions.folder(version))
    assert known(table, gone) == set() and known(table, kept) == kept


def test_a_stored_table_goes_and_the_next_server_makes_one_from_what_is_kept(
    pair: Pair, store: Store, tmp_path: Path
) -> None:
    """Nobody serves while it is forgotten."""
    settings = settings_in(tmp_path)
    with serving(pair, settings, store) as engine:
        tables_of(engine)
        done = serve_all(engine, pair)
    gone, kept = rare(done[0], done[1:]), grams(done[1]) | grams(done[2])
    assert contexts_in(store, gone) == len({gram[:3] for gram in gone}) > 5, "the search finds what is there"
    assert forget(store, done[0].request.id) == 1
    assert stored(store) == [] and contexts_in(store, gone) == 0
    with serving(pair, settings, store) as engine:
        tables = tables_of(engine)
        until(lambda: known(table_in(tables), kept) == kept)
        assert known(table_in(tables), gone) == set()
    (version,) = stored(store)
    assert (version.number, version.state) == (1, VersionState.READY)
    assert store.versions.current("ngram").id == version.id
    assert contexts_in(store, gone - {gram for gram in gone if gram[:3] in {each[:3] for each in kept}}) == 0


def test_a_table_that_a_server_still_has_is_never_kept(
    pair: Pair, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by one that has not noticed yet: neither while it serves, nor when its table makes room, nor at its end."""
    monkeypatch.setattr(table_store, "LOOK", 3600.0)
    with serving(pair, settings_in(tmp_path, ngram__keep_seconds=0.05), store) as engine:
        tables = tables_of(engine)
        done = serve_all(engine, pair)
        gone = rare(done[0], done[1:])
        until(lambda: stored(store))
        assert contexts_in(store, gone)
        forget(store, done[0].request.id)
        assert stored(store) == []
        old = table_in(tables)
        serve_all(engine, pair)  # it has learned more than the version that was kept
        time.sleep(1.5)
        tables._gone.append((("default", ""), old))
        until(lambda: not tables._gone)
        assert known(old, gone) == gone, "it has not noticed"
    assert stored(store) == [] and contexts_in(store, gone) == 0


def test_a_request_that_runs_while_it_is_forgotten_teaches_nobody(pair: Pair, store: Store, tmp_path: Path) -> None:
    """Neither its tokens from before, nor those that come."""
    first, second, _ = requests(pair)
    with serving(pair, settings_in(tmp_path, gamma__max=1, gamma__initial=1), store) as engine:
        tables = tables_of(engine)
        engine.submit(first)
        for _ in range(8):
            engine.step()
        assert engine.busy and table_in(tables).learned > 0
        with pytest.raises(ForgottenAhead):
            forget(store, first.id)
        old = table_in(tables)
        until(lambda: table_in(tables) is not old)
        engine.submit(second)
        done = {progress.completion.request.id: progress.completion for progress in iterate(engine)}
        assert len(done) == 2
        gone, kept = rare(done[first.id], [done[second.id]]), grams(done[second.id])
        assert known(table_in(tables), gone) == set() and known(table_in(tables), kept) == kept
        list(engine.run([Request(first.prompt_tokens, 24, id=first.id)]))  # an id that comes once more
        assert known(table_in(tables), gone) == set()
        until(lambda: store.samples.kept([second.id]))
    (version,) = stored(store)
    assert known(load_table(store.versions.folder(version)), gone) == set()


def test_a_request_that_is_forgotten_between_the_look_and_the_count_teaches_nobody(
    pair: Pair, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's thread has looked at what was forgotten, and counts into the table that came just then."""
    with pytest.raises(ForgottenAhead):
        forget(store, "nobody")
    with serving(pair, settings_in(tmp_path), store) as engine:
        tables = tables_of(engine)
        until(lambda: tables._store.forgotten.line)
        old, first = table_in(tables), requests(pair)[0]
        teach = tables_module.teach

        def late(*given: Any, **how: Any) -> None:
            tables._store.forgotten.request_ids |= {first.id}
            teach(*given, **how)

        monkeypatch.setattr(tables_module, "teach", late)
        (done,) = engine.run([first])
        assert known(old, grams(done)), "some of it was counted"
        until(lambda: table_in(tables) is not old)
        assert old.born == tables_module.NEVER


def iterate(engine: Engine) -> Iterator[Any]:
    while engine.busy:
        yield from (progress for progress in engine.step() if progress.completion)


def test_a_tenants_own_table_starts_empty(pair: Pair, store: Store, tmp_path: Path) -> None:
    store.tenants.allow("secret", share=False)
    with serving(pair, settings_in(tmp_path), store) as engine:
        tables = tables_of(engine, "secret")
        serve_all(engine, pair, tenant="secret")
        assert table_in(tables, ("default", "secret")).learned > 0
        store.forgetter.forget(tenant="secret")
        until(lambda: table_in(tables, ("default", "secret")).learned == 0)
        assert tables_of(engine, "secret") is tables
    assert stored(store) == []


def test_a_table_learns_anew_from_whom_it_may(store: Store) -> None:
    """From its route's requests: not from those of a tenant that does not share, of another tokenizer, or forgotten
    ones that have not been deleted yet."""
    store.tenants.allow("secret", share=False)
    changes: list[dict[str, Any]] = [
        {}, {"tenant": "secret"}, {"route": "sql"}, {"tokens": np.full(9, 70_000, np.int32)}, {}, {},
    ]  # fmt: skip
    asked = [samples(number, **{"prompt_len": 2, **facts}) for number, facts in enumerate(changes)]
    store.samples.add(asked)
    store.forgetter._note(["r4"], None, "ada")
    learning, table, plain = Refill(store.samples, 60_000), *(Table(TableSettings(memory=1 << 20)) for _ in range(2))
    learning.begin(table, "default")
    learning.run(lambda: True)
    assert table in learning and table.learned == 0, "told to stop"
    learning.run(lambda: False)
    assert table not in learning
    for number in (5, 0):
        learn_output(plain, asked[number])
    assert all((one == other).all() for one, other in zip(table.snapshot(), plain.snapshot(), strict=True))
    assert table.learned == plain.learned == sum(len(asked[number].tokens) - 2 for number in (5, 0))


def test_a_table_learns_the_newest_until_it_is_full(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is called away after every few requests."""
    monkeypatch.setattr(table_store, "BATCH", 4)
    everybody = [samples(number, tokens=np.arange(100) + 100 * number, prompt_len=2) for number in range(60)]
    store.samples.add(everybody)
    table, learning = Table(TableSettings(memory=1 << 17)), Refill(store.samples, 60_000)
    learning.begin(table, "default")
    turns = 0
    while table in learning:
        learning.run(iter([False, True]).__next__)
        turns += 1
    assert 1 < turns < 60 / 4 and table.evicted > 0
    newest = {tuple(range(5_990 + i, 5_994 + i)) for i in range(3)}
    assert known(table, newest) == newest and not known(table, {tuple(range(50, 54))})


def test_a_long_text_is_learned_in_pieces_as_it_would_be_in_one(store: Store) -> None:
    tokens = np.random.default_rng(0).integers(0, 50, 3_000).astype(np.int32)
    pieces, plain = (Table(TableSettings(memory=4 << 20)) for _ in range(2))
    learn_output(pieces, samples(0, tokens=tokens, prompt_len=7))
    plain.learn(tokens.astype(np.int64), 7)
    assert pieces.learned == plain.learned == 2_993
    assert all((one == other).all() for one, other in zip(pieces.snapshot(), plain.snapshot(), strict=True))


def test_a_table_that_has_still_to_learn_is_not_kept(
    pair: Pair, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ends in the midst of it; the next one makes it whole."""
    with serving(pair, settings_in(tmp_path), store) as engine:
        tables_of(engine)
        done = serve_all(engine, pair)
    forget(store, done[0].request.id)
    kept = grams(done[1]) | grams(done[2])
    with monkeypatch.context() as patch:
        patch.setattr(Refill, "run", lambda self, stop: None)
        with serving(pair, settings_in(tmp_path), store) as engine:
            tables_of(engine)
            serve_all(engine, pair, tenant="other")
    assert stored(store) == []
    with serving(pair, settings_in(tmp_path), store) as engine:
        tables = tables_of(engine)
        until(lambda: known(table_in(tables), kept) == kept)
