"""Requests whose output must match a grammar wait until that is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

from osd.server.core.messages import EngineJob
from osd.verification.grammar import CompiledGrammar
from storage.errors import OsdError
from storage.sampling import Grammar


class GrammarQueue:
    """The jobs of calls whose grammar is being compiled: a call has one for all. Not thread-safe."""

    def __init__(self, prepare: Callable[[Grammar], Future[CompiledGrammar]]) -> None:
        self._prepare = prepare
        self._waiting: list[tuple[list[EngineJob], Future[CompiledGrammar]]] = []

    def __len__(self) -> int:
        return sum(len(jobs) for jobs, _ in self._waiting)

    def put(self, grammar: Grammar, jobs: list[EngineJob]) -> None:
        """Compile a call's grammar."""
        self._waiting.append((jobs, self._prepare(grammar)))

    def take(self) -> Iterator[tuple[list[EngineJob], OsdError | None]]:
        """Yield the jobs of each call whose grammar is compiled by now, or the error of one that cannot be."""
        waiting, self._waiting = self._waiting, []
        for jobs, future in waiting:
            if not jobs:  # they were ended meanwhile
                continue
            if not future.done():  # asked once: it may be done by the next look
                self._waiting.append((jobs, future))
                continue
            error = None
            try:
                for job in jobs:
                    job.compiled = future.result()
            except OsdError as refused:
                error = refused
            yield jobs, error

    def remove(self, job: EngineJob) -> bool:
        """Remove a job; return whether it was there."""
        found = next((jobs for jobs, _ in self._waiting if job in jobs), None)
        if found is not None:
            found.remove(job)
        return found is not None
