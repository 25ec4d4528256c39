"""A recorder that spills and is killed at a point of taking it in again; run by test_away.

python -m tests.integration.child SETTINGS.json spilled|"samples added"|"outcomes added"
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from osd.recording import writer as module
from osd.recording.writer import StoreWriter
from storage.settings import load_settings
from storage.store import open_store
from tests.integration.make import ALL, keep
from tests.storage.child import after, die


def main(path: str, point: str) -> None:
    module.SHORTEST = 0.1
    settings = load_settings(**json.loads(Path(path).read_text()))
    with open_store(settings) as store:
        writer = StoreWriter(store, settings, "killed")
        print("open", flush=True)
        sys.stdin.readline()
        keep(writer, *ALL)
        print("spilled", flush=True)
        sys.stdin.read()
        if point == "spilled":
            die()
        after(store.samples if point == "samples added" else store.outcomes, "add")
        while True:
            writer.catch_up()


if __name__ == "__main__":
    main(*sys.argv[1:])
