"""The worker process that `python -m trainer worker` becomes, and the training process below it.

Every worker nudges itself each ``trainer.poll_seconds`` with a timer of its own, so no beat runs beside it, and a
message that the broker loses, doubles or delays is made up for by the next one. While there is no broker at all, the
training process polls by itself. Others may send the same message to be served at once.

One child process trains (prefork, one at a time). The parent stays responsive while a batch is computed: it answers
the broker's heartbeats and takes signals, and a child that is killed for its memory is replaced.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import warnings
from multiprocessing.synchronize import Event
from typing import Any

from celery import Celery, signals
from celery.exceptions import SecurityWarning
from celery.worker import state
from kombu.exceptions import OperationalError

from storage.errors import SchemaOutdated
from storage.settings import Settings
from trainer.lease import AnyOf, Orphaned
from trainer.worker.broker import TURN, class_queue, make_app, node_name, nudge, require_broker
from trainer.worker.tasks import TrainingProcess

log = logging.getLogger("osd.trainer")


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
    """Start a nudging timer with a worker, and pass its shutdown to the child, whose run then gives its requests
    back."""
    ticker = Ticker(app, settings)

    def ask_to_stop(**_: Any) -> None:
        stop.set()

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
