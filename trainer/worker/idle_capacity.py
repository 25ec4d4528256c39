"""Whether a run may begin or go on: spare capacity of this machine's engines, its processor and its GPUs, and a budget.

engines     none on the device that trains may be busy in more than ``trainer.spare_busy`` of its samples, nor have
            more than ``trainer.spare_queue`` waiting requests (the load report); always met where there are none
processor   share of all cores that other processes use, by psutil; ``trainer.spare_cpu`` at most
GPU         by NVML where it is installed (extra ``gpu``): utilisation and free memory, before a run begins. Within a
            run they would be its own

With ``trainer.device = "spare"`` the GPU is chosen anew before each run, and on a GPU the processor does not count. A
run whose GPU was taken by engines pauses, and after ``MOVE_SECONDS`` gives its requests back if another GPU has
capacity to spare: the next one begins there.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from osd.engine.stats import loads
from storage import records
from storage.errors import BadSetting
from storage.insights.recent import summed
from storage.insights.service import Answers
from storage.outcomes.outcome_window import Window
from storage.settings import TrainerSettings
from storage.settings.learning import SPARE
from storage.sql.outcome_tables import OutcomeRow
from storage.store import Store
from trainer.devices import SPARE_GPUS, training_device, training_places, why_full
from trainer.gpus import visible_gpus
from trainer.lease import RunStopped

LOOK_SECONDS = 0.02
"""Maximum age in seconds of a measurement: files are not read more often between two slices."""
CPU_SECONDS = 0.5
"""Minimum seconds over which the processor's share is averaged."""
MOVE_SECONDS = 10.0
"""Seconds that a run waits for its GPU before another one is looked for, and between two such looks."""


class IdleCapacity:
    """One training process's view of its machine."""

    def __init__(self, settings: TrainerSettings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._chooses = settings.device == SPARE and torch.cuda.is_available()
        self._cpu = OthersShare()
        self._looked_at, self._free_at = -1.0, time.monotonic()
        self._reason: str | None = None

    def why_not(self) -> str | None:
        """Return why the device that trains is needed now; None where it is not. Cheap enough to call between
        slices."""
        if not self._settings.gives_way:
            return None
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._reason = next(filter(None, map(self._engines, self._here())), None) or self._processor()
            self._looked_at = time.monotonic()
        return self._reason

    def why_not_go_on(self) -> str | None:
        """Return why the run under way must wait; None where it need not. Raises RunStopped where a run would have a
        GPU sooner."""
        reason, now = self.why_not(), time.monotonic()
        if self._chooses and reason is None:
            SPARE_GPUS.computed()
            self._free_at = now
        elif self._chooses and now - self._free_at >= MOVE_SECONDS:
            self._free_at = now
            if SPARE_GPUS.least_used(self._settings, self._engines)[1] is None:
                raise RunStopped(f"{reason}; another GPU has capacity to spare, and the next run begins there")
        return reason

    def why_not_begin(self) -> str | None:
        """Return why no run may begin; None where one may. Chooses the GPU of the next run where ``trainer.device``
        asks for it. Raises BadSetting where that cannot be done."""
        if not self._chooses:
            return self.why_not() or (self._gpu() if self._settings.gives_way else None)
        self._free_at, self._looked_at = time.monotonic(), -1.0
        return SPARE_GPUS.choose(self._settings, self._engines) or self.why_not()

    def _here(self) -> list[str]:
        """Return the devices that train."""
        if self._chooses:
            return [gpu.uuid for gpu in SPARE_GPUS.places]
        return training_places(self._settings)

    def _engines(self, device: str) -> str | None:
        for load in loads(self._folder):
            if not load.is_on(device):
                continue
            if load.waiting > self._settings.spare_queue:
                return f"{load.waiting} requests wait for a row"
            if load.busy > self._settings.spare_busy:
                return f"an engine is busy {load.busy:.0%} of the time"
        return None

    def _processor(self) -> str | None:
        if self._chooses and not self._settings.spare:
            return None
        share = self._cpu.share()
        return f"others take {share:.0%} of the processor" if share > self._settings.spare_cpu else None

    def _gpu(self) -> str | None:
        """Return what is against the GPU that the settings name; nothing where NVML does not tell."""
        device = training_device(self._settings)
        if device.type == "cuda":
            with suppress(BadSetting, IndexError):
                return why_full(visible_gpus()[device.index or 0], self._settings)
        return None


class OthersShare:
    """The share of all cores that other processes use, 0 to 1."""

    def __init__(self) -> None:
        self._process, self._share = psutil.Process(), 0.0
        self._before = self._now()

    def share(self) -> float:
        """Return the share over at least the last half second; 0 before that."""
        before, now = self._before, self._now()
        if now[0] - before[0] >= CPU_SECONDS:
            self._before = now
            seconds = (now[0] - before[0]) * (psutil.cpu_count() or 1)
            self._share = min(1.0, max(0.0, (now[1] - before[1] - (now[2] - before[2])) / seconds))
        return self._share

    def _now(self) -> tuple[float, float, float]:
        """Return (wall clock, busy time of all cores, CPU time of this process), all in seconds."""
        every, own = psutil.cpu_times(), self._process.cpu_times()
        idle = every.idle + getattr(every, "iowait", 0.0) + getattr(every, "guest", 0.0)
        return time.monotonic(), sum(every) - idle, own.user + own.system


HOUR = 3600.0
RUNS = 10_000
"""Maximum number of runs of the last hour that are read."""


def why_over_budget(store: Store, settings: TrainerSettings, draft: str) -> str | None:
    """Return why the budget lets no run of the draft begin; None where it does.

    A run under way may finish, so a limit is exceeded by one run at most. Raises StoreError.
    """
    limit = settings.seconds_per_hour
    if limit is not None and (spent := spent_in_the_last_hour(store)) >= limit:
        return f"training took {spent:.0f} s of the last hour, and trainer.seconds_per_hour is {limit:g}"
    if settings.share is not None:
        decoded = sum(summed(store.db, ("draft_ms", "verify_ms"), OutcomeRow.finished_at >= records.now() - HOUR)) / 1e3
        if (spent := spent_in_the_last_hour(store)) > settings.share * decoded:
            return f"training took {spent:.0f} s of an hour that decoded {decoded:.0f} s (trainer.share)"
    if settings.never_more_than_saved and (gain := net_gain(store, draft)) is not None and gain < 0:
        return f"training has cost {-gain:.0f} s more than it saved (trainer.never_more_than_saved)"
    return None


def spent_in_the_last_hour(store: Store) -> float:
    """Return the seconds of all runs of this store, from claim to end, or to the last heartbeat of unfinished ones."""
    now = records.now()
    ends = [(run.started_at, run.finished_at or run.heartbeat_at) for run in store.runs.list(limit=RUNS)]
    return sum(max(0.0, end - max(begin, now - HOUR)) for begin, end in ends)


def net_gain(store: Store, draft: str) -> float | None:
    """Return decode seconds saved − training seconds, as `osd stats gain` does; None where unknown or nothing was
    served."""
    rows = Answers(store).cost(Window(draft=draft)).rows
    return next((row.net_gain_seconds for row in rows if row.draft == draft), None)
