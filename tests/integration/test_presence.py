"""A serving process tells that it lives; while the database is away it serves on, and tells again when it is back."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from osd.engine.engine import Engine
from osd.hotswap.drafts import Swap
from osd.models.pair import Pair
from osd.recording.recorder import Recorder
from osd.server.http.keys import KeyRing
from osd.server.metrics.server import Meters
from osd.server.process.engine_server import EngineHost
from osd.server.process.presence import EngineDrafts, Presence
from storage.access.processes import ServerState
from storage.settings import Settings, load_settings
from storage.store import open_store
from tests.integration.proxy import Proxy
from tests.support.decoding import answer, decoding
from tests.support.models import model_of, noisy, random_module


@pytest.fixture
def settings(tmp_path: Path, database: tuple[str, Proxy]) -> Settings:
    serve = {"max_batch": 2, "max_length": 96, "swap_poll_seconds": 0.05}
    fleet = {"heartbeat_seconds": 0.05, "gone_seconds": 1.0}
    storage = {"url": database[0], "directory": tmp_path / "data"}
    return load_settings(storage=storage, serve=serve, gamma={"rule": "fixed"}, fleet=fleet)


async def until(condition: object, what: str) -> None:
    end = time.monotonic() + 60
    while not await asyncio.to_thread(condition):  # type: ignore[arg-type]
        assert time.monotonic() < end, f"never: {what}"
        await asyncio.sleep(0.02)


def test_it_serves_while_the_database_is_away_and_is_back_by_itself(
    settings: Settings, database: tuple[str, Proxy], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, wire = random_module("llama"), database[1]
    noisy(target, 0.2).save_pretrained(tmp_path / "draft")
    pair = Pair(model_of(target), model_of(noisy(target, 0.2), str(tmp_path / "draft")), None, frozenset())

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            store = stack.enter_context(open_store(settings))
            swap = Swap(store, "default", pair, settings, "here:1")
            recorder = Recorder(store, settings, "here:1")
            stack.callback(swap.close)
            stack.callback(recorder.close)
            engine, wishes = Engine(pair, settings, swap=swap, recorder=recorder), []
            distant, thread = await stack.enter_async_context(decoding(engine, 8))
            host = EngineHost(settings, store, KeyRing(store.keys, 1.0), Meters(), None, thread, engine)
            presence = Presence(host, "here:1", "http://here", wishes.append, "here:0", EngineDrafts(engine))
            presence.begin()
            await until(lambda: len(store.servers.list()) == 1, "it is listed")
            wire.cut()
            await until(lambda: "no heartbeat" in caplog.text, "a heartbeat failed")
            tokens = [token for piece in await answer(distant, 40) for token in piece.tokens]
            assert len(tokens) == 40, "it decodes meanwhile"
            wire.mend()
            began = time.time()
            await until(lambda: any(w.heartbeat_at > began for w in store.servers.list()), "it is heard of again")
            (row,) = store.servers.list()
            assert (row.id, row.state, row.trouble) == ("here:1", ServerState.SERVING, None)
            root = store.versions.current("default")
            assert row.drafts == {"default": {"version": root.id, "digest": root.digest}}
            store.servers.ask_drain("here:1")
            await until(lambda: wishes == [True], "it hears that it is to drain, once")
            store.servers.ask_drain("here:1", undo=True)
            await until(lambda: wishes == [True, False], "and that it is not")
            await asyncio.to_thread(presence.close)
            assert store.servers.list() == []

    asyncio.run(serve())
    assert caplog.text.count("no heartbeat") == 1, "one line an outage"
