"""What a run does with a draft's acceptance head: requests become embeddings of drafted tokens, the head is fitted to
them, judged and published.

A head has versions, runs and a lease of its own, under the name ``<draft>.head``. It learns from the draft's requests
beside the draft: what it takes stays free for the draft's runs. Number 0 is a head that only knows the mean; it is
made when the first ``learn.interval_requests`` requests are there.

The embeddings are those of the draft version that is current. When the draft's weights change the head goes on, and
its next run embeds everything anew with the new weights.

The gate publishes a candidate only if it is proven the better predictor, as for drafts (:mod:`trainer.distil.gate`):
both heads predict the same tokens of requests that neither was trained on, the difference is clustered by request, and
its lower limit decides. The measure is the binary KL of their estimates (appendix D.3), less is better; each head's
weight of rejections is undone first, so that heads trained with different ones compare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from osd.models.acceptance_head import AcceptanceHead, HeadConfig, hidden_size, load_head, save_head
from osd.models.pair import choose_device
from storage.errors import HeadNotLoaded, StoreError, WeightsDamaged
from storage.names import head_of
from storage.records import DraftVersion, RequestSamples, TrainingRun
from storage.runs import TAKEN_UNTIL
from storage.settings import GateSettings, LearnSettings, Settings
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS
from trainer.devices import training_device
from trainer.distil.checkpoints import load_current, positions_of, vocab_size
from trainer.distil.data import choose_replayed, read_since, read_sound, usable
from trainer.distil.distil import DistilProgress
from trainer.distil.gate import GateDecision, compare, finite
from trainer.distil.optimizer import moments_of
from trainer.distil.publish import provenance, where_to_start
from trainer.distil.resident import ResidentModels
from trainer.distil.step import NothingToLearn
from trainer.distil.teacher import Lessons
from trainer.heads.examples import Drafted, HeadExamples, drafted_of, embed
from trainer.heads.fit import adam, binary_kl, calibration_error, fit
from trainer.interval import head_interval, head_terms
from trainer.lease import Lease

Array = npt.NDArray[np.float64]


class HeadLearner:
    """A draft's acceptance head, for one run. See :class:`trainer.distil.loop.Learner`."""

    run: TrainingRun

    def __init__(self, store: Store, settings: Settings, draft: str, resident: ResidentModels) -> None:
        self._store, self.settings, self._draft, self._resident = store, settings, draft, resident

    def claim(self, holder: str, *, retry: bool) -> TrainingRun | None:
        """Claim the draft's requests since the head's last run; makes number 0 once there are enough."""
        if not self._exists() and not self._make_root():
            return None
        terms = head_terms(self._store, self.settings, self._draft)
        return self._store.runs.claim_beside(head_of(self._draft), self._draft, holder, terms)

    def _exists(self) -> bool:
        return self._store.versions.find(head_of(self._draft)) is not None

    def _make_root(self) -> bool:
        """Create number 0 if there are requests to take the mean of; return whether there is one."""
        store, draft = self._store, self._draft
        current, interval = store.versions.current(draft), head_interval(store, self.settings, draft)
        first = store.samples.recent(draft, limit=interval, holdout=False)
        items = [item for item in map(drafted_of, read_sound(store, first)) if item]
        if len(first) < interval or not items:
            return False
        mean = sum(float(item.chances.sum()) for item in items) / sum(map(len, items))
        model = self._load(current, choose_device("cpu"))[0]
        root = store.versions.lineage(current.id)[-1]
        head = new_head(model, self.settings.learn, root.digest, current.digest, mean)
        with TemporaryDirectory(prefix="osd-head-") as folder:
            save_head(head, Path(folder))
            try:
                store.versions.register_root(head_of(draft), Path(folder), target=store.versions.target_of(draft))
            except StoreError:
                if not self._exists():  # else another worker was faster
                    raise
        return True

    def collate(self, run: TrainingRun, lease: Lease) -> dict[str, Any]:
        """Load the head that serves and the one that is trained, and embed the drafted tokens of the requests."""
        store, self.run = self._store, run
        served = store.versions.current(self._draft)
        self._start = where_to_start(store, run, "head")
        self._current = load_version(store, store.versions.get(run.parent))
        self.candidate = load_version(store, self._start)
        model, lessons = self._load(served, training_device(self.settings.trainer))
        new, replayed, judges = (_readable(some, model, lessons) for some in self._gather())
        counts = {"claimed": len(new), "replayed": len(replayed), "judges": len(judges)}
        facts = {"started_from": self._start.id, "draft_version": served.id, **counts}
        if not new:
            reason = "none of the requests has drafted tokens with their chances (serve.record must be verified)"
            raise NothingToLearn(reason, facts)

        def between() -> None:
            lease.step(DistilProgress(0, 0, 0.0, 0.0))

        self._between, self._served, self._claimed = between, served, len(new)
        self._examples = embed(model, new + replayed, between, lessons)
        goes_on = self._start.id != run.parent  # then the claimed ones judge before anything is learned from them
        trained = [] if judges or goes_on else new[-self.settings.gate.min_requests :]
        self._judges = embed(model, judges + trained, between, lessons) if judges or trained else None
        self._counted = {"unseen": len(judges), "trained_on": len(trained)}
        return facts

    def _load(self, version: DraftVersion, device: torch.device) -> tuple[nn.Module, Lessons | None]:
        """Load a version of the draft, and the target that a feature draft reads. Raises as
        :meth:`trainer.distil.teacher.Teachers.lessons`, and WeightsDamaged."""
        lessons = None
        if version.kind in FEATURE_KINDS:
            lessons = self._resident.teachers.lessons(self._store, self.settings, version, device)
        shared = None if lessons is None else lessons.teacher.shared
        return load_current(self._store, version, device, shared), lessons

    def _gather(self) -> tuple[list[RequestSamples], list[RequestSamples], list[RequestSamples]]:
        """Return the claimed requests, ``learn.replay_requests`` before them, and requests that judge: held out, or
        newer.

        Judges are no older than what is trained on; where there are none, the newest trained ones judge, as for drafts.
        Raises SegmentDamaged.
        """
        store, samples, draft, run = self._store, self._store.samples, self._draft, self.run
        limit = self.settings.gate.requests
        new = read_sound(store, run.request_ids)
        oldest = min((s.created_at for s in new), default=0.0)
        replayed = choose_replayed(store, draft, run.id, self.settings.learn, before=oldest)
        store.runs.note_replayed(run, replayed)
        old = read_sound(store, replayed)
        since = min((s.created_at for s in new + old), default=0.0)
        held_out = read_since(store, samples.recent(draft, limit=limit, holdout=True), since)
        later = read_since(store, samples.recent(draft, limit=limit, holdout=False), run.settings[TAKEN_UNTIL])
        taken = set(run.request_ids)
        judges = held_out + [s for s in later if s.request_id not in taken]
        return new, old, sorted(judges, key=lambda s: s.created_at, reverse=True)[:limit]

    def distil(self, lease: Lease) -> dict[str, Any]:
        """Fit the head, once the claimed requests have judged what it was before."""
        learn, claimed = self.settings.learn, self._examples.first(self._claimed)
        goes_on = self._start.id != self.run.parent
        self._first = score_both(self._current, self.candidate, claimed) if goes_on else None
        reweigh(self.candidate, learn.head_reject_weight, trained_for=self._served.digest)
        moments = self._resident.memory.recall(self.run.draft, self._start.id)
        self._optimizer = adam(self.candidate, learn, moments)
        return asdict(fit(self.candidate, self._examples, learn, self._between, optimizer=self._optimizer))

    def stage(self, facts: dict[str, Any]) -> DraftVersion:
        """Write the candidate."""
        head, run = self.candidate, self.run
        known = provenance(dict(run.settings), holder=run.holder, fitted=facts, head=asdict(head.config))
        return self._store.versions.stage(
            run.draft, run.parent, "head", lambda folder: save_head(head, folder), run_id=run.id, provenance=known
        )

    def judge(self, lease: Lease) -> GateDecision:
        """Compare the candidate with the head that serves, on requests that it has not seen."""
        second = score_both(self._current, self.candidate, self._judges)
        verdict = judge([self._first, second], self.settings.gate)
        verdict.evidence.update(self._counted, tested_first=self._claimed if self._first else 0)
        return verdict

    def prove(self, version: DraftVersion) -> None:
        """Raise WeightsDamaged unless the version loads as the head that was judged."""
        served, judged = load_version(self._store, version).state_dict(), self.candidate.state_dict()
        if any(not torch.equal(served[name], weight.float().cpu()) for name, weight in judged.items()):
            raise WeightsDamaged(version=version.id, reason="once loaded they are not those that were judged")

    def remember(self, version: DraftVersion) -> None:
        """Keep Adam's moments."""
        self._resident.memory.keep(self.run.draft, version.id, moments_of(self._optimizer))

    def culprits(self) -> list[str]:
        """Name none: of a request that a head cannot learn from no example is made."""
        return []

    def keep(self, version: DraftVersion, verdict: GateDecision) -> None:
        """Keep nothing more: heads are small, and are read again."""


