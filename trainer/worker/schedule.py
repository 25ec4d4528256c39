"""The training schedule: one turn over the drafts for every nudge.

A turn checks for every draft in the database whether the serving version is worse than its parent, and whether
training is due. It keeps no state that matters, so a nudge that is lost, doubled or late changes nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile

from osd.engine.stats import load_folder
from osd.gamma import needs_head
from osd.recording.tracing import make_tracing
from storage import records
from storage.errors import DraftHeld, LeaseHeld, OsdError, UnknownDraft
from storage.insights.runs import why_none
from storage.names import head_of
from storage.records import RunState, TrainingRun
from storage.settings import Settings
from storage.sql.holders import holder_name
from storage.sql.suspects import RETRY
from storage.store import Store
from storage.versions.feature_kinds import AT_ONCE
from trainer.distil.draft_learner import DraftLearner
from trainer.distil.heirs import judge_waiting_heir
from trainer.distil.loop import MakeLearner, run_once
from trainer.distil.resident import ResidentModels
from trainer.heads.learner import HeadLearner
from trainer.interval import as_it_pays
from trainer.lease import RunControl, Stop, Watcher, ignore
from trainer.routes.discover import RouteDiscovery
from trainer.routes.topics import TopicBackground
from trainer.worker.idle_capacity import IdleCapacity, why_over_budget
from trainer.worker.report import TrainerReport
from trainer.worker.rollback_watch import RollbackWatch
from trainer.worker.trackers import RunTrackers

log = logging.getLogger("osd.trainer")

Runs = list[TrainingRun]

RUNS = 20
"""Newest runs that are searched for failures."""
LONGEST_REST = 300.0
"""Maximum seconds that a draft rests after failed runs."""


class TrainingSchedule:
    """A worker's turns over one store. ``only`` names the one draft that it trains; None trains all."""

    def __init__(self, store: Store, settings: Settings, stop: Stop, only: str | None = None) -> None:
        settings = as_it_pays(settings)
        self.store, self.settings, self.stop, self.only = store, settings, stop, only
        self.holder = holder_name()
        self.resident = ResidentModels(settings.trainer.resident_mb)
        self.spare = IdleCapacity(settings.trainer, load_folder(store.directory))
        self.tracing = make_tracing(settings.trace, "osd-trainer")
        learn = settings.learn.model_dump()
        self.trackers = RunTrackers(settings.trainer.trackers, store.directory / "trackers", learn)
        self.report = TrainerReport(store, settings.fleet, self.holder)
        self._watches: dict[str, RollbackWatch] = {}
        self._told: dict[str, str] = {}
        self._kept_at = 0.0
        self._discovery, self._background = RouteDiscovery(store, settings), TopicBackground(store)

    def take_turn(self, watcher: Watcher = ignore) -> list[TrainingRun]:
        """Take one turn and return its runs; an error with one draft is logged and does not stop the others."""
        runs: Runs = []
        for draft in self.drafts():
            if self.stop.is_set():
                break
            runs += self._tried(self.train, draft, watcher)
            if trains_head(self.settings):
                runs += self._tried(self.train_head, draft, watcher)
        self._keep(ended=bool(runs))
        if self.only is None:
            self._background.take_if_due()
            self._discovery.search_if_due(self.stop)
        return runs

    def _keep(self, *, ended: bool) -> None:
        """Apply retention: to drafts' weights when a run ``ended`` one, to all every ``retention.every_seconds``."""
        retention, due = self.settings.retention, records.now() - self._kept_at >= self.settings.retention.every_seconds
        if due:
            self._kept_at = records.now()
        try:
            if due or ended:
                self._tell_ended("versions", len(self.store.version_keeper.retain(retention.versions).versions))
            if due and not retention.keeps_all:
                self._tell_ended("requests", self.store.keeper.retain(retention).purged.requests)
                self.store.keeper.compact(retention.compact_requests)
        except OsdError as error:
            log.error("%s", error, extra={"action": "retention_failed"})

    def _tell_ended(self, what: str, count: int) -> None:
        if count:
            log.info("retention ended %d %s", count, what, extra={"action": "retained", what: count})

    def _tried(self, train: Callable[[str, Watcher], TrainingRun | None], draft: str, watcher: Watcher) -> Runs:
        try:
            run = train(draft, watcher)
        except (LeaseHeld, DraftHeld) as error:
            self._tell(draft, str(error))
        except UnknownDraft:
            pass  # no server has given it weights yet
        except OsdError as error:
            log.error("%s", error, extra={"action": "turn_failed", "draft": draft})
        else:
            return [run] if run else []
        return []

    def train_all(self, draft: str) -> Runs:
        """Train one draft, and its acceptance head where heads are trained. Raises what both raise."""
        runs = [self.train(draft), self.train_head(draft) if trains_head(self.settings) else None]
        return [run for run in runs if run]

    def train(self, draft: str, watcher: Watcher = ignore) -> TrainingRun | None:
        """Check one draft's live acceptance and train it if that is due; None when not. Raises as :func:`run_once`."""
        if hold := self.store.decisions.holds().get(draft):
            self._tell(draft, f"no training: {draft} is {hold.words}; `osd drafts resume {draft}` lets it learn again")
            return None
        judge_waiting_heir(self.store, self.settings, draft, self.resident.teachers)
        watch = self._watches.setdefault(draft, RollbackWatch(self.store, self.settings, draft, self.resident.teachers))
        watch.compare_if_due()
        if self._is_resting(draft):
            return None
        if reason := self._why_not(draft):
            self._tell(draft, f"no training: {reason}")
            return None
        control = RunControl(
            self.stop, self.report.training(draft, self.trackers.watching(draft, watcher)),
            lambda: self.report.why_not() or self.spare.why_not_go_on(), not self._is_resting(draft, retries=True),
        )  # fmt: skip
        with self._told_of(draft), closing_report(self.report):
            return self._run(draft, control, DraftLearner)

    def _run(self, draft: str, control: RunControl, learner: MakeLearner) -> TrainingRun | None:
        run = run_once(self.store, self.settings, draft, self.holder, control, self.resident, learner)
        if run is not None:
            log.info("%s", describe(run), extra={"action": "run_ended", "run": run.id, "state": run.state.value})
        return run

    @contextmanager
    def _told_of(self, draft: str) -> Iterator[None]:
        """Trace a run of the draft that ends within the context, however it ends, and tell the trackers."""
        before = self._newest(draft)
        try:
            yield
        finally:
            run = self._newest(draft)
            ours = run and run.holder == self.holder and (before is None or before.id != run.id)
            if self.tracing and run and ours:
                self.tracing.run(run)
            if self.trackers.names:
                self.trackers.ended(run if ours else None)

    def _newest(self, draft: str) -> TrainingRun | None:
        if not (self.tracing or self.trackers.names):
            return None
        try:
            return next(iter(self.store.runs.list(draft, limit=1)), None)
        except OsdError:
            return None

    def train_head(self, draft: str, watcher: Watcher = ignore) -> TrainingRun | None:
        """Train one draft's acceptance head if that is due. Raises as :func:`run_once`."""
        if self.settings.serve.record != "verified":
            self._tell(head_of(draft), "no acceptance head is trained: that needs serve.record = verified")
            return None
        if self.store.versions.current(draft).kind in AT_ONCE:
            self._tell(head_of(draft), "no acceptance head is trained: Medusa's heads read nothing that they drafted")
            return None
        if self._is_resting(head_of(draft)) or self._why_not(draft):
            return None
        head = head_of(draft)
        with self._told_of(head):
            return self._run(draft, RunControl(self.stop, self.trackers.watching(head, watcher)), HeadLearner)

    def _why_not(self, draft: str) -> str | None:
        """Return why no run may begin; None where one may."""
        reason = self.report.paused or self.spare.why_not_begin()
        return reason or why_over_budget(self.store, self.settings.trainer, draft)

    def drafts(self) -> list[str]:
        """Return the lines of the drafts that routes lead to, by name; with ``learn.follow = "successor"`` without
        those of targets that were left for another."""
        if self.only is not None:
            return self.store.versions.lines([self.only]) or [self.only]
        lines = self.store.versions.lines({route.draft for route in self.store.routes.list()})
        left = self.store.targets.left() if self.settings.learn.follow == "successor" else ()
        return [line for line in lines if self.store.versions.target_of(line) not in left]

    def _is_resting(self, draft: str, *, retries: bool = False) -> bool:
        """Return whether a draft rests after failures: twice as long each time, so that a fault does not keep a core
        busy.

        ``retries`` counts those of suspects too, which delay nothing else.
        """
        runs = [run for run in self.store.runs.list(draft, limit=RUNS) if retries or not run.settings.get(RETRY)]
        failed = list(takewhile(_has_failed, runs))
        if not failed:
            return False
        rest = min(LONGEST_REST, self.settings.trainer.poll_seconds * 2.0 ** len(failed))
        return 0 <= records.now() - (failed[0].finished_at or 0.0) < rest  # below 0 a clock was set back

    def _tell(self, draft: str, message: str) -> None:
        """Log why a draft is not trained, once and not every second."""
        who = re.sub(r"[\d.]+", "", message.split(" until ")[0])
        self.report.note(message)
        if self._told.get(draft) != who:
            self._told[draft] = who
            log.info("%s", message, extra={"action": "lease_held", "draft": draft})


