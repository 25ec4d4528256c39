"""A serving process tells that it lives; while the database is away it serves on, and tells again when it is back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from osd.engine import Engine
from osd.fleet.presence import Presence
from osd.models import Pair
from osd.recorder import Recorder
from osd.server.engine_thread import EngineThread
from osd.server.job import Job
from osd.server.piece import Piece
from osd.swap import Swap
from storage.records import Request
from storage.settings import Settings, load_settings
from storage.store import open_store
from storage.workers import WorkerState
from tests.faults.proxy import Proxy
from tests.osd.models import model_of, noisy, random_module

PROMPT = (3, 5, 8)


@pytest.fixture
def settings(tmp_path: Path, database: tuple[str, Proxy]) -> Settings:
    serve = {"max_batch": 2, "max_length": 96, "gamma": "fixed", "swap_poll_seconds": 0.05}
    fleet = {"heartbeat_seconds": 0.05, "gone_seconds": 1.0}
    return load_settings(storage={"url": database[0], "directory": tmp_path / "data"}, serve=serve, fleet=fleet)


async def until(condition: object, what: str) -> None:
    end = time.monotonic() + 60
    while not await asyncio.to_thread(condition):  # type: ignore[arg-type]
        assert time.monotonic() < end, f"never: {what}"
        await asyncio.sleep(0.02)


async def answer(thread: EngineThread, count: int = 40) -> int:
    """Tokens of one request."""
    inbox: asyncio.Queue[Piece] = asyncio.Queue()
    thread.submit([Job(Request(PROMPT, max_new_tokens=count, ignore_eos=True), inbox.put_nowait)])
    tokens = 0
    while not (piece := await inbox.get()).done:
        tokens += len(piece.tokens)
    return tokens + len(piece.tokens)


def test_it_serves_while_the_database_is_away_and_is_back_by_itself(
    settings: Settings, database: tuple[str, Proxy], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, wire = random_module("llama"), database[1]
    noisy(target, 0.2).save_pretrained(tmp_path / "draft")
    pair = Pair(model_of(target), model_of(noisy(target, 0.2), str(tmp_path / "draft")), None, frozenset())

    async def serve() -> None:
        with open_store(settings) as store:
            swap = Swap(store, "default", pair, settings, "here:1")
            recorder = Recorder(store, settings, "here:1")
            engine, wishes = Engine(pair, settings.serve, swap=swap, recorder=recorder), []
            thread = EngineThread(engine, 8, lambda: None)
            thread.start()
            presence = Presence(store, settings.fleet, engine, thread, "http://here", wishes.append, "here:0")
            presence.begin()
            await until(lambda: len(store.workers.list()) == 1, "it is listed")
            wire.cut()
            await until(lambda: "no heartbeat" in caplog.text, "a heartbeat failed")
            assert await answer(thread) == 40, "it decodes meanwhile"
            wire.mend()
            began = time.time()
            await until(lambda: any(w.heartbeat_at > began for w in store.workers.list()), "it is heard of again")
            (row,) = store.workers.list()
            assert (row.id, row.state, row.trouble) == ("here:1", WorkerState.SERVING, None)
            root = store.versions.current("default")
            assert row.drafts == {"default": {"version": root.id, "digest": root.digest}}
            store.workers.ask_drain("here:1")
            await until(lambda: wishes == [True], "it hears that it is to drain, once")
            store.workers.ask_drain("here:1", undo=True)
            await until(lambda: wishes == [True, False], "and that it is not")
            await asyncio.to_thread(presence.close)
            assert store.workers.list() == []
            await asyncio.to_thread(thread.close)
            await asyncio.to_thread(swap.close)
            await asyncio.to_thread(recorder.close)

    asyncio.run(serve())
    assert caplog.text.count("no heartbeat") == 1, "one line an outage"
