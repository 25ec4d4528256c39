"""Serving that is recorded, from requests to what the store keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from osd.engine.engine import Engine
from osd.models.pair import Pair
from osd.recording.recorder import Recorder
from osd.sequence import Completion
from storage.records import Request, RequestSamples
from storage.settings import Settings
from storage.store import Store

Prepare = Callable[[Engine], None]


def record(
    pair: Pair, store: Store, settings: Settings, asked: Sequence[Request], recorder: Recorder | None = None,
    prepare: Prepare = lambda engine: None,
) -> tuple[list[Completion], list[RequestSamples]]:  # fmt: skip
    """Serve requests; return their completions, and in the order in which they were asked what was kept of them."""
    recorder = recorder or Recorder(store, settings, "test")
    engine = Engine(pair, settings, recorder=recorder)
    prepare(engine)
    done = list(engine.run(asked))
    recorder.close()
    return done, store.samples.read([request.id for request in asked])
