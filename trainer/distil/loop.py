"""One training run of one draft: claim → collate → distil → gate → publish.

    trainer.distil.data    requests to train on and to judge by
    trainer.distil.checkpoints     loading and writing of models
    trainer.distil.distil      training itself
    trainer.distil.gate        is it better?
    trainer.distil.publish     publishes or rejects the candidate
    trainer.lease       keeps others from training this draft meanwhile

All state is in the database: a run that dies at any point leaves its lease to run
out, and the next one claims the same requests.

A few requests move a draft less than the gate can tell from chance. So training goes on from a candidate that was
too close to call, and the next one is again compared with what serves: gains add up until they are proven, and
what is not proven is never served.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, cast

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from osd.hotswap.servable import require_servable, require_servable_features
from osd.models.features.base import FeatureDraft
from osd.models.features.target import FeatureTarget
from osd.models.pair import serving_dtype
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
from storage.names import draft_of
from storage.records import DraftVersion, RunState, TrainingRun
from storage.settings import Settings
from storage.store import Store
from trainer.devices import training_device
from trainer.distil.checkpoints import load_current, load_trainable, positions_of, stored_as, vocab_size
from trainer.distil.data import Readable, call_judges, gather
from trainer.distil.distil import DistilProgress
from trainer.distil.draft_vocabulary import follow_traffic
from trainer.distil.gate import as_served, hear, judge
from trainer.distil.lessons import learning_of
from trainer.distil.optimizer import Memory, adamw, moments_of
from trainer.distil.processes import distil_as_set
from trainer.distil.publish import (
    kind_trained,
    reject_abandoned,
    rejected_on_error,
    settle,
    stage,
    where_to_start,
)
from trainer.distil.resident import ResidentModels
from trainer.distil.step import NotFinite
from trainer.interval import claim_terms, head_terms
from trainer.lease import Lease, RunCancelled, RunStopped
from trainer.shutdown import Stop

log = logging.getLogger("osd.trainer")

Watcher = Callable[[DistilProgress], None]
AS_CANDIDATE = {"positions": "verified", "sampling": "teacher"}
"""What a candidate learns of others' traffic: which tokens were refused there says nothing of its own."""


def run_once(
    store: Store,
    settings: Settings,
    draft: str,
    holder: str,
    stop: Stop | None = None,
    watcher: Watcher = lambda _: None,
    memory: Memory | None = None,
    retry: bool = True,
    why_not: Callable[[], str | None] = lambda: None,
    resident: ResidentModels | None = None,
) -> TrainingRun | None:
    """Train a draft on the requests waiting for it, else on new ones of routes that it might serve and does not; None
    when nothing is due.

    The returned run is PUBLISHED, REJECTED, FAILED (stopped by ``stop``) or LOST (another worker took the draft over;
    nothing of this run remains). ``watcher`` is called with the progress of training; ``memory`` holds the optimizer's
    moments between the runs of one process, ``resident`` their models. ``retry`` is as in ``store.runs.claim``. While
    ``why_not`` returns a reason, the run pauses. Raises LeaseHeld while another worker trains the draft, DraftHeld
    while people hold it, UnknownDraft, and for a failed run, whose requests are free again: TrainingFailed,
    WeightsDamaged (the version is quarantined), StoreError.
    """
    settings = of_draft(store, settings, draft)
    run = store.runs.claim(draft, holder, **claim_terms(store, settings, draft), retry=retry)
    if run is None and _is_candidate(store, draft):
        settings = settings.model_copy(update={"learn": settings.learn.model_copy(update=AS_CANDIDATE)})
        run = store.runs.claim_beside(draft, draft, holder, **head_terms(store, settings, draft))
    if run is None:
        return None
    lease = Lease(store, run, settings.trainer.lease_seconds, stop, why_not)
    kept = memory or Memory(), resident or ResidentModels()
    return conduct(store, run, lambda: _train(store, settings, run, lease, watcher, *kept))


def _is_candidate(store: Store, draft: str) -> bool:
    """Return whether there is a route that a draft might serve and does not."""
    own = draft_of(draft)
    return any(own in route.candidates and route.draft != own for route in store.routes.list())


def of_draft(store: Store, settings: Settings, draft: str) -> Settings:
    """Return the settings with the draft's own overrides of ``[learn]``. Raises UnknownDraft."""
    own = store.versions.options(draft)
    return settings.model_copy(update={"learn": settings.learn.model_copy(update=own)}) if own else settings


def conduct(store: Store, run: TrainingRun, train: Callable[[], TrainingRun]) -> TrainingRun:
    """Run ``train``, and end the run in order when that fails; returns and raises as :func:`run_once`."""
    try:
        return train()
    except LeaseLost as error:
        log.warning("%s", error, extra={"action": "run_lost", "run": run.id})
        return store.runs.get(run.id)
    except (RunStopped, DraftHeld) as error:
        return _fail(store, run, str(error), stopped=True)
    except RunCancelled as error:
        log.warning("training run %s: %s", run.id, error, extra={"action": "run_cancelled", "run": run.id})
        return store.runs.finish(run, RunState.REJECTED, result={"reason": str(error)})
    except WeightsDamaged as error:
        _fail(store, run, str(error))
        _quarantine(store, error)
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
        _fail(store, run, reason, blame=True)
        raise TrainingFailed(run=run.id, draft=run.draft, reason=reason) from error


