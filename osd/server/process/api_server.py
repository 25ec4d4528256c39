"""The API server process: it answers HTTP, so that its use of the interpreter does not slow decoding.

It is forked by the one that decodes before that loads a model or starts a thread, so it has all modules at no cost and
starts at once. It holds no weights and no secret but the keys' hashes, ignores signals, and ends when it is told to or
when the engine process has gone.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import generate_latest

from osd.kernels.host import keep_giving_back
from osd.models.vocabulary import load_tokenizer
from osd.server.core.client import EngineClient
from osd.server.core.ipc import Endpoint, Handlers
from osd.server.http.api import make_app
from osd.server.http.keys import KeyRing
from osd.server.http.service import Facts, Service
from osd.server.metrics.server import Meters
from osd.server.process.server import FAILED, LAST_SECONDS, POLL_SECONDS, Listener, listener
from storage.errors import OsdError
from storage.settings import Settings

log = logging.getLogger(__name__)

ASK, ANSWER = "ask", "answer"


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The API server process, as seen by the one that decodes."""

    pid: int
    end: socket.socket
    """Our end of the pair of sockets for all that is no job."""
    jobs: socket.socket
    """Our end of the pair of sockets for jobs."""

    def reap(self) -> None:
        """Wait until the process has ended; kill it where it hangs, for example on a database."""
        until = time.monotonic() + LAST_SECONDS
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)


def fork(
    target: str, settings: Settings, ring: Callable[[], KeyRing], accepting: Callable[[], socket.socket]
) -> ApiServer:
    """Start it. ``target`` has the tokenizer; ``ring`` opens the keys anew, for what is open cannot be shared;
    ``accepting`` gives the API's socket."""
    ours, its = zip(socket.socketpair(), socket.socketpair(), strict=True)
    pid = os.fork()
    if pid:
        for end in its:
            end.close()
        return ApiServer(pid, *ours)
    status = FAILED
    try:
        gc.freeze()  # what both share stays shared
        for end in ours:
            end.close()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        asyncio.run(_ApiServing(target, settings, accepting).run(*its, ring))
        status = 0
    except OsdError as error:
        log.error("%s", error, extra={"action": "api_server_failed"})
    except Exception:
        log.exception("the API server process failed", extra={"action": "api_server_failed"})
    finally:
        logging.shutdown()
        os._exit(status)


class ControlLink(Endpoint):
    """The pair of sockets for all that is no job. What is asked there is answered. Belongs to one event loop."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end, asyncio.get_running_loop())
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()

    async def ask(self, kind: str, *what: Any) -> Any:
        """Return what the other side answers. Raises ConnectionError where it goes meanwhile."""
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.say(ASK, number, kind, *what)
        try:
            return await answer
        finally:
            del self._asked[number]

    async def listen(self, handlers: Handlers) -> None:
        """Hand on what the other side says until it has gone. What is asked is answered by what a handler returns."""
        await super().listen({**handlers, ANSWER: self._answered, ASK: partial(self._answer, handlers)})
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError("the other process has ended"))

    def _answered(self, number: int, answer: Any) -> None:
        if (asked := self._asked.get(number)) and not asked.done():
            asked.set_result(answer)

    def _answer(self, handlers: Handlers, number: int, kind: str, *what: Any) -> None:
        async def answer() -> None:
            self.say(ANSWER, number, await handlers[kind](*what))

        answering = asyncio.create_task(answer())
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)


class _ApiServing:
    """The API server process from its start to its end, directed by messages of the other."""

    def __init__(self, target: str, settings: Settings, accepting: Callable[[], socket.socket]) -> None:
        self.target, self.settings, self.accepting = target, settings, accepting
        self.listener: Listener
        self.service: Service
        self.serving: asyncio.Task[None] | None = None
        self.handlers: dict[str, Callable[..., Any]] = {
            "begin": self._begin, "ready": self._turn, "leave": self._leave, "return": self._return,
            "measure": self._measured, "stop": self._stop,
        }  # fmt: skip

    async def run(self, end: socket.socket, jobs: socket.socket, ring: Callable[[], KeyRing]) -> None:
        """Until the listener has ended."""
        self.link, self.client = ControlLink(end), EngineClient(Endpoint(jobs, asyncio.get_running_loop()))
        self.ring, self.tokenizer = ring(), load_tokenizer(self.target)
        beside = [asyncio.create_task(work) for work in (self.ring.follow(), keep_giving_back())]
        await asyncio.gather(self.client.follow(), self.link.listen(self.handlers))
        if self.serving:
            self._leave()  # at once: what came now would find nobody who decodes
            self._stop()
            await self.serving
        for task in beside:
            task.cancel()

    def _begin(self, facts: list[Any]) -> None:
        """Begin to listen, now that the model is loaded."""
        told = Facts(*facts)
        meters = Meters(told.model)
        self.service = Service(told, self.settings, self.client, self.ring, meters, self.tokenizer, self._metrics)
        self.listener = listener(make_app(self.service))
        self.serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        telling = asyncio.create_task(self._tell_listening())
        await self.listener.serve([self.accepting()])
        telling.cancel()
        self.link.close()

    async def _tell_listening(self) -> None:
        while not self.listener.started:
            await asyncio.sleep(POLL_SECONDS)
        self.link.say("listening")

    def _turn(self, ready: bool) -> None:
        self.service.turn(ready)

    def _leave(self) -> None:
        """Leave the port to others: accept no connection any more, and close each when its answer was sent."""
        for server in self.listener.servers:
            server.close()
        for connection in list(self.listener.server_state.connections):
            connection.shutdown()

    def _return(self) -> None:
        """Accept connections again, where the port was left."""
        if not self.listener.servers[0].is_serving():
            self.returning = asyncio.create_task(self.listener.startup([self.accepting()]))

    def _stop(self, force: bool = False) -> None:
        if self.serving:
            self.listener.end(force=force)

    async def _metrics(self) -> bytes:
        text: str = await self.link.ask("metrics", await self._measured())
        return text.encode()

    async def _measured(self) -> str:
        return generate_latest(self.service.meters.registry).decode()
