"""A server over its own engine: the engine process, with the admin port, beside the API server process."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from osd.engine.engine import Engine
from osd.engine.moving_target import MovingTarget
from osd.kernels.host import leave_alone
from osd.models.kv_blocks import BLOCK
from osd.server.admin.inside import Inside
from osd.server.admin.snapshots import AdminHost, may_inspect
from osd.server.admin.target import TargetMover, moves
from osd.server.core.engine_thread import EngineThread
from osd.server.http.chat import read_template
from osd.server.http.keys import KeyRing
from osd.server.http.service import Facts
from osd.server.metrics import families as m
from osd.server.metrics.families import FamilySet, GroupCollector
from osd.server.metrics.server import Meters
from osd.server.process.api_server import ApiServer, ControlLink
from osd.server.process.listen import Place
from osd.server.process.presence import EngineDrafts
from osd.server.process.server import Backend, Server
from osd.verification.lossy import MODES
from storage.errors import PairError
from storage.store import Store

log = logging.getLogger(__name__)

MEASURE_SECONDS = 1.0
"""How long the API server process may take to say what it has measured: less than a peer waits for the two of us."""


class EngineCollector(GroupCollector):
    """A collector for prometheus_client. It reads a few numbers and never waits for a round."""

    group = m.ENGINE

    def __init__(self, engine: Engine, model_name: str = "osd") -> None:
        """Collect from an engine; ``model_name`` is the label that vLLM's metrics carry."""
        self.engine, self.model_name = engine, model_name

    def follow(self, engine: Engine) -> None:
        """Collect from another engine from now on."""
        self.engine = engine

    def fill(self, families: FamilySet) -> None:
        """Add the engine's numbers; without a recorder its four are 0."""
        stats, recorder = self.engine.stats, self.engine.recorder
        pauses, blocks = list(stats.swap_pause_ms), self.engine.prefill_queue.blocks
        families.add(m.DROPPED, recorder.dropped if recorder else 0)
        families.add(m.SPILLED, recorder.writer.spilled if recorder else 0)
        families.add(m.SPILL_BYTES, recorder.writer.spill.bytes if recorder else 0)
        families.add(m.RECORDER_SECONDS, recorder.seconds + recorder.seconds_beside if recorder else 0)
        families.add(m.STEPS, stats.steps)
        families.add(m.STOOD_IN, stats.stood_in)
        for mode in MODES:
            families.add(m.LOSSY, self.engine.settings.serve.lossy == mode, mode)
        for drafter, count in list(stats.draft_failures.items()):
            families.add(m.DRAFT_FAILURES, count, drafter)
        families.add(m.READ, stats.read_tokens)
        families.add(m.PREFIX_QUERIED, stats.prefix_queried)
        families.add(m.PREFIX_HITS, stats.prefix_hits)
        families.add(m.VLLM_PREFIX_QUERIES, stats.prefix_queried, self.model_name, 0)
        families.add(m.VLLM_PREFIX_HITS, stats.prefix_hits, self.model_name, 0)
        families.add(m.CACHE_HELD, blocks.used)
        families.add(m.CACHE_WAITED, stats.waited_for_memory)
        families.add(m.CACHE_SET_ASIDE, stats.set_aside)
        families.add(m.VLLM_CACHE_USAGE, blocks.usage, self.model_name, 0)
        families.add(m.SGLANG_USAGE, blocks.usage, self.model_name)
        families.add(m.SGLANG_HITS, stats.prefix_hits / max(1, stats.prefix_queried), self.model_name)
        families.add(m.VLLM_CACHE_CONFIG, 1, 0, BLOCK, blocks.most)
        families.add(m.SWAPS, len(pauses))
        families.add(m.SWAP_SECONDS, sum(pauses) / 1000)


@dataclass(slots=True)
class EngineHost(AdminHost):
    """The state behind the admin port's routes, in the engine process."""

    engine: Engine
    mover: TargetMover | None = None
    """Exchanges the target; None where it stays."""
    named: str = field(init=False)

    def __post_init__(self) -> None:
        self.named = self.settings.server.model or PurePath(self.engine.pair.target.name).name

    @property
    def model(self) -> str:
        """The name that clients ask for; it stays when the target moves."""
        return self.named

    def follow(self, engine: Engine) -> None:
        """Speak of another engine from now on."""
        self.engine = engine

    def inside(self) -> Inside:
        """Return the view of the requests that the engine finishes from now on."""
        allowed, learnable = lambda: may_inspect(self.settings, self.ring), self.store.tenants.learnable
        inside = Inside(self.engine.pair.tokenizer, allowed, learnable)
        self.engine.listeners.append(inside.rounds)
        return inside

    def facts(self, servers: int) -> dict[str, Any]:
        """Return what a snapshot shows of the engine, told how many servers share the port."""
        engine = self.engine
        return {
            "rows": engine.settings.serve.max_batch * servers, "steps": engine.stats.steps,
            "swaps": len(engine.stats.swap_pause_ms), "draft_version": engine.draft_version,
            "dropped_positions": engine.recorder.dropped if engine.recorder else 0,
            "lossy": engine.settings.serve.lossy or None,
        }  # fmt: skip


