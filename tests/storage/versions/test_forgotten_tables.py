"""Stored tables of n-grams when something is forgotten: none that began before it stays, and none comes after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from storage.errors import ForgottenAhead, ForgottenSince, WeightsDamaged
from storage.records import DraftVersion, VersionState
from storage.settings import Settings
from storage.sql.forgotten import TABLE_KIND, ForgottenSinceLine, born_after
from storage.sql.tables import VersionRow
from storage.store import Store, open_store
from storage.versions.weight_files import BucketWeights
from tests.storage.make import add_root, at_once, samples
from tests.storage.places import files_below, files_of, weights_of

PLACED = True
MARK = 0x5EC2E7
"""A number that nothing but a table has."""


def write(folder: Path, value: int = MARK) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "ngram.json").write_text("{}")
    save_file({"keys": np.full(4, value, np.uint64)}, folder / "model.safetensors")


def add_table(store: Store, folder: Path, born: int = 0, draft: str = "ngram") -> DraftVersion:
    """Number 0 of a table."""
    write(folder)
    return store.versions.register_root(draft, folder, born=born)


def next_table(store: Store, parent: DraftVersion, born: int = 0, value: int = MARK + 1) -> DraftVersion:
    staged = store.versions.stage(parent.draft, parent.id, TABLE_KIND, lambda path: write(path, value), born=born)
    return store.versions.promote(staged.id)


def everything(store: Store) -> bytes:
    """Every byte that is stored, here and in the weights' place."""
    here = [path.read_bytes() for path in store.directory.parent.rglob("*") if path.is_file()]
    return b"\0".join([*here, *(weights_of(store).read(name) for name in weights_of(store).names())])


def holds(store: Store, value: int = MARK) -> bool:
    return np.full(4, value, np.uint64).tobytes() in everything(store)


def forget(store: Store) -> int:
    """One request of which nothing is known; the line of the trail."""
    with pytest.raises(ForgottenAhead):
        store.forgetter.forget(["nobody"])
    return store.forgetter.news(0).line


def test_every_table_that_began_before_goes_and_nothing_else(store: Store, tmp_path: Path) -> None:
    root = add_root(store, tmp_path / "model")
    first = add_table(store, tmp_path / "table")
    second = next_table(store, first)
    other = add_table(store, tmp_path / "other", draft="ngram.sql")
    store.samples.add([samples(number) for number in range(4)])
    assert holds(store) and holds(store, MARK + 1)
    forgotten = store.forgetter.forget(["r0", "r2"])
    assert forgotten.tables == 3
    assert not holds(store) and not holds(store, MARK + 1)
    for version in (first, second, other):
        left = store.versions.get(version.id)
        assert left.state is VersionState.QUARANTINED and "forgotten" in left.evidence
        assert files_of(store, left) == set()
        with pytest.raises(WeightsDamaged):
            store.versions.promote(version.id)
    store.versions.verify(store.versions.get(root))
    assert store.forgetter.forget(["r1"]).tables == 0, "they are gone already"


def test_a_table_that_began_after_it_is_kept_and_goes_with_the_next(store: Store, tmp_path: Path) -> None:
    first = add_table(store, tmp_path / "table")
    line = forget(store)
    second = next_table(store, first, line)
    assert (born_after(second.evidence), second.number, second.parent) == (line, 1, first.id)
    assert store.versions.current("ngram").id == second.id
    store.versions.verify(second)
    assert store.forgetter.drop_tables() == []
    forget(store)
    assert not holds(store, MARK + 1)


def test_an_older_table_is_refused_and_leaves_nothing(store: Store, tmp_path: Path) -> None:
    first = add_table(store, tmp_path / "table")
    line = forget(store)
    with pytest.raises(ForgottenSince, match="The table ngram began"):
        next_table(store, first, line - 1)
    write(tmp_path / "root")
    with pytest.raises(ForgottenSince):
        store.versions.register_root("late", tmp_path / "root", born=0)
    assert weights_of(store).names() == [] == files_below(store.versions.weights_folder)
    assert [version.id for version in store.versions.list("ngram")] == [first.id]


