"""The replicas of a proxy: what is known of each, which one a request takes, and whether all serve the same target."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from osd.server.upstream.addresses import ReplicaAddress
from storage.records import DEFAULT_DRAFT

log = logging.getLogger(__name__)

FAILURES = 3
"""Failed requests in a row after which a replica gets none until it was found well again."""


class ReplicaState(str, Enum):
    """The life cycle of a replica, as the proxy sees it.

    DOWN <──> UP <──> DRAINING ──> (removed, once nothing runs there)
      └─> MISFIT
    """

    UP = "up"  # it gets requests
    DOWN = "down"  # it does not answer, or answers that it is not well
    DRAINING = "draining"  # what runs there ends; it gets nothing new
    MISFIT = "misfit"  # it serves another target than the others


@dataclass(slots=True, eq=False)
class Replica:
    """A server that requests are passed on to: what was found of it, and what it has to do."""

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
    """Requests of this proxy that it has not finished."""
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

    def answered(self, status: int, *, whole: bool) -> None:
        """Count an answer. ``whole``: whether nothing of it is still to come."""
        self.failures = 0 if whole else self.failures
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


class ReplicaChoice(NamedTuple):
    """The replica that a request takes."""

    replica: Replica
    stands_in: bool
    """Whether it serves another draft than those of the route: slower perhaps, with the same answers."""


class ReplicaPool:
    """The replicas. Belongs to one event loop."""

    def __init__(self, model: str | None = None) -> None:
        """``model``: the name that every replica's target must have; None takes the one that most have."""
        self.replicas: dict[str, Replica] = {}
        self.retries = 0
        """Requests that were sent to another replica before the first byte."""
        self.stood_in: Counter[str] = Counter()
        """Requests that a replica with another draft answered, by route."""
        self._wanted, self._turn = model, 0

    @property
    def model(self) -> str:
        """The name that clients ask for; empty while no replica was reached."""
        if self._wanted:
            return self._wanted
        return _commonest([one.model for one in self.replicas.values() if one.models]) or ""

    @property
    def running(self) -> int:
        """Number of requests that are being answered."""
        return sum(one.running for one in self.replicas.values())

    @property
    def waiting(self) -> int:
        """0: requests wait at the replicas."""
        return 0

    @property
    def finished(self) -> int:
        """Requests that were answered."""
        return sum(sum(one.answers.values()) for one in self.replicas.values())

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """The cards of all models that replicas serve, by name."""
        return {name: card for one in reversed(self.up) for name, card in one.models.items()}

    @property
    def up(self) -> list[Replica]:
        """The replicas that get requests."""
        return [one for one in self.replicas.values() if one.state is ReplicaState.UP]

    def set_addresses(self, addresses: Sequence[ReplicaAddress]) -> None:
        """Take up replicas that are new, and let go of those that are not named any more, once nothing runs there."""
        wanted = {address.name: address for address in addresses}
        for name, replica in list(self.replicas.items()):
            there = wanted.get(name)
            replica.removed = there is None or there.url != replica.at.url
            if replica.removed and not replica.running:
                log.info("%s is let go of", name, extra={"action": "replica_removed"})
                del self.replicas[name]
            elif there is not None and not replica.removed:
                replica.at = there
        for name, address in wanted.items():
            if name not in self.replicas:
                self.replicas[name] = Replica(address)

    def choose(self, drafts: Collection[str] | None, tried: Collection[Replica] = ()) -> ReplicaChoice | None:
        """Return the replica with the fewest running requests among those that serve one of the drafts; else one with
        the default draft; else any, for all serve the same target. None where no other than those that were tried is
        up. ``drafts`` None: all are the same to it."""
        able = [one for one in self.up if one not in tried]
        if drafts is None:
            return ReplicaChoice(self._least(able), False) if able else None
        for group, stands_in in (
            ([one for one in able if one.at.draft in drafts], False),
            ([one for one in able if one.at.draft == DEFAULT_DRAFT], True),
            (able, True),
        ):
            if group:
                return ReplicaChoice(self._least(group), stands_in)
        return None

    def _least(self, group: Sequence[Replica]) -> Replica:
        """Return the one with the fewest running requests; of several the one that was chosen longest ago."""
        found = min(group, key=lambda one: (one.running, one.turn))
        self._turn += 1
        found.turn = self._turn
        return found

    def compare_targets(self) -> None:
        """See whether all replicas serve the same target; those that differ get no requests."""
        known = [one for one in self.replicas.values() if one.models]
        model, digest = self.model, _commonest([one.at.digest for one in known if one.at.digest])
        for one in known:
            before, one.misfit = one.misfit, _misfit(one, model, digest)
            if one.misfit and one.misfit != before:
                log.error("%s", one.misfit, extra={"action": "replica_misfit", "replica": one.at.name})


def _misfit(replica: Replica, model: str, digest: str | None) -> str | None:
    name, served = replica.at.name, replica.model
    if model not in replica.models:
        return (
            f"{name} serves {served!r}, the others {model!r}: all replicas serve one target, so it gets no requests. "
            f"Start it with that model (and --served-model-name {model}), or leave it out."
        )
    if digest and replica.at.digest and replica.at.digest != digest:
        return (
            f"{name} serves a target with other files than the others' (digest {replica.at.digest[:8]}, not "
            f"{digest[:8]}), though both are called {model!r}: it gets no requests. Start it with the same files."
        )
    return None


def _commonest(names: Sequence[str]) -> str | None:
    """Return the name that most have; of several the one that came first."""
    counts = Counter(names)
    return max(counts, key=counts.__getitem__) if counts else None
