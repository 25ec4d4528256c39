"""Tables on the disk and in the ledger of versions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from osd.drafters.ngram import OtherTokenizer
from osd.drafters.ngram.files import ARRAYS, keep_table, load_table
from osd.drafters.ngram.table import Table, TableSettings
from osd.models.vocabulary import vocabulary_digest
from storage.errors import ModelFileDamaged
from storage.records import VersionState
from storage.settings import Settings
from storage.store import open_store
from tests.osd.drafters.ngram.conftest import save_table
from tests.osd.drafters.ngram.test_table import lists_of, text_of

DIGEST = vocabulary_digest({"a": 0, "b": 1})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = Table(TableSettings(4, 1 << 20, half_life=10**12))
    table.learn(text_of(0, 2000))
    save_table(tmp_path / "table", table, DIGEST)
    return tmp_path / "table"


def test_a_table_comes_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    table = load_table(folder, DIGEST)
    assert table.settings == TableSettings(4, 1 << 20, half_life=10**12) and table.learned == 2000
    again = Table(TableSettings(4))
    again.learn(text_of(0, 2000))
    assert lists_of(table.snapshot()) == lists_of(again.snapshot())
    assert {path.name for path in tmp_path.iterdir()} == {"table"}


def test_a_table_of_shorter_n_grams_goes_on_with_longer_ones(tmp_path: Path) -> None:
    """The text is said twice: what was counted of it keeps its counts, contexts of three tokens are seen once."""
    table, text = Table(TableSettings(3, 1 << 20)), text_of(0, 500)
    table.learn(text)
    save_table(tmp_path / "table", table, DIGEST)
    grown = load_table(tmp_path / "table", DIGEST, order=4)
    assert grown.settings.order == 4 and lists_of(grown.snapshot()) == lists_of(table.snapshot())
    grown.learn(text)
    twice, once = Table(TableSettings(3)), Table(TableSettings(4))
    twice.learn(text)
    twice.learn(text)
    once.learn(text)
    long = {key: entries for key, entries in sorted_lists(once).items() if len(key) == 3}
    assert sorted_lists(grown) == sorted_lists(twice) | long
    assert load_table(tmp_path / "table", DIGEST, order=2).settings.order == 3


def sorted_lists(table: Table) -> dict[tuple[int, ...], list[list[int]]]:
    return {key: sorted(entries) for key, entries in lists_of(table.snapshot()).items()}


def test_a_digest_is_of_tokens_and_their_numbers() -> None:
    assert vocabulary_digest({"b": 1, "a": 0}) == DIGEST != vocabulary_digest({"a": 1, "b": 0})


def test_a_table_for_another_tokenizer_is_refused(folder: Path) -> None:
    with pytest.raises(OtherTokenizer, match="another tokenizer"):
        load_table(folder, vocabulary_digest({"c": 0}))


@pytest.mark.parametrize("keep", [0, 5, 200, 0.5, 0.99])
def test_a_cut_off_file_is_refused(folder: Path, keep: float) -> None:
    whole = (folder / ARRAYS).read_bytes()
    (folder / ARRAYS).write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(ModelFileDamaged, match="an n-gram table"):
        load_table(folder)


@pytest.mark.parametrize("name", ["keys", "lengths", "entries"])
def test_arrays_that_do_not_fit_are_refused(folder: Path, name: str) -> None:
    arrays = load_file(folder / ARRAYS)
    for wrong in (arrays[name][:-1], arrays[name].astype(np.int64), np.zeros_like(arrays[name]) + (name == "keys")):
        save_file({**arrays, name: np.ascontiguousarray(wrong)}, folder / ARRAYS)
        if name == "keys" and len(wrong) == len(arrays[name]) and wrong.dtype == np.uint64:
            continue  # doubled keys are only doubled contexts
        with pytest.raises(ModelFileDamaged):
            load_table(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "osd-ngram", "version": 2}'])
def test_facts_that_are_none_are_refused(folder: Path, text: str) -> None:
    (folder / "ngram.json").write_text(text)
    with pytest.raises(ModelFileDamaged):
        load_table(folder)


def test_an_impossible_order_is_refused(folder: Path) -> None:
    facts = json.loads((folder / "ngram.json").read_text())
    (folder / "ngram.json").write_text(json.dumps({**facts, "order": 7}))
    with pytest.raises(ModelFileDamaged, match="order"):
        load_table(folder)


def test_versions_of_a_table_are_kept_like_any_drafts(tmp_path: Path) -> None:
    table = Table(TableSettings(3, 1 << 20))
    table.learn(text_of(0, 500))
    with open_store(Settings(storage={"directory": tmp_path})) as store:
        first = keep_table(store.versions, "tri", table, DIGEST)
        table.learn(text_of(1, 500))
        second = keep_table(store.versions, "tri", table, DIGEST)
        assert (first.number, second.number, second.parent, second.kind) == (0, 1, first.id, "ngram")
        assert store.versions.get(first.id).kind == "ngram" and store.versions.current("tri").id == second.id
        assert second.state is VersionState.READY
        store.versions.verify(second)
        assert load_table(store.versions.folder(second), DIGEST).learned == 1000
