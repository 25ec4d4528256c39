"""A new draft from another one's version."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import BadInput, StoreError, UnknownVersion, WeightsDamaged, WrongState
from storage.records import VersionState
from storage.store import Store
from storage.versions.forks import base_of, fork
from tests.storage.make import add_root, write_weights
from tests.storage.places import forget_cache, weights_of

PLACED = True  # see conftest.py


@pytest.fixture
def forked(keep_all: Store, tmp_path: Path) -> Store:
    add_root(keep_all, tmp_path / "model")
    return keep_all


def newer(store: Store, value: float, *, adapter: bool = False) -> str:
    """A version of the default draft with other weights, made current by hand."""

    def write(folder: Path) -> None:
        write_weights(folder, value)
        if adapter:
            (folder / "config.json").rename(folder / "adapter_config.json")

    parent = store.versions.current("default").id
    staged = store.versions.stage("default", parent, "lora" if adapter else "full", write)
    return store.versions.promote(staged.id).id


def test_a_fork_has_the_weights_and_says_from_where(forked: Store) -> None:
    origin = forked.versions.get(newer(forked, 3.0))
    fresh = fork(forked.versions, "sql", origin.id)
    assert (fresh.draft, fresh.number, fresh.parent, fresh.digest) == ("sql", 0, None, origin.digest)
    assert (fresh.state, forked.versions.current("sql")) == (VersionState.READY, fresh)
    forked.versions.verify(fresh)
    assert forked.versions.provenance(fresh)["provenance"] == {"forked_from": origin.id, "digest": origin.digest}
    assert fork(forked.versions, "sql", origin.id) == fresh
    assert len(forked.versions.list("sql")) == 1


@pytest.mark.local
def test_a_fork_shares_the_files(forked: Store) -> None:
    root = forked.versions.current("default")
    files = [
        forked.versions.folder(version) / "model.safetensors"
        for version in (root, fork(forked.versions, "sql", root.id))
    ]
    assert len({path.stat().st_ino for path in files}) == 1


def test_files_are_copied_where_they_cannot_be_linked(forked: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another file system")

    monkeypatch.setattr("os.link", refuse)
    root = forked.versions.current("default")
    assert fork(forked.versions, "sql", root.id).digest == root.digest


def test_a_fork_of_an_adapter_stands_over_the_same_base(forked: Store) -> None:
    base = forked.versions.current("default")
    adapter = forked.versions.get(newer(forked, 5.0, adapter=True))
    fresh = fork(forked.versions, "sql", adapter.id)
    assert (fresh.kind, fresh.number, fresh.digest) == ("lora", 1, adapter.digest)
    assert [version.digest for version in forked.versions.lineage(fresh.id)] == [adapter.digest, base.digest]
    assert forked.versions.current("sql") == fresh == fork(forked.versions, "sql", adapter.id)
    for version in forked.versions.list("sql"):
        forked.versions.verify(version)


def test_a_base_never_moves(forked: Store) -> None:
    root = forked.versions.current("default")
    newer(forked, 3.0)
    assert base_of(forked.versions, "default") == root
    forked.versions.promote(root.id)
    adapter = newer(forked, 5.0, adapter=True)
    assert base_of(forked.versions, "default").id == adapter


def test_what_cannot_be_forked_leaves_nothing(forked: Store, tmp_path: Path) -> None:
    root = forked.versions.current("default")
    taken = newer(forked, 3.0)
    add_root(forked, tmp_path / "head", "scratch")
    (tmp_path / "head" / "acceptance_head.json").write_text("{}")
    head = forked.versions.register_root("default.head", tmp_path / "head")
    before = forked.versions.list()
    for draft, of, error in (
        ("sql", "nobody", UnknownVersion), ("../up", root.id, BadInput), ("default", taken, StoreError),
        ("sql", head.id, WrongState),
    ):  # fmt: skip
        with pytest.raises(error):
            fork(forked.versions, draft, of)
    weights_of(forked).write(f"{root.path}/model.safetensors", b"damaged")
    forget_cache(forked, root)
    with pytest.raises(WeightsDamaged):
        fork(forked.versions, "sql", root.id)
    assert forked.versions.list() == before
    assert not [name for name in weights_of(forked).names() if name.startswith("sql/")]
