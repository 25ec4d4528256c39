"""The whole circle on one machine: engine, recorder, swap and a worker process, over a store of its own; and beside it
the dashboard, the admin port of `osd serve` over the run's engine and store.

The parts that it wires: osd.engine.session (engine, recorder, swap), osd.demo.runner.process (the worker),
osd.demo.runner.feed (when a request may start), osd.demo.runner.stream (the loop) and osd.demo.runner.alone (what is
measured beside).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from osd.demo.runner.alone import TargetAlone
from osd.demo.runner.feed import Spent, make_arrival
from osd.demo.runner.process import WorkerProcess, save_settings, worker_beside
from osd.demo.runner.source import Segment
from osd.demo.runner.stream import Stream, StreamTrace, Watch
from osd.drafters.factory import proposer_name
from osd.engine.engine import Engine
from osd.engine.session import in_folder, serving
from osd.kernels.host import usable_cores
from osd.models.pair import Pair, load_pair
from osd.prompts import encode
from storage.errors import StoreWriteFailed
from storage.records import DEFAULT_DRAFT, Request, Route
from storage.sampling import GREEDY, Sampling
from storage.settings import Settings
from storage.store import Store, open_store

SWAP_POLL_SECONDS, WORKER_POLL_SECONDS, FLUSH_SECONDS = 0.1, 0.2, 0.5
"""Everything is on one machine and people are watching, so that nobody waits for a clock."""
HOST = "127.0.0.1"
STEP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What is to be streamed, and how."""

    target: str
    draft: str
    segments: Sequence[Segment]
    out: Path
    """A new folder for everything that comes of it."""
    settings: Settings
    arrival: str = "paced"
    """free, paced or lockstep; see osd.demo.runner.feed."""
    max_new_tokens: int = 64
    check_every: int = 16
    """Every so many-th greedy request is decoded again by the target alone."""
    port: int | None = None
    """Where the dashboard is while it runs; None for none, 0 for any free port."""
    sampling: Sampling = GREEDY
    """How the requests are sampled."""
    stay: bool = False
    """Whether the dashboard stays open after the last request, until Ctrl-C."""

    @property
    def requests(self) -> int:
        """Requests of all segments."""
        return sum(len(segment) for segment in self.segments)

    @property
    def data(self) -> Path:
        """The run's own data directory."""
        return self.out / "data"

    @property
    def log(self) -> Path:
        """What the worker says."""
        return self.out / "worker.log"


@dataclass
class Circle:
    """The running parts."""

    plan: StreamPlan
    pair: Pair
    store: Store
    engine: Engine
    worker: WorkerProcess
    alone: TargetAlone

    def stream(self, trace: StreamTrace, watch: Watch) -> None:
        """Serve the whole plan; ``trace`` fills as it goes. Raises TrainingFailed when the worker is gone or stuck."""
        plan = self.plan
        interval = plan.settings.learn.most_waiting
        arrival = make_arrival(plan.arrival, self.store, [DEFAULT_DRAFT], self.engine, interval)
        stream = Stream(
            self.engine, arrival, self.alone, max_new_tokens=plan.max_new_tokens, check_every=plan.check_every,
            sampling=plan.sampling,
        )  # fmt: skip

        def look(trace: StreamTrace, segment: str) -> None:
            self.worker.require_alive()
            watch(trace, segment)

        stream.run(plan.segments, trace, look)

    def warm_up(self) -> None:
        """Decode one prompt with an engine that keeps nothing, so that first times are not taken for the method's."""
        request = Request(encode(self.pair.tokenizer, "warm up"), 8)
        settings = self.plan.settings.changed(serve={"max_batch": 1})
        if proposer_name(settings) == "trigram":  # until the tables' code is compiled nothing learns into them
            from osd.drafters.ngram.tables import warm_up

            warm_up()
        for completion in Engine(self.pair, settings).run([request]):
            TargetAlone(self.pair, settings).hold(completion, Spent(0.0, 1.0))


