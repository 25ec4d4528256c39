"""A store on a disk that fills up; run in a process of its own by test_disk_full.

    python -m tests.storage.full_disk DIRECTORY tmpfs|rlimit

The disk is a small tmpfs, which answers ENOSPC, or files may not grow, which answers EFBIG: both come from the kernel.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from storage.errors import StoreWriteFailed
from storage.records import VersionState
from storage.settings import load_settings
from storage.store import Store, open_store
from tests.storage.make import claim, outcome, samples, stage, write_weights
from tests.storage.places import files_below


@contextmanager
def no_space(directory: Path) -> Iterator[None]:
    """Fill the file system to the last byte."""
    filler = os.open(directory / "filler", os.O_CREAT | os.O_WRONLY)
    with suppress(OSError):
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    os.write(filler, bytes(size))
    try:
        yield
    finally:
        os.close(filler)
        (directory / "filler").unlink()


@contextmanager
def no_growth(directory: Path) -> Iterator[None]:
    """No file may be written beyond its first kilobyte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


FULL = {"tmpfs": no_space, "rlimit": no_growth}


def refused(action: Callable[[], object]) -> None:
    """The action fails as it should, and leaves the directory as it was."""
    try:
        action()
    except StoreWriteFailed as error:
        print(error, flush=True)
    else:
        raise AssertionError("the disk was full and nothing was said")


def kept(store: Store) -> list[str]:
    """Files below the directory, the database's own and the filler aside."""
    return [name for name in files_below(store.directory) if not name.startswith(("osd.db", "filler"))]


def main(directory: Path, how: str) -> None:
    full = FULL[how]
    write_weights(directory / "model", 0.0, 999)
    with open_store(load_settings(storage={"directory": directory / "data", "holdout": 0.0})) as store:
        root = store.versions.register_root("default", directory / "model").id
        store.samples.add([samples(number, m=20, k=64) for number in range(4)])
        whole = kept(store)
        outside = directory / "all.parquet"

        def unchanged(action: Callable[[], object]) -> None:
            with full(directory):
                refused(action)
                assert len(store.samples.read(["r0", "r1", "r2", "r3"])) == 4, "what was kept can be read meanwhile"
            assert kept(store) == whole, (kept(store), whole)
            assert store.sweep() == []
            assert store.samples.stats()[0].requests == 4 and store.versions.current("default").id == root

        unchanged(lambda: store.samples.add([samples(9, m=20, k=64)]))
        unchanged(lambda: store.samples.purge(request_id="r1"))
        unchanged(lambda: store.samples.export(outside))
        assert not outside.exists()
        unchanged(lambda: store.outcomes.add([outcome()], "w"))
        unchanged(lambda: store.versions.stage("default", root, "full", lambda path: write_weights(path, 1.0, 9999)))
        unchanged(lambda: store.versions.export(root, directory / "out"))
        assert not (directory / "out").exists()
        unchanged(lambda: store.versions.register_root("other", directory / "model"))

        run = claim(store)
        child = stage(store, root, 1.0, run)
        whole = kept(store)
        unchanged(lambda: store.versions.publish(child.id, {"long": "x" * 100_000}, run=run))
        assert store.versions.get(child.id).state is VersionState.CANDIDATE

        # and with room again, all of it goes on
        assert store.versions.publish(child.id, {}, run=run).state is VersionState.READY
        store.samples.add([samples(9, m=20, k=64)])
        store.outcomes.add([outcome()], "w")
        assert store.outcomes.acceptance()[0].requests == 1
        assert store.samples.purge(request_id="r1").requests == 1
        assert sorted(store.samples.recent(limit=9)) == ["r0", "r2", "r3", "r9"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
