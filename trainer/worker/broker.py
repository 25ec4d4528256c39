"""The Celery application, its queues and its broker.

The broker only nudges: a message says "take a turn" and carries nothing else.

Without a server the broker is kombu's file system transport, with messages that appear whole. kombu writes a message
under its final name, so a reader can meet it half-written, which ends a worker: this transport is not asynchronous,
Celery runs its timers in a thread, and osd's timer puts while the main thread gets. Here a message is written aside and
renamed, and an unreadable one is skipped: the next nudge makes up for it.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any
from urllib.parse import urlsplit

import psutil
from amqp.exceptions import AccessRefused, NotAllowed
from celery import Celery
from kombu.entity import Exchange, Queue
from kombu.exceptions import ChannelError, OperationalError
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps

from storage.distribution import install_extra
from storage.errors import BadSetting
from storage.files.files import writing
from storage.settings import Settings
from storage.sql.drivers import parse_url, show_url
from trainer.gpus import device_class

TURN = "osd.turn"
"""Name of the task."""
BROKER_POLL_SECONDS = 0.1
"""Interval at which brokers that must be polled (the file system's) are."""
GRACE_SECONDS = 30.0
"""After the end of its time a turn may take so long to end in order; then its process is killed."""
CONNECT_SECONDS = 5.0
RIGHT = "give redis://HOST:6379/0 or amqp://USER:PASSWORD@HOST//, or none for files in the data directory"
REFUSED = (AccessRefused, NotAllowed)


def make_app(settings: Settings) -> Celery:
    """Create the application: JSON only, no results, of each store a queue for all its workers and one for those of a
    device class. Raises StoreWriteFailed, BadSetting."""
    if settings.trainer.broker is not None:
        require_url(settings.trainer.broker)
    app = Celery("osd", set_as_current=False)
    limit, names = settings.trainer.turn_seconds, (queue_name(settings), class_queue(settings))
    app.conf.update(
        broker_url=settings.trainer.broker or "filesystem://localhost",
        broker_transport=None if settings.trainer.broker else f"{Transport.__module__}:{Transport.__qualname__}",
        broker_transport_options=_transport_options(settings),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_default_queue=queue_name(settings),
        task_queues=[_queue(name) for name in names],
        task_time_limit=None if limit is None else limit + GRACE_SECONDS,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        worker_concurrency=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
    )
    return app


def queue_name(settings: Settings) -> str:
    """Return the name of the queue that only workers of one store share: its database and its samples' place."""
    kept = settings.storage
    samples = kept.samples or (kept.data_directory().absolute() / "segments").as_posix()
    store = f"{show_url(parse_url(kept.database_url()))}\n{samples}"
    return f"osd-{hashlib.sha256(store.encode()).hexdigest()[:8]}"


def _queue(name: str) -> Queue:
    return Queue(name, Exchange(name), routing_key=name)  # type: ignore[no-untyped-call]


def class_queue(settings: Settings) -> str:
    """Return the name of the queue that only the store's workers on GPUs share, or only those on the CPU."""
    return f"{queue_name(settings)}.{device_class(settings.trainer.device)}"


def broker_folder(settings: Settings) -> Path:
    """Return the folder of the file system broker."""
    return settings.storage.data_directory().expanduser().absolute() / "broker"


def nudge(app: Celery, settings: Settings, queue: str | None = None) -> None:
    """Ask one of the store's workers for a turn, or of those that share a queue; the message expires once the next one
    is due. Raises OperationalError."""
    app.send_task(TURN, queue=queue, expires=2 * settings.trainer.poll_seconds, retry=False)


def _transport_options(settings: Settings) -> dict[str, Any]:
    """Return the file system broker's folders, below the data directory."""
    if settings.trainer.broker is not None:
        return {}
    folder = broker_folder(settings)
    messages, control = folder / "messages", folder / "control"
    for path in (messages, control):
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
    return {
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "processed_folder": str(control),
        "control_folder": str(control),
        "store_processed": False,
        "polling_interval": BROKER_POLL_SECONDS,
    }


def require_url(url: str) -> None:
    """Raise BadSetting for a URL of no broker, without repeating what may contain a password."""
    try:
        scheme, _port = urlsplit(url).scheme, urlsplit(url).port
    except ValueError as error:
        raise _bad(f"it is no URL ({error}); {RIGHT}") from None
    if scheme.partition("+")[0] not in TRANSPORT_ALIASES:
        raise _bad(f"{scheme or 'a URL without a scheme'} is not known to Celery; {RIGHT}")


def connect_once(app: Celery) -> None:
    """Connect to the broker once.

    Raises BadSetting for a broker that refuses this login, OperationalError or OSError for one that is unreachable,
    ImportError where its client is not installed.
    """
    with app.connection_for_write(connect_timeout=CONNECT_SECONDS) as connection:
        try:
            connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
        except REFUSED as error:
            what = "the user, password or virtual host is refused"
            raise _bad(f"{connection.as_uri()}: {what} ({error.reply_text}); correct it") from None


def require_broker(app: Celery) -> None:
    """Raise BadSetting for what waiting does not mend. A broker that is unreachable is waited for."""
    try:
        connect_once(app)
    except (OperationalError, OSError):
        return
    except ImportError as error:
        raise _bad(f"{error}; install the broker's client, {install_extra('redis')}") from None


def _bad(reason: str) -> BadSetting:
    return BadSetting(source="settings", key="trainer.broker", reason=reason)


def ping(settings: Settings) -> dict[str, Any]:
    """Return ``ok``, ``found`` (a sentence without passwords) and, when something is wrong, ``mend``."""
    if settings.trainer.broker is None:
        return _ping_files(broker_folder(settings))
    try:
        app = make_app(settings)
        where = app.connection_for_write().as_uri()
        connect_once(app)
    except BadSetting as error:
        return {"ok": False, "found": str(error), "mend": "correct trainer.broker"}
    except (OperationalError, OSError) as error:
        return {"ok": False, "found": f"{where}: {error}", "mend": "check trainer.broker and that the broker runs"}
    except ImportError as error:
        return {"ok": False, "found": str(error), "mend": "install the broker's client (extra redis)"}
    return {"ok": True, "found": where}


def _ping_files(folder: Path) -> dict[str, Any]:
    """Check that the file system broker's folder, or its nearest existing parent, can be written."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        mend = "set storage.directory to a folder of yours, or trainer.broker"
        return {"ok": False, "found": f"{there} is no folder that can be written", "mend": mend}
    return {"ok": True, "found": "files in the data directory (no server needed)"}


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
