"""Prometheus metrics of a front's replicas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from osd.server.metrics import families as m
from osd.server.metrics.families import Family, FamilySet

if TYPE_CHECKING:
    from osd.server.upstream.pool import ReplicaPool


class UpstreamCollector:
    """A collector for prometheus_client."""

    def __init__(self, pool: ReplicaPool) -> None:
        self.pool = pool

    def describe(self) -> Iterable[Family]:
        """Return the families without samples."""
        return FamilySet(m.UPSTREAM).families.values()

    def collect(self) -> Iterable[Family]:
        """Return all families."""
        sheet, pool = FamilySet(m.UPSTREAM), self.pool
        for name, replica in list(pool.replicas.items()):
            sheet.add(m.REPLICA_UP, replica.state.value == "up", name, replica.at.draft)
            sheet.add(m.REPLICA_RUNNING, replica.running, name)
            for status, count in list(replica.answers.items()):
                sheet.add(m.REPLICA_ANSWERS, count, name, status)
            for reason, count in list(replica.failed.items()):
                sheet.add(m.REPLICA_FAILURES, count, name, reason)
        for route, count in list(pool.stood_in.items()):
            sheet.add(m.UPSTREAM_STOOD_IN, count, route)
        sheet.add(m.UPSTREAM_RETRIES, pool.retries)
        return sheet.families.values()