def _train(
    store: Store, settings: Settings, run: TrainingRun, lease: Lease, watcher: Watcher, memory: Memory,
    resident: ResidentModels,
) -> TrainingRun:  # fmt: skip
    """Train, judge and settle a claimed run."""
    device = training_device(settings.trainer)
    reject_abandoned(store, run)
    parent = store.versions.get(run.parent)
    learn = learning_of(settings.learn, parent)
    lessons = resident.teachers.lessons(store, settings, parent, device)
    shared = None if lessons is None else lessons.teacher.shared
    start = where_to_start(store, run, learn.method)
    candidate = resident.take_trained(start, device)
    if candidate is None or isinstance(candidate, PeftModel) is not (learn.method == "lora"):
        candidate = load_trainable(store, start, learn, device, shared)
    readable = Readable(vocab_size(candidate), positions_of(candidate), lessons)
    material = gather(store, run, learn, readable)
    facts: dict[str, Any] = {"started_from": start.id, **material.counts}
    if not material.positions(learn):
        what = "tokens behind a refused one" if learn.sampling == "student" else f"{learn.positions} positions"
        reason = f"none of the requests has {what} to learn from"
        return store.runs.finish(run, RunState.REJECTED, result={**facts, "reason": reason})

    def between(progress: DistilProgress) -> None:
        lease.keep()
        watcher(progress)

    kept = store.versions.folder(parent)  # a version is stored in its parent's number type
    served = partial(as_served, dtype=_dtype_served(store, settings, parent, candidate, shared))
    current = resident.serving(parent, device) or served(load_current(store, parent, device, shared))
    # a request judges before it is trained on: what serves against the line of training so far
    known = start.id != parent.id
    judged = served(stored_as(candidate, kept)) if known else None
    first = hear(current, judged, material.claimed, lease.keep, lessons) if judged else None
    if isinstance(candidate, FeatureDraft) and shared is not None:
        facts |= follow_traffic(store, run.draft, candidate, shared, learn.draft_vocabulary)
    optimizer = adamw(candidate, learn, memory.recall(run.draft, start.id))
    teacher = None if lessons is None else lessons.teacher
    done = distil_as_set(candidate, material.all, learn, between, optimizer, settings.trainer, lease.keep, teacher)
    facts |= asdict(done)
    lease.keep()
    facts["paused_seconds"] = round(lease.paused, 2)
    version = stage(store, run, candidate, kind_trained(parent, learn.method), facts, shared)

    with rejected_on_error(store, version):
        tested = len(material.claimed) if first else 0
        judges = call_judges(store, run, material, settings.gate, readable, tested)
        stored = stored_as(candidate, kept).train(False)
        second = hear(current, served(stored), judges.all, lease.keep, lessons)
        verdict = judge([first, second], settings.gate)
        verdict.evidence.update(judges.counts, tested_first=tested)
        lease.renew()
        memory.keep(run.draft, version.id, moments_of(optimizer))
        proof = partial(_prove, store, version, stored, shared)
        ended = settle(store, run, version, verdict, facts | {"evidence": verdict.evidence}, proof)
        serving = (version.id, _copied(served(stored), candidate)) if verdict.better else (parent.id, current)
        resident.keep(run.draft, serving, (version.id, candidate))
        return ended


def _dtype_served(
    store: Store, settings: Settings, parent: DraftVersion, candidate: nn.Module, shared: FeatureTarget | None
) -> torch.dtype:
    """Return the type of number that servers compute the draft in; a feature draft is computed in its target's."""
    if isinstance(candidate, FeatureDraft) and shared is not None:
        return shared.head.weight.dtype
    return serving_dtype(settings.serve, store.versions.folder(store.versions.lineage(parent.id)[-1]))


def _prove(store: Store, version: DraftVersion, judged: nn.Module, shared: FeatureTarget | None) -> None:
    """Load what is to be published as servers do, and compare it with what the gate measured."""
    if isinstance(judged, FeatureDraft):
        assert shared is not None
        require_servable_features(store, version, judged, shared)
    else:
        require_servable(store, version, cast(PreTrainedModel, judged))


def _copied(served: nn.Module, candidate: nn.Module) -> nn.Module | None:
    """Return a model that training of the candidate does not change; None for an adapter: merging changes its base."""
    if isinstance(candidate, PeftModel):
        return None
    return (copy.deepcopy(served) if served is candidate else served).requires_grad_(False)


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


def _quarantine(store: Store, error: WeightsDamaged) -> None:
    with suppress(StoreError):
        store.versions.quarantine(str(error.facts["version"]), str(error))
