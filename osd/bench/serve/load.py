"""Load in two manners. Closed: so many clients, each of which asks again when it has its answer. Open: requests come
when they come, whether the earlier ones are answered or not."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields

import numpy as np

from osd.bench.serve.client import Address, Client, Collected, Reply, ask, read_reply
from osd.bench.serve.requests import ServeJob, TimedJob

QUANTILES = (50, 95, 99)
DIGITS = 2
"""Decimals of milliseconds that are kept."""
LATE = 0.001
RAMP_SECONDS = 0.5
"""Seconds of a closed load before it is measured: all its first prompts are read at once, and what is on its way when
the time is over would be missing from it."""


@dataclass(slots=True)
class Load:
    """What came of one load, or of several together."""

    tokens: float = 0.0
    """Those that came while it was measured."""
    seconds: float = 0.0
    """How long it was measured."""
    requests: int = 0
    """Those with a whole answer."""
    answered: int = 0
    """Tokens of whole answers."""
    late: int = 0
    """Arrivals that had to wait because too many were under way."""
    errors: list[str] = field(default_factory=list)
    """Why the other requests have none."""
    versions: list[str] = field(default_factory=list)
    """Draft versions that answers named, each once."""
    ttft_ms: list[float] = field(default_factory=list)
    """Milliseconds to the first token, an answer."""
    tpot_ms: list[float] = field(default_factory=list)
    """Mean milliseconds between an answer's tokens."""
    gap_ms: list[float] = field(default_factory=list)
    """Milliseconds between an answer's events."""

    @property
    def rate(self) -> float:
        """Tokens a second of all clients together."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def requests_per_s(self) -> float:
        """Requests a second, by the tokens of a whole answer."""
        return self.rate * self.requests / self.answered if self.answered else 0.0

    def keep(self, reply: Reply) -> None:
        """Add an answer; its tokens are counted by whoever measures."""
        if reply.error:
            self.errors.append(reply.error)
            return
        self.requests, self.answered = self.requests + 1, self.answered + reply.tokens
        if reply.version and reply.version not in self.versions:
            self.versions.append(reply.version)
        self.ttft_ms.append(round(reply.first_ms, DIGITS))
        self.tpot_ms += [] if reply.per_token_ms is None else [round(reply.per_token_ms, DIGITS)]
        self.gap_ms += [round(ms, DIGITS) for ms in reply.gaps_ms]

    def percentiles(self) -> dict[str, float | None]:
        """Return those of all three times, in milliseconds."""
        return {
            f"{name}_p{q}": float(np.percentile(values, q)) if (values := getattr(self, name)) else None
            for name in ("ttft_ms", "tpot_ms", "gap_ms") for q in QUANTILES
        }  # fmt: skip


def together(turns: Sequence[Load]) -> Load:
    """Return all turns as one load."""
    return Load(**{
        each.name: sum((getattr(turn, each.name) for turn in turns), type(getattr(Load(), each.name))())
        for each in fields(Load)
    })  # fmt: skip


Beside = Callable[[], Coroutine[None, None, None]]
"""What happens while a load runs; it is stopped with it."""


class _Patient(selectors.DefaultSelector):
    """When something has come it waits for the like of it: a round brings every client something, and to wake for each
    would take the cores from the server that is measured. Times are right to LATE seconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout)
        if not found:
            return found
        time.sleep(LATE)
        return super().select(0)


def _run(load: Coroutine[None, None, Load]) -> Load:
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Patient())) as runner:
        return runner.run(load)


@asynccontextmanager
async def _accompanied(beside: Beside | None) -> AsyncIterator[None]:
    task = asyncio.create_task(beside()) if beside else None
    try:
        yield
    finally:
        if task and not task.done():
            task.cancel()
    if task and task.done() and not task.cancelled():
        task.result()


def closed_load(
    address: Address,
    jobs: Iterator[ServeJob],
    clients: int,
    seconds: float,
    beside: Beside | None = None,
    wait: bool = True,
) -> Load:
    """So many clients until the time is over, a ramp before it; what they have begun by then is finished, and not
    counted as tokens. Where they shall not ``wait``, those whose answers have not begun leave: nothing is known of
    their times. Where jobs run out before the ramp is over, all of them are counted."""

    async def run() -> Load:
        load, begun = Load(), time.perf_counter()
        everybody = [Client(address) for _ in range(clients)]
        collected: list[Collected] = []

        async def be(client: Client) -> None:
            while time.perf_counter() < begun + RAMP_SECONDS + seconds and (job := next(jobs, None)):
                answer = await client.collect(job)
                if not client.gone:
                    collected.append(answer)
            client.close()

        async with _accompanied(beside):
            if not wait:
                asyncio.get_running_loop().call_later(RAMP_SECONDS + seconds, _send_home, everybody)
            await asyncio.gather(*map(be, everybody))
        lasted = time.perf_counter() - begun
        ramp = RAMP_SECONDS if lasted > RAMP_SECONDS else 0.0
        load.seconds = min(seconds, lasted - ramp)
        for reply in map(read_reply, collected):
            load.keep(reply)
            load.tokens += reply.tokens_by(begun + ramp + load.seconds) - reply.tokens_by(begun + ramp)
        return load

    return _run(run())


def _send_home(clients: Iterable[Client]) -> None:
    for client in clients:
        client.leave()


def open_load(
    address: Address, arrivals: Iterable[TimedJob], most: int, seconds: float, load: Load | None = None
) -> Load:
    """Every arrival at its time, for so many seconds. Where ``most`` are under way the next waits for one to end: a
    machine that has become slow is then loaded fully, and not drowned, and the last do not come. ``load`` is what it is
    kept in; Ctrl-C leaves there what has come."""
    load = load or Load()

    async def run() -> Load:
        begun, room = time.perf_counter(), asyncio.Semaphore(most)
        asked: set[asyncio.Task[None]] = set()

        async def one(job: ServeJob) -> None:
            reply = await ask(address, job)
            load.keep(reply)
            load.tokens += reply.tokens
            room.release()

        for at, job in arrivals:
            await asyncio.sleep(max(0.0, begun + at - time.perf_counter()))
            load.late += room.locked()
            await room.acquire()
            if time.perf_counter() > begun + seconds:
                break
            asked.add(task := asyncio.create_task(one(job)))
            task.add_done_callback(asked.discard)
        await asyncio.gather(*asked)
        load.seconds = time.perf_counter() - begun
        return load

    return _run(run())
