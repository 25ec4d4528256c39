"""One replica as the front knows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from osd.server.upstream.addresses import ReplicaAddress

FAILURES = 3
"""Failed requests in a row after which a replica gets none until it was found well again."""


class ReplicaState(str, Enum):
    """The life cycle of a replica, as the front sees it.

    DOWN <──> UP <──> DRAINING ──> (removed, once nothing runs there)
      └─> MISFIT
    """

    UP = "up"  # it gets requests
    DOWN = "down"  # it does not answer, or answers that it is not well
    DRAINING = "draining"  # what runs there ends; it gets nothing new
    MISFIT = "misfit"  # it serves another target than the others


@dataclass(slots=True, eq=False)
class UpstreamReplica:
    """A replica, what was found of it, and what it has to do."""

    at: ReplicaAddress
    well: bool = False
    """Whether it was well when it was last asked, and has not failed since."""
    ready: bool = True
    """False while it says that it drains itself."""
    drains: bool = False
    """Whether somebody has asked that it gets nothing new."""
    removed: bool = False
    """Whether it is not named any more: it goes once nothing runs there."""
    misfit: str | None = None
    """How its target differs from the others'; None where it does not."""
    trouble: str | None = None
    """Why it is not well, for people; None where it is."""
    models: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Its cards at /v1/models by the name that clients ask for, its target's first; empty while it was not reached."""
    own: bool = False
    """Whether it is an `osd serve`, which knows osd's own fields."""
    running: int = 0
    """Requests of this front that it has not finished."""
    turn: int = 0
    """When it was last chosen, as a running number."""
    failures: int = 0
    """Failed requests since the last one that was answered."""
    answers: Counter[str] = field(default_factory=Counter)
    """Answers by status class, as 2xx."""
    failed: Counter[str] = field(default_factory=Counter)
    """Failed requests by reason."""

    @property
    def state(self) -> ReplicaState:
        """Whether it gets requests, and if not, why."""
        if self.misfit:
            return ReplicaState.MISFIT
        if not self.well:
            return ReplicaState.DOWN
        return ReplicaState.DRAINING if self.drains or self.removed or not self.ready else ReplicaState.UP

    @property
    def model(self) -> str:
        """The name of its target; empty while it was not reached."""
        return next(iter(self.models), "")

    def found_well(self, models: Mapping[str, dict[str, Any]], *, own: bool, ready: bool) -> None:
        """Note that it answered as it should."""
        self.well, self.trouble, self.failures = True, None, 0
        self.models, self.own, self.ready = models, own, ready

    def found_down(self, trouble: str) -> None:
        """Note that it does not answer as it should."""
        self.well, self.trouble = False, trouble

    def answered(self, status: int) -> None:
        """Count an answer."""
        self.failures = 0
        self.answers[f"{status // 100}xx"] += 1

    def has_failed(self, reason: str, trouble: str) -> None:
        """Count a request that got no whole answer; after several in a row, or one that reached nobody, it is down."""
        self.failed[reason] += 1
        self.failures += 1
        if reason == "unreachable" or self.failures >= FAILURES:
            self.found_down(trouble)

    def facts(self) -> dict[str, Any]:
        """Return what the dashboard and the admin route show."""
        return {
            "name": self.at.name, "url": self.at.url, "draft": self.at.draft, "state": self.state.value,
            "running": self.running, "answered": sum(self.answers.values()), "failed": sum(self.failed.values()),
            "trouble": self.misfit or self.trouble,
        }  # fmt: skip
