"""New versions of the draft for servers that are under load: real weights on the disk, which are drafted with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load_file, save_file

from osd.bench.serve.load import Beside
from storage.records import DEFAULT_DRAFT, DraftVersion
from storage.settings import Settings
from storage.store import Store, open_store
from storage.versions.weights import copy_files, servable_files


class Swaps:
    """Versions of one server's draft that are ready to be made current, one after the other."""

    def __init__(self, store: Store, draft: Path, count: int) -> None:
        self._store = store
        root = store.versions.register_root(DEFAULT_DRAFT, draft)
        self._ready = [_stage(store, root, number) for number in range(1, count + 1)]
        self.made: list[str] = []
        """Ids of those that were made current."""

    def beside(self, due: int, seconds: float) -> Beside | None:
        """What makes versions current, evenly over so many seconds, until ``due`` are."""
        count = min(due - len(self.made), len(self._ready))

        async def publish() -> None:
            for _ in range(count):
                await asyncio.sleep(seconds / (count + 1))
                version = self._ready.pop(0)
                await asyncio.to_thread(self._store.versions.promote, version.id)
                self.made.append(version.id)

        return publish if count > 0 else None


@contextmanager
def swaps_of(settings: Settings, draft: Path, count: int) -> Iterator[Swaps]:
    """For the server that runs with these settings."""
    with open_store(settings) as store:
        yield Swaps(store, draft, count)


def _stage(store: Store, root: DraftVersion, number: int) -> DraftVersion:
    """The same weights in other files: what is measured is the exchange, not what a worse draft costs."""
    source = store.versions.folder(root)

    def write(folder: Path) -> None:
        copy_files(source, servable_files(source), folder)
        weights = next(path for path in sorted(folder.iterdir()) if path.suffix == ".safetensors")
        save_file(load_file(weights), weights, {"format": "pt", "number": str(number)})

    return store.versions.stage(root.draft, root.id, root.kind, write)
