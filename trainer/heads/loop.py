"""One training run of a draft's acceptance head: claim → embed → fit → gate → publish, as :mod:`trainer.distil.loop`.

A head has versions, runs and a lease of its own, under the name ``<draft>.head``. It learns from the draft's requests
beside the draft: what it takes stays free for the draft's runs. Number 0 is a head that only knows the mean; it is
made when the first ``learn.interval_requests`` requests are there.

The embeddings are those of the draft version that is current. When the draft's weights change the head goes on, and
its next run embeds everything anew with the new weights.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from osd.models.acceptance_head import AcceptanceHead, HeadConfig, load_head, save_head
from osd.models.pair import choose_device
from storage.errors import HeadNotLoaded, StoreError, UnknownDraft, WeightsDamaged
from storage.names import head_of
from storage.records import DraftVersion, RequestSamples, RunState, TrainingRun
from storage.runs import TAKEN_UNTIL
from storage.settings import LearnSettings, Settings
from storage.store import Store
from trainer.devices import training_device
from trainer.distil.checkpoints import load_current, positions_of, vocab_size
from trainer.distil.data import read_since, usable
from trainer.distil.distil import DistilProgress
from trainer.distil.loop import Watcher, conduct
from trainer.distil.optimizer import Memory, moments_of
from trainer.distil.provenance import provenance
from trainer.distil.publish import reject_abandoned, rejected_on_error, settle, where_to_start
from trainer.heads.examples import Drafted, drafted_of, embed
from trainer.heads.fit import adam, fit
from trainer.heads.gate import hear, judge
from trainer.interval import head_interval, head_terms
from trainer.lease import Lease
from trainer.shutdown import Stop


@dataclass(frozen=True, slots=True)
class HeadTrainingData:
    """The data of a run, as a head learns from it."""

    claimed: list[Drafted]
    replayed: list[Drafted]
    judges: list[Drafted]
    """Held-out requests, or ones newer than those claimed."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of requests of each kind, for the run's result."""
        return {"claimed": len(self.claimed), "replayed": len(self.replayed), "judges": len(self.judges)}


def run_head_once(
    store: Store,
    settings: Settings,
    draft: str,
    holder: str,
    stop: Stop | None = None,
    watcher: Watcher = lambda _: None,
    memory: Memory | None = None,
) -> TrainingRun | None:
    """Train a draft's head on requests since its last run; None when nothing is due.

    Answers and raises as :func:`trainer.distil.loop.run_once`.
    """
    if not _begin(store, settings, draft):
        return None
    run = store.runs.claim_beside(head_of(draft), draft, holder, **head_terms(store, settings, draft))
    if run is None:
        return None
    lease = Lease(store, run, settings.trainer.lease_seconds, stop)
    return conduct(store, run, lambda: _train(store, settings, draft, run, lease, watcher, memory or Memory()))


def load_version(store: Store, version: DraftVersion) -> AcceptanceHead:
    """Load a head whose files match what was published. Raises WeightsDamaged."""
    store.versions.verify(version)
    try:
        return load_head(store.versions.folder(version))
    except HeadNotLoaded as error:
        raise WeightsDamaged(version=version.id, reason=f"they do not load: {error.facts['reason']}") from error


def new_head(draft: nn.Module, learn: LearnSettings, root: str, trained_for: str, mean: float) -> AcceptanceHead:
    """Create a head that estimates ``mean`` for every token of this draft."""
    output: Any = draft.get_output_embeddings()  # type: ignore[operator]
    config = HeadConfig(int(output.weight.shape[1]), learn.head_depth, learn.head_reject_weight, root, trained_for)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(learn.seed)
        head = AcceptanceHead(config)
    mean = min(max(mean, 0.01), 0.99)
    nn.init.constant_(head.out.bias, math.log(mean / (1 - mean)) - math.log(learn.head_reject_weight))
    return head


def _begin(store: Store, settings: Settings, draft: str) -> bool:
    """Return whether there is a head to train; creates number 0 once there are requests to take the mean of."""
    if _exists(store, draft):
        return True
    current, interval = store.versions.current(draft), head_interval(store, settings, draft)
    first = store.samples.recent(draft, limit=interval, holdout=False)
    items = [item for item in map(drafted_of, store.samples.read(first)) if item]
    if len(first) < interval or not items:
        return False
    mean = sum(float(item.chances.sum()) for item in items) / sum(map(len, items))
    model = load_current(store, current, choose_device("cpu"))
    head = new_head(model, settings.learn, _root(store, current).digest, current.digest, mean)
    with TemporaryDirectory(prefix="osd-head-") as folder:
        save_head(head, Path(folder))
        try:
            store.versions.register_root(head_of(draft), Path(folder), target=store.versions.target_of(draft))
        except StoreError:
            if not _exists(store, draft):  # else another worker was faster
                raise
    return True


def _exists(store: Store, draft: str) -> bool:
    try:
        store.versions.current(head_of(draft))
    except UnknownDraft:
        return False
    return True