def test_one_that_is_written_while_something_is_forgotten_is_refused(store: Store, tmp_path: Path) -> None:
    first = add_table(store, tmp_path / "table")

    def write_and_forget(folder: Path) -> None:
        write(folder)
        forget(store)

    with pytest.raises(ForgottenSince):
        store.versions.stage("ngram", first.id, TABLE_KIND, write_and_forget, born=0)
    assert weights_of(store).names() == [] == files_below(store.versions.weights_folder)


def test_one_that_was_entered_but_not_current_yet_does_not_become_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something is forgotten between the look at its files and the transaction."""
    first = add_table(store, tmp_path / "table")
    staged = store.versions.stage("ngram", first.id, TABLE_KIND, write, born=0)
    mark = type(store.versions.files).mark

    def mark_and_forget(place: object, path: str) -> None:
        mark(place, path)
        forget(store)

    monkeypatch.setattr(type(store.versions.files), "mark", mark_and_forget)
    with pytest.raises(WeightsDamaged, match="forgotten"):
        store.versions.promote(staged.id)
    assert store.versions.current("ngram").id == first.id
    assert not holds(store)


@pytest.mark.parametrize("turn", range(3))
def test_tables_that_are_kept_at_the_same_time_do_not_stay(store: Store, tmp_path: Path, turn: int) -> None:
    first = add_table(store, tmp_path / "table")
    keep: Callable[[], object] = lambda: next_table(store, first)  # noqa: E731
    done = at_once(keep, lambda: forget(store), keep, keep)
    refused = (ForgottenSince, WeightsDamaged)
    assert all(isinstance(each, (DraftVersion, *refused, int)) for each in done), done
    assert not holds(store) and not holds(store, MARK + 1)


def test_what_a_process_that_died_left_is_dropped_by_the_next(store: Store, tmp_path: Path) -> None:
    """One that had written the line and deleted nothing, and one that had deleted files but not said so."""
    first = add_table(store, tmp_path / "table")
    second = next_table(store, first)
    store.forgetter._note(["r0"], None, "ada")
    store.versions.files.remove(second.path)
    assert store.versions.get(second.id).state is VersionState.READY and holds(store)
    assert store.forgetter.drop_tables() == [first.id, second.id]
    assert not holds(store)


def test_tables_of_older_releases_were_born_before_everything(store: Store, tmp_path: Path) -> None:
    line = forget(store)
    table = add_table(store, tmp_path / "table", line)
    assert store.forgetter.drop_tables() == []
    with store.db.session() as session:
        session.get_one(VersionRow, table.id).evidence = {}
    assert store.forgetter.drop_tables() == [table.id]


def test_copies_on_other_machines_go_when_they_hear_of_it(store: Store, settings: Settings, tmp_path: Path) -> None:
    if not isinstance(store.versions.files, BucketWeights):
        pytest.skip("a folder has no copies")
    table = add_table(store, tmp_path / "table")
    kept = settings.storage.model_copy(update={"cache": tmp_path / "elsewhere"})
    with open_store(settings.model_copy(update={"storage": kept})) as other:
        folder = other.versions.folder(table)
        forget(store)
        assert folder.is_dir() and not holds(store)
        assert other.forgetter.drop_tables() == []
        assert not folder.exists()


def test_news_of_what_was_forgotten(store: Store) -> None:
    assert store.forgetter.news(0) == ForgottenSinceLine(0, frozenset())
    store.samples.add([samples(number) for number in range(4)])
    store.forgetter.forget(["r1"])
    first = store.forgetter.news(0)
    assert first.request_ids == {"r1"}
    store.forgetter.forget(["r2", "r3"])
    store.forgetter.forget(tenant="acme")
    store.tenants.allow("acme", learn=False)
    news = store.forgetter.news(first.line)
    assert news.line > first.line and news.request_ids == {"r2", "r3"}
    assert store.forgetter.news(news.line) == ForgottenSinceLine(news.line, frozenset())
    assert store.forgetter.news(0).request_ids == {"r1", "r2", "r3"}
