"""Training runs in TensorBoard, Weights & Biases or MLflow, by accelerate's trackers (``trainer.trackers``).

Where they send runs, and whether anywhere, their own variables say: ``WANDB_MODE=offline``, ``MLFLOW_TRACKING_URI``.
What lies on this machine lies in ``trackers`` in the data directory. They are told losses, counts, settings and names,
and nothing of a request. A tracker that fails costs its own record of the run, and no run.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
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
        self._names, self._folder, self._settings = names, folder, settings
        self._open: dict[str, Any] | None = None
        """accelerate's trackers of the run under way; None before it begins."""

    def __bool__(self) -> bool:
        return bool(self._names)

    def watching(self, draft: str, watcher: Watcher) -> Watcher:
        """Return a watcher that tells the trackers every loss; their run begins with the first."""

        def watch(progress: DistilProgress) -> None:
            if self._open is None:
                self._begin(draft)
            values = {"loss": progress.loss, "positions_per_second": progress.positions_per_second}
            self._tell(lambda tracker: tracker.log(values, step=progress.step))
            watcher(progress)

        return watch if self else watcher

    def ended(self, run: TrainingRun | None) -> None:
        """Tell what came of a run, and end theirs; None where it is another's by now, or none began."""
        if run is not None:
            if self._open is None:  # it ended before its first step
                self._begin(run.draft)
            self._tell(lambda tracker: tracker.log(measures(run), step=run.result.get("steps") or 0))
            self._tell(lambda tracker: tracker.store_init_configuration(outcome(run)))
        self._tell(lambda tracker: tracker.finish())
        self._open = None

    def _begin(self, draft: str) -> None:
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState(cpu=True)  # accelerate's log asks for it; who trains is none of its concern
        self._folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{self._folder / 'mlflow.db'}")
        title = time.strftime(f"{draft}-%Y%m%d-%H%M%S")
        options: dict[str, Any] = {
            "tensorboard": {"run_name": title, "logging_dir": self._folder},
            "wandb": {"run_name": PROJECT, "name": title, "dir": str(self._folder)},
            "mlflow": {"experiment_name": PROJECT, "run_name": title, "logging_dir": str(self._folder / "mlflow")},
        }
        self._open = {name: LOGGER_TYPE_TO_CLASS[name](**options[name]) for name in self._names}
        self._tell(lambda tracker: tracker.start())
        told = {name: value for name, value in self._settings.items() if isinstance(value, str | int | float)}
        self._tell(lambda tracker: tracker.store_init_configuration({"draft": draft, **told}))

    def _tell(self, what: Callable[[Any], None]) -> None:
        """Tell each tracker; one that raises is told no more of this run."""
        for name, tracker in list((self._open or {}).items()):
            try:
                what(tracker)
            except Exception as error:  # a service elsewhere: whatever it raises is no fault of the run's
                log.warning("%s was not told of a run: %s", name, error, extra={"action": "tracker_failed"})
                (self._open or {}).pop(name)


def measures(run: TrainingRun) -> dict[str, float]:
    """Return what came of a run in numbers."""
    evidence, result = run.result.get("evidence") or {}, run.result
    found = {name: evidence[key] for key, name in EVIDENCE.items() if evidence.get(key) is not None}
    found |= {name: result[name] for name in RESULT if result.get(name) is not None}
    duration = (run.finished_at or run.heartbeat_at) - run.started_at
    return found | {"duration_seconds": duration, "published": int(run.state is RunState.PUBLISHED)}


def outcome(run: TrainingRun) -> dict[str, str]:
    """Return what came of a run in words."""
    facts = {
        "run": run.id, "parent": run.parent, "version": run.version, "verdict": run.state.value,
        "reason": why_none(run.state.value, run.result),
    }  # fmt: skip
    return {name: fact for name, fact in facts.items() if fact is not None}
