"""Load in two manners. Closed: so many clients, each of which asks again when it has its answer. Open: requests come
when they come, whether the earlier ones are answered or not."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from osd.bench.serve.client import Address, Client, Collected, Reply, ServeJob, ask, read_reply

QUANTILES = (50, 95, 99)
LATE = 0.001
RAMP_SECONDS = 0.5
"""Seconds of a closed load before it is measured: all its first prompts are read at once, and what is on its way when
the time is over would be missing from it."""


class TimedJob(NamedTuple):
    """A job, and when it comes: seconds from the beginning."""

    at: float
    job: ServeJob


@dataclass(slots=True)
class Load:
    """What came of one load, or of several together."""

    replies: list[Reply] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    tokens: float = 0.0
    """Those that came while it was measured."""
    seconds: float = 0.0
    """How long it was measured."""
    late: int = 0
    """Arrivals that had to wait because too many were under way."""
    slim: bool = False
    """Whether only the first and the last of an answer's times are kept: for loads of hours."""

    @property
    def failed(self) -> int:
        """Requests without a whole answer."""
        return len(self.errors)

    @property
    def rate(self) -> float:
        """Tokens a second of all clients together."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def keep(self, reply: Reply) -> None:
        """Another answer."""
        if self.slim:
            reply.times = reply.times[:1] + reply.times[-1:]
        if reply.error:
            self.errors.append(reply.error)
        else:
            self.replies.append(reply)

    def end(self, begun: float, seconds: float) -> None:
        """It was measured for so long, from ``begun`` on."""
        self.seconds = seconds
        self.tokens = sum(reply.tokens_by(begun + seconds) - reply.tokens_by(begun) for reply in self.replies)

    def add(self, other: Load) -> None:
        """Another turn of the same."""
        self.replies += other.replies
        self.errors += other.errors
        self.tokens, self.seconds = self.tokens + other.tokens, self.seconds + other.seconds

    def percentiles(self) -> dict[str, float | None]:
        """Milliseconds to the first token, mean between an answer's tokens, and between its events."""
        kinds = {
            "ttft": [reply.first_ms for reply in self.replies],
            "tpot": [ms for reply in self.replies if (ms := reply.per_token_ms) is not None],
            "gap": [ms for reply in self.replies for ms in reply.gaps_ms],
        }
        return {
            f"{name}_ms_p{q}": float(np.percentile(values, q)) if values else None
            for name, values in kinds.items() for q in QUANTILES
        }  # fmt: skip


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
        for one in collected:
            load.keep(read_reply(one))
        ramp = RAMP_SECONDS if lasted > RAMP_SECONDS else 0.0
        load.end(begun + ramp, min(seconds, lasted - ramp))
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
            load.keep(await ask(address, job))
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
        load.end(begun, time.perf_counter() - begun)
        return load

    return _run(run())
