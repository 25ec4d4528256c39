"""``python -m osd.bench.router --train DIR --out FILE``: train the language model that osd ships, or one of yours.

DIR holds tatoeba.jsonl or tatoeba.jsonl.gz, lines with ``prompt``, ``language`` and ``response`` (English).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from osd.bench.router.folder import Folder
from osd.bench.router.languages import language_model
from router.language_file import save_languages
from storage.errors import BadBenchFile, OsdError


def main() -> int:
    """Learn all sentences of the folder and write the model."""
    parser = argparse.ArgumentParser(prog="python -m osd.bench.router", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--train", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    asked = parser.parse_args()
    try:
        rows = Folder(asked.train, lambda text: print(text, file=sys.stderr)).rows("tatoeba")
        if not rows:
            raise BadBenchFile(path=asked.train, reason="has no tatoeba.jsonl or tatoeba.jsonl.gz")
        model = language_model(rows)
        save_languages(model, asked.out)
    except OsdError as error:
        print(f"osd: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{asked.out}: {len(model.labels)} languages, {model.ids.size} n-grams, {asked.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
