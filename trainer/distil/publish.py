"""Staging of a candidate with its provenance, and publishing or rejecting it on the gate's verdict."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from osd.models.features.target import FeatureTarget
from storage.distribution import osd_version
from storage.errors import OsdError
from storage.records import DraftVersion, RunState, TrainingRun, VersionState
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS
from trainer.distil.checkpoints import write_model
from trainer.distil.gate import GateDecision

RECENT = 10
"""Number of runs in which to look for one that was judged."""


def stage(
    store: Store, run: TrainingRun, model: nn.Module, kind: str, result: Mapping[str, Any],
    shared: FeatureTarget | None = None,
) -> DraftVersion:  # fmt: skip
    """Write the trained model as this run's CANDIDATE; a feature draft is one for the target ``shared``. Raises
    StoreWriteFailed, with nothing left on the disk."""
    parent, base = store.versions.folder(store.versions.get(run.parent)), store.versions.lineage(run.parent)[-1].digest
    facts = provenance(dict(run.settings), holder=run.holder, distilled=dict(result))
    return store.versions.stage(
        run.draft,
        run.parent,
        kind,
        lambda folder: write_model(model, folder, parent, base, shared),
        run_id=run.id,
        provenance=facts,
    )


def kind_trained(parent: DraftVersion, method: str) -> str:
    """Return the kind of version that training of a draft makes: ``method``'s, or the feature draft's own."""
    return parent.kind if parent.kind in FEATURE_KINDS else method


def where_to_start(store: Store, run: TrainingRun, method: str) -> DraftVersion:
    """Return the version to continue from: the last candidate if it was too close to call, else the parent.

    A candidate counts when it was judged against the version that still serves, was not found worse, and is of the
    kind that ``method`` trains. One that was promoted by hand and taken back does not.
    """
    parent, judged = store.versions.get(run.parent), (RunState.PUBLISHED, RunState.REJECTED)
    ended = (r.version for r in store.runs.list(run.draft, limit=RECENT) if r.state in judged and r.version)
    if (version := next(ended, None)) is None:
        return parent
    last = store.versions.get(version)
    close = last.state is VersionState.REJECTED and last.evidence.get("worse") is False and last.deleted_at is None
    goes_on = close and last.parent == parent.id and last.kind == kind_trained(parent, method)
    return last if goes_on else parent


def settle(
    store: Store,
    run: TrainingRun,
    candidate: DraftVersion,
    verdict: GateDecision,
    result: Mapping[str, Any],
    prove: Callable[[], object],
) -> TrainingRun:
    """Publish the candidate or reject it, and end the run; its ``result`` is kept with the evidence.

    ``prove`` loads what is to be published as servers do, and raises where that is not what the gate measured. Raises
    LeaseLost when another worker has the draft, and WrongState when the version that the candidate was
    compared with is no longer current.
    """
    result = {**result, "evidence": verdict.evidence}
    if not verdict.better:
        store.versions.reject(candidate.id, verdict.evidence)
        return store.runs.finish(run, RunState.REJECTED, candidate.id, result)
    prove()
    store.versions.publish(candidate.id, verdict.evidence, run=run)
    return store.runs.finish(run, RunState.PUBLISHED, candidate.id, result)


@contextmanager
def rejected_on_error(store: Store, candidate: DraftVersion) -> Iterator[None]:
    """Reject a candidate whose run ends by an error before the verdict; a published one stays."""
    try:
        yield
    except Exception as error:
        with suppress(OsdError):
            store.versions.reject(candidate.id, {"reason": str(error) or type(error).__name__})
        raise


def reject_abandoned(store: Store, run: TrainingRun) -> list[str]:
    """Reject candidates that a killed worker left unjudged; called by the run that holds the draft now.

    Only the previous run is checked: each run cleans up after its predecessor.
    """
    previous = [r for r in store.runs.list(run.draft, limit=2) if r.id != run.id]
    if not previous or previous[0].state is not RunState.LOST:
        return []
    waiting = (v for v in store.versions.list(run.draft) if v.state is VersionState.CANDIDATE)
    left = [v for v in waiting if v.run_id not in (None, run.id)]  # an heir is no run's, and waits for its own judge
    for version in left:
        store.versions.reject(version.id, {"reason": "its worker was lost before the gate judged it"})
    return [version.id for version in left]


def provenance(settings: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return osd's version, the commit it runs from if it is a checkout, the command, and the settings of the run."""
    return {"osd": osd_version(), "commit": commit(), "command": sys.argv, "settings": settings, **facts}


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Return the commit of the checkout that this file belongs to; None when it is installed elsewhere."""
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "-C", str(here), "ls-files", "--error-unmatch", "--full-name", Path(__file__).name, "-z"],
            capture_output=True, timeout=5, check=False,
        )  # fmt: skip
        if answer.returncode:
            return None
        head = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, timeout=5, check=True)
        return head.stdout.decode().strip()
    except (OSError, subprocess.SubprocessError):
        return None
