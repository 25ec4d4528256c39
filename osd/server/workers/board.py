"""What the processes behind one port know of each other: a file of a page, mapped into all of them.

Each number has one writer, and 8 bytes of its own, so nothing has to be locked. A number that is read while
it changes is the old or the new one; the lines tell who has less to do, and nothing hangs on their being exact.
"""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

LINE = struct.Struct("=6q")
NUMBER = struct.Struct("=q")
NAME = "board"


class Phase(IntEnum):
    """The life of a process in its seat."""

    EMPTY = 0
    STARTING = 1
    SERVING = 2
    DRAINING = 3


class Line(NamedTuple):
    """One process."""

    pid: int = 0
    phase: int = Phase.EMPTY
    connections: int = 0
    running: int = 0
    """Requests in its engine."""
    waiting: int = 0
    """Requests in its line."""
    taken_at: int = 0
    """When it last took a connection, in nanoseconds of the machine's monotonic clock."""

    @property
    def load(self) -> int:
        """What it has to do: an idle connection may bring a request, a request keeps a row."""
        return self.connections + self.running + self.waiting

    def is_behind(self, other: Line) -> bool:
        """Whether the other should take the next connection: it has less to do, or as much and took one longer ago."""
        return (other.load, other.taken_at) < (self.load, self.taken_at)


class Board:
    """The lines, by seat from 0 on."""

    def __init__(self, folder: Path, seats: int) -> None:
        """Made where it is not there yet."""
        self.seats = seats
        self.file = (folder / NAME).open("a+b")
        self.file.truncate(seats * LINE.size)
        self._map = mmap.mmap(self.file.fileno(), seats * LINE.size)

    def read(self) -> list[Line]:
        """All lines."""
        return [Line(*LINE.unpack_from(self._map, seat * LINE.size)) for seat in range(self.seats)]

    def write(self, seat: int, **changes: int) -> None:
        """These numbers of a line: one's own, or, for the parent, that of one who has ended."""
        for name, value in changes.items():
            NUMBER.pack_into(self._map, seat * LINE.size + Line._fields.index(name) * NUMBER.size, value)

    def close(self) -> None:
        """Leave the file."""
        self._map.close()
        self.file.close()