def _train(
    store: Store, settings: Settings, draft: str, run: TrainingRun, lease: Lease, watcher: Watcher, memory: Memory
) -> TrainingRun:
    """Train, judge and settle a claimed run."""
    learn, device = settings.learn, training_device(settings.trainer)
    reject_abandoned(store, run)
    served = store.versions.current(draft)
    start = where_to_start(store, run, "head")
    current, candidate = load_version(store, store.versions.get(run.parent)), load_version(store, start)
    model = load_current(store, served, device)
    material = _gather(store, settings, draft, run, vocab_size(model), positions_of(model))
    facts: dict[str, Any] = {"started_from": start.id, "draft_version": served.id, **material.counts}
    if not material.claimed:
        reason = "none of the requests has drafted tokens with their chances (serve.record must be verified)"
        return store.runs.finish(run, RunState.REJECTED, result={**facts, "reason": reason})

    def between() -> None:
        lease.keep()
        watcher(DistilProgress(0, 0, 0.0, 0.0))

    examples = embed(model, material.claimed + material.replayed, between)
    trained = [] if material.judges else material.claimed[-settings.gate.min_requests :]
    judges = embed(model, material.judges + trained, between)
    counted = {"unseen": len(material.judges), "trained_on": len(trained)}
    # a request judges before it is trained on: what serves against the line of training so far
    claimed = examples.of(0, len(material.claimed)) if start.id != run.parent else None
    first = hear(current, candidate, claimed)
    reweigh(candidate, learn.head_reject_weight)
    candidate.config = replace(candidate.config, trained_for=served.digest)
    optimizer = adam(candidate, learn, memory.recall(run.draft, start.id))
    facts |= asdict(fit(candidate, examples, learn, between, optimizer=optimizer))
    lease.keep()
    version = _stage(store, run, candidate, facts)
    with rejected_on_error(store, version):
        verdict = judge([first, hear(current, candidate, judges)], settings.gate)
        verdict.evidence.update(counted, tested_first=len(material.claimed) if first else 0)
        lease.renew()
        memory.keep(run.draft, version.id, moments_of(optimizer))
        proof = partial(_require_same, store, version, candidate)
        return settle(store, run, version, verdict, facts | {"evidence": verdict.evidence}, proof)


def _require_same(store: Store, version: DraftVersion, judged: AcceptanceHead) -> None:
    """Raise WeightsDamaged unless the version loads as the head that was judged."""
    served = load_version(store, version).state_dict()
    if any(not torch.equal(served[name], weight.float().cpu()) for name, weight in judged.state_dict().items()):
        raise WeightsDamaged(version=version.id, reason="once loaded they are not those that were judged")


def reweigh(head: AcceptanceHead, reject_weight: float) -> None:
    """Change the weight of rejections, keeping the head's estimates as they are."""
    shift = math.log(head.config.reject_weight / reject_weight)
    with torch.no_grad():
        head.out.bias.add_(shift)
    head.config = replace(head.config, reject_weight=reject_weight)


def _gather(
    store: Store, settings: Settings, draft: str, run: TrainingRun, vocabulary: int, positions: int
) -> HeadTrainingData:
    """Return the claimed requests, ``learn.replay_requests`` before them, and requests that judge: held out, or newer.

    Judges are no older than what is trained on; where there are none, the newest trained ones judge, as for drafts.
    Raises SegmentDamaged.
    """
    samples, gate = store.samples, settings.gate
    new = samples.read(run.request_ids)
    oldest = min((s.created_at for s in new), default=0.0)
    replayed = samples.recent(draft, limit=settings.learn.replay_requests, holdout=False, before=oldest)
    store.runs.note_replayed(run, replayed)
    old = samples.read(replayed)
    since = min((s.created_at for s in new + old), default=0.0)
    held_out = read_since(store, samples.recent(draft, limit=gate.requests, holdout=True), since)
    later = read_since(store, samples.recent(draft, limit=gate.requests, holdout=False), run.settings[TAKEN_UNTIL])
    taken = set(run.request_ids)
    judges = held_out + [s for s in later if s.request_id not in taken]
    judges = sorted(judges, key=lambda s: s.created_at, reverse=True)[: gate.requests]
    return HeadTrainingData(*(_usable(some, vocabulary, positions) for some in (new, old, judges)))


def _usable(samples: list[RequestSamples], vocabulary: int, positions: int) -> list[Drafted]:
    items = map(drafted_of, usable(samples, vocabulary, positions))
    return [item for item in items if item is not None and 0 <= item.drafted.min() <= item.drafted.max() < vocabulary]


def _stage(store: Store, run: TrainingRun, head: AcceptanceHead, result: dict[str, Any]) -> DraftVersion:
    facts = provenance(dict(run.settings), holder=run.holder, fitted=result, head=asdict(head.config))
    return store.versions.stage(
        run.draft, run.parent, "head", lambda folder: save_head(head, folder), run_id=run.id, provenance=facts
    )


def _root(store: Store, version: DraftVersion) -> DraftVersion:
    return store.versions.lineage(version.id)[-1]