def facts_of(host: EngineHost) -> Facts:
    """Return what the API server process must know of the model. Raises BadSetting and PairError."""
    engine, pair, own = host.engine, host.engine.pair, host.engine.admission.generation
    if pair.tokenizer is None:
        raise PairError(reason="The target's folder has no tokenizer, and a server is asked in text. Add one.")
    template = read_template(host.settings.server.chat_template, pair.tokenizer)
    return Facts(
        host.model, engine.limit, pair.vocab_size, tuple(sorted(pair.eos_ids)), engine.settings.gamma.max, template,
        own.temperature, own.max_new_tokens, own.stops, bool(pair.target.start),
    )  # fmt: skip


class EngineBackend(Backend):
    """The engine of a server, in this process, and the API server process that answers HTTP for it."""

    admin_routes = (moves,)

    def __init__(self, host: EngineHost, thread: EngineThread, api: ApiServer) -> None:
        engine = host.engine
        assert engine.recorder is not None
        collector, drafts, inside = EngineCollector(engine, host.model), EngineDrafts(engine), host.inside()
        super().__init__(engine.recorder.worker, collector, inside, drafts)
        self._look = inside.rounds
        for follower in (host.follow, collector.follow, drafts.follow, self._show):
            thread.follow(follower)
        self.host, self.thread = host, thread
        self._model, self._api, self._listening = facts_of(host), api, asyncio.Event()
        self._link = ControlLink(api.end)

    def _show(self, engine: Engine) -> None:
        """Let the page show what an engine decodes."""
        if self._look not in engine.listeners:
            engine.listeners.append(self._look)

    @property
    def listens(self) -> bool:
        """Whether the API server process listens."""
        return self._listening.is_set()

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits."""
        return self.thread.alive and bool(self.thread.running or self.thread.waiting)

    async def serve(self, server: Server) -> None:
        """Decode as long as the API server process lives."""

        async def metrics(measured: str) -> str:
            """Answer GET /metrics for the API server process, which says what it has measured itself."""
            return (await server.exposition.whole(measured.encode())).decode()

        self.thread.start()
        self._link.say("begin", self._model)
        await self._link.listen({"listening": self._listening.set, "metrics": metrics})
        if not server.admin.should_exit:
            log.error("the API server process has ended", extra={"action": "api_server_ended"})
            server.fail()

    def facts(self, servers: int) -> dict[str, Any]:
        """Return what a snapshot shows of the engine."""
        return self.host.facts(servers)

    async def measure_api(self) -> bytes | None:
        """Return what the API server process has measured; None where it does not say in time."""
        try:
            async with asyncio.timeout(MEASURE_SECONDS):
                text: str = await self._link.ask("measure")
                return text.encode()
        except (ConnectionError, TimeoutError):
            return None

    def leave_port(self) -> None:
        """Leave new connections to the others behind the port."""
        self._link.say("leave")

    def drain(self, drains: bool) -> None:
        """Tell decoding and the API server process that it drains, or serves again."""
        self.thread.drain(drains)
        self._link.say("ready", not drains)
        if not drains:
            self._link.say("return")

    def cut_off(self) -> None:
        """End the requests that run."""
        self.thread.end_all()

    def stop(self, force: bool) -> None:
        """Tell the API server process to stop listening; with ``force`` without waiting for answers."""
        self._link.say("stop", force)

    def close(self) -> None:
        """Wait until decoding and the API server process have ended."""
        self.thread.close()
        self._api.reap()


def serve(session: MovingTarget, store: Store, ring: KeyRing, api: ApiServer, place: Place) -> int:
    """Serve until a signal; return the exit status. Raises BadSetting and PairError before it listens."""

    async def run() -> int:
        settings = session.engine.settings
        thread = EngineThread(session.engine, settings.server.queue, api.jobs)
        mover = TargetMover(session, thread.move, lambda: thread.alive, alone=place.peers is None)
        host = EngineHost(settings, store, ring, Meters(), place.peers, thread, session.engine, mover)
        server = Server(host, EngineBackend(host, thread, api), place)
        thread.failed = server.fail
        return await server.serve()

    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    leave_alone()
    return asyncio.run(run())