def load_version(store: Store, version: DraftVersion) -> AcceptanceHead:
    """Load a head whose files match what was published. Raises WeightsDamaged."""
    store.versions.verify(version)
    try:
        return load_head(store.versions.folder(version))
    except HeadNotLoaded as error:
        raise WeightsDamaged(version=version.id, reason=f"they do not load: {error.facts['reason']}") from error


def new_head(draft: nn.Module, learn: LearnSettings, root: str, trained_for: str, mean: float) -> AcceptanceHead:
    """Create a head that estimates ``mean`` for every token of this draft."""
    config = HeadConfig(hidden_size(draft), learn.head_depth, learn.head_reject_weight, root, trained_for)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(learn.seed)
        head = AcceptanceHead(config)
    mean = min(max(mean, 0.01), 0.99)
    nn.init.constant_(head.out.bias, math.log(mean / (1 - mean)) - math.log(learn.head_reject_weight))
    return head


def reweigh(head: AcceptanceHead, reject_weight: float, **facts: Any) -> None:
    """Change the weight of rejections, keeping the head's estimates as they are; ``facts``: more of its config."""
    shift = math.log(head.config.reject_weight / reject_weight)
    with torch.no_grad():
        head.out.bias.add_(shift)
    head.config = replace(head.config, reject_weight=reject_weight, **facts)


