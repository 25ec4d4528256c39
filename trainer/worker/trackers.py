"""Training runs in TensorBoard, Weights & Biases or MLflow, by accelerate's trackers (``trainer.trackers``).

Where they send runs, and whether anywhere, their own variables say: ``WANDB_MODE=offline``, ``MLFLOW_TRACKING_URI``.
What lies on this machine lies in ``trackers`` in the data directory. They are told losses, counts, settings and names,
and nothing of a request. A tracker that fails or is slow costs its own record of the run, and no run.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from storage.errors import BadSetting
from storage.insights.runs import why_none
from storage.records import RunState, TrainingRun
from trainer.distil.distil import DistilProgress
from trainer.lease import Watcher

log = logging.getLogger("osd.trainer")

PROJECT = "osd"
SECONDS = 20.0
"""How long a trainer that ends waits for what is still to be told."""
EVIDENCE = {"before": "acceptance_before", "after": "acceptance_after", "difference": "gain", "lower": "gain_lower"}
"""What the gate says -> its name in a tracker."""
RESULT = ("seconds", "requests", "positions", "steps", "loss_first", "loss_last")


class RunTrackers:
    """Tells trackers of one training run after another: a run of theirs for each."""

    def __init__(self, names: Sequence[str], folder: Path, settings: dict[str, Any]) -> None:
        """``settings``: what runs learn with. Raises BadSetting for a tracker that is not installed."""
        for name in names:
            if find_spec(name) is None:
                reason = f"{name} is not installed: pip install {name}, or leave it out"
                raise BadSetting(source="settings", key="trainer.trackers", reason=reason)
        self.names, self._folder, self._settings = names, folder, settings
        self._began, self._step = False, 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="osd-trackers")  # who trains waits for no service
        self._open: dict[str, Any] = {}
        """accelerate's trackers of the run under way; the thread's own."""

    def close(self) -> None:
        """Wait until all is told, but not for ever."""
        with suppress(TimeoutError):
            self._thread.submit(lambda: None).result(SECONDS)

    def watching(self, draft: str, watcher: Watcher) -> Watcher:
        """Return a watcher that tells the trackers every loss; their run begins with the first."""

        def watch(progress: DistilProgress) -> None:
            self._begin(draft)
            self._step = progress.step
            values = {"loss": progress.loss, "positions_per_second": progress.positions_per_second}
            self._tell(lambda tracker: tracker.log(values, step=progress.step))
            watcher(progress)

        return watch if self.names else watcher

    def ended(self, run: TrainingRun | None) -> None:
        """Tell what came of a run, and end theirs; None where it is another's by now, or none began."""
        if run is not None:
            step = self._step
            self._begin(run.draft)
            self._tell(lambda tracker: tracker.log(measures(run), step=step))
            self._tell(lambda tracker: tracker.store_init_configuration(outcome(run)))
        if self._began:
            self._tell(lambda tracker: tracker.finish())
        self._began, self._step = False, 0

    def _begin(self, draft: str) -> None:
        """Begin a run of theirs, unless it has begun."""
        if self._began:
            return
        self._began = True
        self._thread.submit(self._make, time.strftime(f"{draft}-%Y%m%d-%H%M%S"))
        told = {name: value for name, value in self._settings.items() if isinstance(value, str | int | float)}
        self._tell(lambda tracker: tracker.start())
        self._tell(lambda tracker: tracker.store_init_configuration({"draft": draft, **told}))

    def _make(self, title: str) -> None:
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState(cpu=True)  # accelerate's log asks for it; who trains is none of its concern
        self._folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{self._folder / 'mlflow.db'}")
        options: dict[str, Any] = {
            "tensorboard": {"run_name": title, "logging_dir": self._folder},
            "wandb": {"run_name": PROJECT, "name": title, "dir": str(self._folder)},
            "mlflow": {"experiment_name": PROJECT, "run_name": title, "logging_dir": str(self._folder / "mlflow")},
        }
        self._open = {name: LOGGER_TYPE_TO_CLASS[name](**options[name]) for name in self.names}

    def _tell(self, what: Callable[[Any], None]) -> None:
        """Tell each tracker, in the thread; one that raises is told no more of this run."""

        def tell() -> None:
            for name, tracker in list(self._open.items()):
                try:
                    what(tracker)
                except Exception as error:  # a service elsewhere: whatever it raises is no fault of the run's
                    log.warning("%s was not told of a run: %s", name, error, extra={"action": "tracker_failed"})
                    del self._open[name]
                    with suppress(Exception):
                        tracker.finish()

        self._thread.submit(tell)


def measures(run: TrainingRun) -> dict[str, float]:
    """Return what came of a run in numbers."""
    evidence, result = run.result.get("evidence") or {}, run.result
    found = {name: evidence[key] for key, name in EVIDENCE.items() if evidence.get(key) is not None}
    found |= {name: result[name] for name in RESULT if result.get(name) is not None}
    duration = (run.finished_at or run.heartbeat_at) - run.started_at
    return found | {"duration_seconds": duration, "published": int(run.state is RunState.PUBLISHED)}


def outcome(run: TrainingRun) -> dict[str, str]:
    """Return what came of a run in words."""
    facts = {"run": run.id, "parent": run.parent, "version": run.version, "verdict": run.state.value}
    facts["reason"] = why_none(run.state.value, run.result)
    return {name: fact for name, fact in facts.items() if fact}
