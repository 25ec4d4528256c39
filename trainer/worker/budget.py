"""The training budget: device-seconds an hour, and no more than training has saved."""

from __future__ import annotations

from storage import records
from storage.insights.service import Answers
from storage.outcomes.outcome_window import Window
from storage.settings import TrainerSettings
from storage.store import Store

HOUR = 3600.0
RUNS = 10_000
"""Maximum number of runs of the last hour that are read."""


class Budget:
    """The budget, checked before a run begins. A run under way may finish, so a limit is exceeded by one run at
    most."""

    def __init__(self, store: Store, settings: TrainerSettings) -> None:
        self._store, self._settings = store, settings

    def why_not(self, draft: str) -> str | None:
        """Return why no run of the draft may begin; None where one may. Raises StoreError."""
        limit = self._settings.seconds_per_hour
        if limit is not None and (spent := spent_in_the_last_hour(self._store)) >= limit:
            return f"training took {spent:.0f} s of the last hour, and trainer.seconds_per_hour is {limit:g}"
        if self._settings.never_more_than_saved and (gain := net_gain(self._store, draft)) is not None and gain < 0:
            return f"training has cost {-gain:.0f} s more than it saved (trainer.never_more_than_saved)"
        return None


def spent_in_the_last_hour(store: Store) -> float:
    """Return the seconds of all runs of this store, from claim to end, or to the last heartbeat of unfinished ones."""
    now = records.now()
    ends = [(run.started_at, run.finished_at or run.heartbeat_at) for run in store.runs.list(limit=RUNS)]
    return sum(max(0.0, end - max(begin, now - HOUR)) for begin, end in ends)


def net_gain(store: Store, draft: str) -> float | None:
    """Return decode seconds saved − training seconds, as `osd stats cost` does; None where unknown or nothing was
    served."""
    rows = Answers(store).cost(Window(draft=draft)).rows
    return next((row.net_gain_seconds for row in rows if row.draft == draft), None)