@contextmanager
def closing_report(report: TrainerReport) -> Iterator[None]:
    """Note at the end of the context that no run is under way."""
    try:
        yield
    finally:
        report.ended()


def trains_head(settings: Settings) -> bool:
    """Return whether acceptance heads are trained beside the drafts (``learn.head``)."""
    return settings.learn.head == "on" or (settings.learn.head == "auto" and needs_head(settings.gamma))


def _has_failed(run: TrainingRun) -> bool:
    """Return whether a run failed, other than by being stopped."""
    return run.state is RunState.FAILED and not run.result.get("stopped")


def describe(run: TrainingRun) -> str:
    """Describe a run in a sentence."""
    facts = run.result
    evidence = facts.get("evidence", {})
    head = f"{run.draft}: {run.state.value} {run.version or ''}".rstrip()
    why = why_none(run.state.value, facts)
    end = f" ({why})" if why else ""
    if "kl_after" in evidence:
        return (
            f"{head}: binary KL {evidence['kl_before']:.4f} → {evidence['kl_after']:.4f} on {evidence['requests']} "
            f"requests, {facts['tokens']} drafted tokens trained on in {facts['seconds']:.1f} s{end}"
        )
    if "after" not in evidence:
        return f"{head}{end or ' (no reason given)'}"
    return (
        f"{head}: acceptance {evidence['before']:.3f} → {evidence['after']:.3f} on {evidence['requests']} requests, "
        f"{facts['requests']} trained on in {facts['seconds']:.1f} s{end}"
    )
