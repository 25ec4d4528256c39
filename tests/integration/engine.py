"""A server without HTTP: streams requests through a real engine until its input ends, and writes down each that ended.

python -m tests.integration.engine CONFIG LOG

A line of the log: id, finish reason, a digest of prompt and answer, and the totals that it counted. It ends once all
that it finished is in the store.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from osd.demo import DRAFT, TARGET
from osd.demo.prompts import DOMAINS
from osd.engine.engine import Engine
from osd.engine.session import serving
from osd.models.pair import load_pair
from osd.prompts import encode
from osd.sequence import Completion
from storage.records import Request
from storage.settings import load_settings
from storage.store import open_store
from tests.integration.tokens import digest

PATIENCE = 120.0


def requests(engine: Engine, stop: threading.Event) -> Iterator[Request]:
    rng = random.Random(0)
    draws = [draw(rng) for name, draw in DOMAINS.items() if name != "python"]  # which has an end
    while not stop.is_set():
        text = next(rng.choice(draws))
        yield Request(encode(engine.pair.tokenizer, text, raw=True), max_new_tokens=rng.randint(8, 40), text=text)


def line(done: Completion) -> str:
    totals = [asdict(outcome) for outcome in done.outcomes]
    tokens = np.array([*done.request.prompt_tokens, *done.tokens], np.int32)
    facts = {"id": done.request.id, "why": done.finish_reason, "digest": digest(tokens), "outcomes": totals}
    return json.dumps(facts) + "\n"


def main(config: str, log: str) -> None:
    settings = load_settings(Path(config))
    stop = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    pair = load_pair(TARGET, DRAFT)
    with open_store(settings) as store, serving(pair, settings, store) as engine, open(log, "a") as out:
        print("serving", flush=True)
        for done in engine.run(requests(engine, stop)):
            out.write(line(done))
            out.flush()
        recorder = engine.recorder
        assert recorder is not None and recorder.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while recorder.writer.due is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        facts = {
            "spilled": recorder.writer.spilled, "dropped": recorder.dropped,
            "lost_outcomes": recorder.writer.lost_outcomes, "swaps": len(engine.stats.swap_pause_ms),
            "left": len(recorder.writer.spill.waiting()),
        }  # fmt: skip
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
