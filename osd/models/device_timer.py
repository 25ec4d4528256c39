"""Timers that are right also where the device runs behind the host."""

from __future__ import annotations

import time
from itertools import pairwise
from types import TracebackType
from typing import Any

import torch


class Clock:
    """Times the two halves of a round: ``with clock: draft; clock.split(); verify``, then ``first_ms`` and
    ``second_ms``."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(3 * on_gpu)]  # type: ignore[no-untyped-call]
        self._times = [0.0, 0.0, 0.0]
        self._ended = 0.0
        self.first_ms = 0.0
        """Milliseconds before the split."""
        self.second_ms = 0.0
        """Milliseconds after it."""

    def __enter__(self) -> Clock:
        self._mark(0)
        return self

    def split(self) -> None:
        """End the first half."""
        self._mark(1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mark(2)
        if self._events:
            self._events[2].synchronize()
            self.first_ms, self.second_ms = (self._events[i].elapsed_time(self._events[i + 1]) for i in (0, 1))
        else:
            self.first_ms, self.second_ms = (1e3 * (self._times[i + 1] - self._times[i]) for i in (0, 1))
        self._ended = time.perf_counter()

    def since_ms(self) -> float:
        """Return the milliseconds that the host has spent since the end."""
        return 1e3 * (time.perf_counter() - self._ended)

    def _mark(self, index: int) -> None:
        if self._events:
            self._events[index].record()
        else:
            self._times[index] = time.perf_counter()


class Laps:
    """Times things that follow one another; read when all is over."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[Any] = []

    def begin(self) -> None:
        """Begin the first lap."""
        self._marks.clear()
        self.end_one()

    def end_one(self) -> None:
        """End a lap and begin the next."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def read(self) -> list[float]:
        """Wait for the device and return the milliseconds of each lap."""
        if self._on_gpu:
            self._marks[-1].synchronize()
            return [float(a.elapsed_time(b)) for a, b in pairwise(self._marks)]
        return [1e3 * (b - a) for a, b in pairwise(self._marks)]