def own_settings(given: Settings, data: Path, **changes: dict[str, Any]) -> Settings:
    """The user's settings with a store of this run's own: nothing that the user keeps is read or written.

    ``changes``: section → {setting: value}, strongest.
    """
    interval = changes.get("learn", {}).get("interval_requests", given.learn.interval_requests)
    flush = given.storage.flush_requests if interval == "auto" else interval
    own: dict[str, dict[str, Any]] = {
        "storage": {"url": None, "directory": data, "flush_requests": flush, "flush_seconds": FLUSH_SECONDS},
        "serve": {
            "swap_poll_seconds": SWAP_POLL_SECONDS,
            "record": _recording(given),
            "threads": given.serve.threads or _spare_cores(given),
        },
        "trainer": {"broker": None, "poll_seconds": WORKER_POLL_SECONDS},
    }
    return given.changed(**own).changed(**changes)


def _spare_cores(given: Settings) -> int:
    """Cores that the worker leaves: two pools of threads on one core wait for each other at every product."""
    return max(1, usable_cores() - given.trainer.threads)


def _recording(given: Settings) -> str:
    """Nothing can be learned from what is not recorded."""
    return "verified" if given.serve.record == "off" else given.serve.record


@contextmanager
def turning(plan: StreamPlan) -> Iterator[Circle]:
    """The circle of a plan: everything is started here, and stopped however the block ends.

    Raises StoreWriteFailed when the folder cannot be made or is not empty, and PairError.
    """
    make_new_folder(plan.data)
    pair = load_pair(plan.target, plan.draft, device=plan.settings.serve.device, dtype=plan.settings.serve.dtype)
    config = save_settings(plan.settings, plan.data / "osd.toml")
    with open_store(plan.settings) as store:
        _name_routes(store, pair, plan.segments)
        with serving(pair, plan.settings, store) as engine, worker_beside(config, plan.log) as worker:
            yield Circle(plan, pair, store, engine, worker, TargetAlone(pair, plan.settings))


def make_new_folder(folder: Path) -> None:
    """Make a folder that must not be there. Raises StoreWriteFailed."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise StoreWriteFailed(path=folder, reason="it exists; --out wants a new folder") from None
    except OSError as error:
        raise StoreWriteFailed(path=folder, reason=error.strerror or str(error)) from None


def _name_routes(store: Store, pair: Pair, segments: Sequence[Segment]) -> None:
    """A route for each segment, all served by one draft: `osd stats acceptance --by route` can tell them apart."""
    store.versions.register_root(DEFAULT_DRAFT, Path(in_folder(pair.draft).name))
    for segment in segments:
        store.routes.add(Route(segment.name, DEFAULT_DRAFT))


class Steps:
    """What the dashboard asks of the thread that steps the engine; here that is the run itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._engine.rows)

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._engine.admission.waiting)

    @property
    def finished(self) -> int:
        """Nobody asks: no database is told of this run."""
        return 0


@contextmanager
def looking_on(engine: Engine, store: Store, port: int | None, console: Console) -> Iterator[None]:
    """Serve the dashboard for as long as the block runs, where there is a port. Raises BadSetting."""
    if port is None:
        yield
        return
    from osd.server.admin.routes import make_admin
    from osd.server.admin.snapshots import Snapshots
    from osd.server.http.keys import KeyRing
    from osd.server.metrics.server import Meters
    from osd.server.process.engine_server import EngineCollector, EngineHost
    from osd.server.process.listen import listen, url
    from osd.server.process.server import Exposition, in_thread

    settings = engine.settings
    ring = KeyRing(store.keys, settings.server.keys_poll_seconds)
    host = EngineHost(settings, store, ring, Meters(), None, Steps(engine), engine)
    host.measure = Exposition(host, EngineCollector(engine, host.model)).whole
    app = make_admin(host, Snapshots(host, host.facts), host.inside())
    with listen(HOST, port, "osd demo --port") as bound, in_thread(app, host, bound):
        console.print(f"Dashboard: {url(bound)}/dashboard", highlight=False, soft_wrap=True)
        yield


def stay(circle: Circle, console: Console) -> None:
    """Leave the dashboard open until Ctrl-C; versions may be promoted and taken back, so the engine goes on."""
    console.print("Everything was served. The dashboard stays open; Ctrl-C ends it.", soft_wrap=True)
    try:
        while True:
            circle.engine.step()
            time.sleep(STEP_SECONDS)
    except KeyboardInterrupt:
        return
