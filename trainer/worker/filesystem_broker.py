"""A Celery broker without a server: kombu's file system transport, with messages that appear whole.

kombu writes a message under its final name, so a reader can meet it half-written, which ends a worker: this
transport is not asynchronous, Celery runs its timers in a thread, and osd's timer puts while the main thread gets. Here
a message is written aside and renamed, and an unreadable one is skipped: the next nudge makes up for it.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
from kombu.exceptions import ChannelError
from kombu.transport import filesystem
from kombu.utils.json import dumps


def node_name() -> str:
    """Return the name of this process's worker among Celery's nodes."""
    return f"osd-{os.getpid()}@{socket.gethostname()}"


def has_ended(queue: str) -> bool:
    """Return whether a queue is that of a worker of this machine, by :func:`node_name`, that lives no more."""
    named = re.match(rf"osd-(\d+)@{re.escape(socket.gethostname())}\.", queue)
    return named is not None and not psutil.pid_exists(int(named[1]))


class Channel(filesystem.Channel):
    """A file system channel that puts messages whole."""

    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override]  # as kombu itself has it
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        folder = Path(self.data_folder_out)
        aside = folder / f"{name}.aside"
        try:
            aside.write_text(dumps(payload), encoding="utf-8")  # type: ignore[no-untyped-call]
            os.replace(aside, folder / name)
        except OSError as error:
            raise ChannelError(f"{folder / name} cannot be written ({error.strerror})") from error

    def _put_fanout(self, exchange: str, payload: Any, routing_key: str, **options: Any) -> None:
        """Ask every live worker (``celery status``): what an ended one is sent would lie there for ever."""
        for bound in self.get_table(exchange):  # type: ignore[no-untyped-call]
            if not has_ended(bound.queue):
                self._put(bound.queue, payload, **options)

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        try:
            return super()._get(queue)  # type: ignore[no-untyped-call]
        except ValueError as error:
            raise Empty from error


class Transport(filesystem.Transport):
    """The transport over that channel; Celery's ``broker_transport`` takes its name."""

    Channel = Channel
