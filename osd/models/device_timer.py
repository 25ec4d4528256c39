"""Timers that are right also where the device runs behind the host, and names of devices that mean the same in every
process of a machine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise
from types import TracebackType
from typing import Any

import torch
from torch import nn

busy_seconds = time.thread_time if time.get_clock_info("thread_time").resolution < 1e-4 else time.perf_counter
"""Seconds for which this thread had the processor: what a pass takes whoever else wants it."""


class Clock:
    """Times the two halves of a round: ``with clock: draft; clock.split(); verify``, then ``first_ms`` and
    ``second_ms``."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(3 * on_gpu)]  # type: ignore[no-untyped-call]
        self._times = [0.0, 0.0, 0.0]
        self._busy = [0.0, 0.0, 0.0]
        self._ended = 0.0
        self.first_ms = self.second_ms = 0.0
        """Milliseconds before the split and after it."""
        self.first_busy_ms = self.second_busy_ms = 0.0
        """The same without those in which the processor did something else; on a GPU the same."""

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
            self.first_busy_ms, self.second_busy_ms = self.first_ms, self.second_ms
        else:
            self.first_ms, self.second_ms = (1e3 * (self._times[i + 1] - self._times[i]) for i in (0, 1))
            self.first_busy_ms, self.second_busy_ms = (1e3 * (self._busy[i + 1] - self._busy[i]) for i in (0, 1))
        self._ended = busy_seconds()

    def since_ms(self) -> float:
        """Return the milliseconds that the host has spent since the end, as :attr:`second_busy_ms`."""
        return 1e3 * (busy_seconds() - self._ended)

    def _mark(self, index: int) -> None:
        if self._events:
            self._events[index].record()
        else:
            self._times[index], self._busy[index] = time.perf_counter(), busy_seconds()


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
            self._marks.append(busy_seconds())

    def read(self) -> list[float]:
        """Wait for the device and return the milliseconds of each lap."""
        if self._on_gpu:
            self._marks[-1].synchronize()
            return [float(a.elapsed_time(b)) for a, b in pairwise(self._marks)]
        return [1e3 * (b - a) for a, b in pairwise(self._marks)]


def device_id(device: torch.device) -> str:
    """Return a GPU's UUID, whatever its ordinal is in this process; of other devices the type (``cpu``)."""
    if device.type != "cuda":
        return device.type
    return str(torch.cuda.get_device_properties(device).uuid)


def device_ids(modules: Iterable[nn.Module]) -> tuple[str, ...]:
    """Return the devices that the modules' weights are on, each once."""
    places = {weight.device for module in modules for weight in module.parameters()}
    return tuple(sorted(device_id(place) for place in places if place.type != "meta"))