def _readable(samples: list[RequestSamples], model: nn.Module, lessons: Lessons | None) -> list[Drafted]:
    """Return what a head of this draft can learn from."""
    vocabulary = vocab_size(model)
    found = usable(samples, vocabulary, positions_of(model))
    if lessons is not None:
        found = [each for each in found if lessons.teacher.can_read(each)]
    items = [drafted_of(each, chains=lessons is not None) for each in found]
    return [item for item in items if item is not None and 0 <= item.drafted.min() <= item.drafted.max() < vocabulary]


@dataclass(frozen=True, slots=True, eq=False)
class HeadScores:
    """The predictions of two heads on the same tokens."""

    examples: HeadExamples
    before: torch.Tensor
    """(N,) logits of the serving head, with its rejection weight undone."""
    after: torch.Tensor

    def sums(self, logits: torch.Tensor) -> Array:
        """Return the binary KL summed over each request's tokens, shape (requests,)."""
        return _by_request(self.examples, binary_kl(self.examples.chances, logits))

    @property
    def positions(self) -> Array:
        """(requests,) number of tokens of each."""
        return _by_request(self.examples, torch.ones_like(self.examples.chances))


@torch.inference_mode()
def score_both(current: AcceptanceHead, other: AcceptanceHead, examples: HeadExamples | None) -> HeadScores | None:
    """Score both heads on tokens that neither was trained on; None when there are none."""
    if examples is None or not len(examples):
        return None
    return HeadScores(examples, current.estimate(examples.embeddings), other.estimate(examples.embeddings))


def judge(scores: Sequence[HeadScores | None], gate: GateSettings) -> GateDecision:
    """Return whether the binary KL is lower, with ``gate.confidence``, over all scores pooled."""
    given = [each for each in scores if each is not None]
    if not given:
        return GateDecision(False, False, {"measure": "binary_kl", "reason": "nothing to judge on", "worse": False})
    positions = np.concatenate([each.positions for each in given])
    before = np.concatenate([each.sums(each.before) for each in given])
    after = np.concatenate([each.sums(each.after) for each in given])
    result = compare(positions, -before, -after, gate.confidence)
    better, worse = result.lower > 0, result.difference < -result.standard_error
    evidence = {
        "measure": "binary_kl",
        "requests": result.requests,
        "positions": result.positions,
        "kl_before": round(-result.before, 6),
        "kl_after": round(-result.after, 6),
        "gain": round(result.difference, 6),
        "lower": finite(result.lower),
        "standard_error": finite(result.standard_error),
        "confidence": result.confidence,
        "calibration_before": round(_calibration([(e.examples.chances, e.before) for e in given]), 6),
        "calibration_after": round(_calibration([(e.examples.chances, e.after) for e in given]), 6),
        "better": better,
        "worse": worse,
    }
    return GateDecision(better, worse, evidence)


def _calibration(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    chances, logits = (torch.cat(column) for column in zip(*pairs, strict=True))
    return calibration_error(chances, logits.sigmoid())


def _by_request(examples: HeadExamples, values: torch.Tensor) -> Array:
    """Return sums by request, shape (requests,); requests without tokens do not count."""
    sums = np.bincount(examples.requests.numpy(), weights=values.double().numpy())
    return np.asarray(sums[np.unique(examples.requests.numpy())], np.float64)
