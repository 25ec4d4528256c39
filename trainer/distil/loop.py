"""One training run: claim → collate → distil → gate → publish.

What is trained is a :class:`Learner`: a draft (:mod:`trainer.distil.draft_learner`), or its acceptance head
(:mod:`trainer.heads.learner`).

All state is in the database: a run that dies at any point leaves its lease to run out, and the next one claims the same
requests.

A few requests move a draft less than the gate can tell from chance. So training goes on from a candidate that was
too close to call, and the next one is again compared with what serves: gains add up until they are proven, and
what is not proven is never served.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from storage.errors import (
    CannotDecrypt,
    DraftHeld,
    LeaseLost,
    OsdError,
    SegmentDamaged,
    StoreError,
    TrainingFailed,
    WeightsDamaged,
)
from storage.records import DraftVersion, RunState, TrainingRun
from storage.settings import Settings
from storage.store import Store
from trainer.distil.draft_learner import DraftLearner
from trainer.distil.gate import GateDecision
from trainer.distil.publish import reject_abandoned, rejected_on_error, settle
from trainer.distil.resident import ResidentModels
from trainer.distil.step import NotFinite, NothingToLearn
from trainer.lease import Lease, RunCancelled, RunControl, RunStopped

log = logging.getLogger("osd.trainer")

Facts = dict[str, Any]
"""What a run's result says, ready for JSON."""


class Learner(Protocol):
    """What one run trains, from claim to publish. Each step may raise StoreError, and what ``lease`` raises."""

    settings: Settings

    def claim(self, holder: str, *, retry: bool) -> TrainingRun | None:
        """Claim the requests of a run that is due; None when none is. Raises LeaseHeld, DraftHeld, UnknownDraft."""

    def collate(self, run: TrainingRun, lease: Lease) -> Facts:
        """Load what is trained and what serves, and gather the requests. Raises NothingToLearn."""

    def distil(self, lease: Lease) -> Facts:
        """Train the candidate, once the claimed requests have judged what it was before. Raises NotFinite."""

    def stage(self, facts: Facts) -> DraftVersion:
        """Write the candidate."""

    def judge(self, lease: Lease) -> GateDecision:
        """Compare the candidate with what serves."""

    def culprits(self) -> list[str]:
        """Return the requests, learners or judges, that are known to have made a step fail."""

    def prove(self, version: DraftVersion) -> None:
        """Load what is to be published as servers do, and raise where that is not what was judged."""

    def remember(self, version: DraftVersion) -> None:
        """Keep the optimizer's moments for the run that goes on from this candidate."""

    def keep(self, version: DraftVersion, verdict: GateDecision) -> None:
        """Keep in memory what the next run needs."""


MakeLearner = Callable[[Store, Settings, str, ResidentModels], Learner]


def run_once(
    store: Store, settings: Settings, draft: str, holder: str, control: RunControl | None = None,
    resident: ResidentModels | None = None, learner: MakeLearner = DraftLearner,
) -> TrainingRun | None:  # fmt: skip
    """Train a draft, or with another ``learner`` what belongs to it; None when nothing is due.

    The returned run is PUBLISHED, REJECTED, FAILED (stopped by ``control.stop``) or LOST (another worker took the draft
    over; nothing of this run remains). ``resident`` holds models and moments between the runs of one process. Raises
    LeaseHeld while another worker trains the draft, DraftHeld while people hold it, UnknownDraft, and for a failed run,
    whose requests are free again: TrainingFailed, WeightsDamaged (the version is quarantined), StoreError.
    """
    control = control or RunControl()
    learns = learner(store, settings, draft, resident or ResidentModels())
    run = learns.claim(holder, retry=control.retry)
    if run is None:
        return None
    lease = Lease(store, run, settings.trainer.lease_seconds, control)
    return _conduct(store, run, lambda: _train(store, learns, run, lease), learns.culprits)


def _train(store: Store, learner: Learner, run: TrainingRun, lease: Lease) -> TrainingRun:
    """Train, judge and settle a claimed run."""
    began = time.process_time()
    reject_abandoned(store, run)
    facts = learner.collate(run, lease)
    facts |= learner.distil(lease)
    lease.keep()
    facts["paused_seconds"] = round(lease.paused, 2)
    version = learner.stage(facts)
    with rejected_on_error(store, version):
        verdict = learner.judge(lease)
        lease.renew()
        learner.remember(version)
        facts["processor_seconds"] = round(time.process_time() - began, 2)
        ended = settle(store, run, version, verdict, facts, partial(learner.prove, version))
        learner.keep(version, verdict)
        return ended


def _conduct(
    store: Store, run: TrainingRun, train: Callable[[], TrainingRun], culprits: Callable[[], list[str]]
) -> TrainingRun:
    """Run ``train``, and end the run in order when that fails; returns and raises as :func:`run_once`."""
    try:
        return train()
    except LeaseLost as error:
        log.warning("%s", error, extra={"action": "run_lost", "run": run.id})
        return store.runs.get(run.id)
    except (RunStopped, DraftHeld) as error:
        return _fail(store, run, str(error), stopped=True)
    except NothingToLearn as error:
        return store.runs.finish(run, RunState.REJECTED, result={**error.facts, "reason": str(error)})
    except RunCancelled as error:
        log.warning("training run %s: %s", run.id, error, extra={"action": "run_cancelled", "run": run.id})
        return store.runs.finish(run, RunState.REJECTED, result={"reason": str(error)})
    except WeightsDamaged as error:
        _fail(store, run, str(error))
        with suppress(StoreError):
            store.versions.quarantine(str(error.facts["version"]), str(error))
        raise
    except SegmentDamaged as error:
        _fail(store, run, str(error))
        _set_aside(store, error)
        raise
    except OsdError as error:
        _fail(store, run, str(error), blame=isinstance(error, CannotDecrypt))
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, NotFinite) else f"{type(error).__name__}: {error}"
        if known := culprits():
            with suppress(StoreError):
                store.suspects.set_aside(known, reason)
            reason = f"{reason} (set aside: {', '.join(known)})"
        _fail(store, run, reason, blame=not known)
        raise TrainingFailed(run=run.id, draft=run.draft, reason=reason) from error


def _fail(store: Store, run: TrainingRun, reason: str, *, blame: bool = False, **facts: bool) -> TrainingRun:
    """End the run as FAILED and free its requests, as suspects if ``blame``; if that cannot be written the lease
    expires."""
    log.warning("training run %s ended: %s", run.id, reason, extra={"action": "run_failed", "run": run.id})
    try:
        return store.runs.finish(run, RunState.FAILED, result={"reason": reason, **facts}, blame=blame)
    except OsdError as error:
        log.error("%s", error, extra={"action": "run_not_ended", "run": run.id})
        return run


def _set_aside(store: Store, error: SegmentDamaged) -> None:
    """Set aside the requests of an unreadable segment: it would fail every run, as judges too."""
    with suppress(StoreError):
        count = store.suspects.set_aside_segment(str(error.facts["segment"]), str(error))
        log.warning("%d requests were set aside: %s", count, error, extra={"action": "set_aside"})
