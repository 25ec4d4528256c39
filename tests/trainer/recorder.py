"""A server's recorder in a process of its own: keeps its part of a file's requests, some at a time.

python -m tests.trainer.recorder CONFIG EXPORT PART PARTS
"""

from __future__ import annotations

import sys
from pathlib import Path

from storage.replay.exports import read_export
from storage.settings import load_settings
from storage.store import open_store

BATCH = 4


def main(config: str, export: str, part: str, parts: str) -> None:
    everything = [each for batch in read_export(Path(export)) for each in batch]
    mine = everything[int(part) :: int(parts)]
    with open_store(load_settings(Path(config))) as store:
        for begin in range(0, len(mine), BATCH):
            store.samples.add(mine[begin : begin + BATCH])


if __name__ == "__main__":
    main(*sys.argv[1:])
