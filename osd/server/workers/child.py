"""One of the processes behind a port; :mod:`osd.server.workers.parent` starts it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from osd.cli.out import note
from osd.cli.pair import choose_pair
from osd.cli.serve import key_ring, leave_a_core, serve_pair, tell_log
from osd.server.process.listen import Ports
from osd.server.workers.order import Order, Posting, unpacked
from osd.server.workers.seat import Seat
from storage.errors import OsdError
from storage.settings import Settings, load_settings
from storage.store import open_store


def main(text: str) -> int:
    """Serve until told to stop, or until the parent has gone; the exit status."""
    signal.signal(signal.SIGTERM, _terminated)
    order, posting = unpacked(text)
    try:
        tell_log()
        changes = {name: dict(each) for name, each in order.changes.items()}
        return _serve(order, posting, leave_a_core(load_settings(order.config, **changes), posting.seats))
    except OsdError as error:
        note(f"osd: {error}")
        return error.exit_code


def _serve(order: Order, posting: Posting, settings: Settings) -> int:
    names = choose_pair(settings.serve, order.target, order.draft, alone=True)
    ports = Ports(socket.socket(fileno=posting.api), socket.socket(fileno=posting.admin))
    seat = Seat(Path(posting.folder), posting.seat, posting.seats, os.getpid())
    with open_store(settings) as store:
        ring = key_ring(store, settings, required=order.required)
        return serve_pair(
            names, settings, store, ring, ports, lambda: None, seat=seat, replaces=posting.replaces, parted=_parted
        )


def _parted(drain: Callable[[], None]) -> None:
    """Drain when the parent's end of standard input is closed: it was killed."""
    loop = asyncio.get_running_loop()

    def gone() -> None:
        loop.remove_reader(sys.stdin.fileno())
        drain()

    loop.add_reader(sys.stdin.fileno(), gone)


def _terminated(number: int, _frame: FrameType | None) -> None:
    """Before it listens there is nothing to drain."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
