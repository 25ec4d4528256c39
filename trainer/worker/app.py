"""The Celery application, and the worker process that `python -m trainer worker` becomes.

The broker only nudges: a message says "take a turn" and carries nothing else. Every worker nudges itself each
``trainer.poll_seconds`` with a timer of its own, so no beat runs beside it, and a message that the broker loses,
doubles or delays is made up for by the next one. While there is no broker at all, the training process polls by itself.
Others may send the same message to be served at once.

One child process trains (prefork, one at a time). The parent stays responsive while a batch is computed: it answers
the broker's heartbeats and takes signals, and a child that is killed for its memory is replaced.
"""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import signal
import warnings
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.exceptions import SecurityWarning
from celery.worker import state
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError

from storage.errors import SchemaOutdated, StoreWriteFailed
from storage.settings import Settings
from storage.sql.drivers import parse_url, show_url
from trainer.gpus import device_class
from trainer.shutdown import AnyOf, Orphaned
from trainer.worker.broker import require_broker, require_url
from trainer.worker.filesystem_broker import Transport, node_name
from trainer.worker.priority import lower_priority
from trainer.worker.tasks import TURN, TrainingProcess

log = logging.getLogger("osd.trainer")

BROKER_POLL_SECONDS = 0.1
"""Interval at which brokers that must be polled (the file system's) are."""
GRACE_SECONDS = 30.0
"""After the end of its time a turn may take so long to end in order; then its process is killed."""


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


def run_worker(settings: Settings, draft: str | None = None) -> int:
    """Work until SIGTERM or Ctrl-C, which end a run under way politely; return the exit status.

    It ends by itself where the database's schema has become newer than this osd. Raises BadSetting for a broker that
    permanently refuses it.
    """
    app = make_app(settings)
    require_broker(app)
    outdated = equip(app, settings, draft)
    with warnings.catch_warnings(action="ignore", category=SecurityWarning):  # root is usual in a container
        worker = app.Worker(
            pool="prefork", quiet=True, loglevel="WARNING", hostname=node_name(),
            without_gossip=True, without_mingle=True, without_heartbeat=True,
        )  # fmt: skip
    where = (settings.trainer.broker and app.connection().as_uri()) or "files in the data directory"
    log.info("waiting for work; broker: %s; Ctrl-C ends", where, extra={"action": "worker_started"})
    worker.start()
    log.info("ended", extra={"action": "worker_ended"})
    asked = state.should_stop is not None and state.should_terminate is None  # Celery calls Ctrl-C a failure
    return SchemaOutdated.exit_code if outdated.is_set() else 0 if asked else int(worker.exitcode or 0)


def equip(app: Celery, settings: Settings, draft: str | None = None) -> Event:
    """Give the application its task, and a worker of it what it needs; called in the worker's parent process. Return
    the event that is set when the worker ends because the database's schema is too new."""
    stop, outdated = (multiprocessing.get_context("fork").Event() for _ in range(2))
    parent = os.getpid()

    def give_up() -> None:
        outdated.set()
        os.kill(parent, signal.SIGTERM)

    trainee = TrainingProcess(settings, AnyOf(stop, Orphaned()), draft, give_up)
    app.task(name=TURN)(trainee.turn)
    signals.worker_process_init.connect(trainee.watch_over, weak=False)
    signals.worker_process_shutdown.connect(trainee.close, weak=False)
    connect_signals(app, settings, stop)
    return outdated


def connect_signals(app: Celery, settings: Settings, stop: Event) -> None:
    """Lower a worker's priority, start a nudging timer with it, and pass its shutdown to the child, whose run then
    gives its requests back."""
    ticker = Ticker(app, settings)

    def give_way(**_: Any) -> None:
        lower_priority(settings.trainer)

    def ask_to_stop(**_: Any) -> None:
        stop.set()

    signals.worker_init.connect(give_way, weak=False)
    signals.worker_ready.connect(ticker.start, weak=False)
    signals.worker_shutting_down.connect(ask_to_stop, weak=False)


class Ticker:
    """Nudges this worker while it is idle."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self._entry: Any = None

    def start(self, sender: Any, **_: Any) -> None:
        """Start the timer once the consumer (``sender``) is ready, again after it has lost its broker."""
        if self._entry is not None:
            self._entry.cancel()
        self._entry = sender.timer.call_repeatedly(self.settings.trainer.poll_seconds, self.tick)
        self.tick()

    def tick(self) -> None:
        """Send a nudge unless a turn is under way: it would only wait and expire."""
        if state.reserved_requests:
            return
        try:
            nudge(self.app, self.settings, class_queue(self.settings))
        except OperationalError as error:
            log.warning("the broker does not answer: %s", error, extra={"action": "nudge_failed"})


def _transport_options(settings: Settings) -> dict[str, Any]:
    """Return the file system broker's folders, below the data directory."""
    if settings.trainer.broker is not None:
        return {}
    folder = broker_folder(settings)
    messages, control = folder / "messages", folder / "control"
    for path in (messages, control):
        _make(path)
    return {
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "processed_folder": str(control),
        "control_folder": str(control),
        "store_processed": False,
        "polling_interval": BROKER_POLL_SECONDS,
    }


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreWriteFailed(path=path, reason=error.strerror or str(error)) from error
