"""What a run does with a draft: the requests waiting for it are collated, distilled, judged and published.

A draft vocabulary follows the traffic (``learn.draft_vocabulary``): most of a small draft's cost is its output layer.
Which tokens it covers is chosen anew for each version, from the newest requests of the draft's routes: those that
answers used most; then those that their prompts did, for answers repeat their prompts; then those with the lowest
numbers, which tokenizers of byte pairs found to be most frequent. The layer itself is the target's, so another choice
needs no training.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from osd.hotswap.loader import require_servable, require_servable_features
from osd.models.features.base import FeatureDraft
from osd.models.features.target import FeatureTarget
from osd.models.model import eos_ids
from osd.models.pair import serving_dtype
from storage.insights.tokens import TokenUse, token_use
from storage.names import draft_of
from storage.records import DraftVersion, RequestSamples, TrainingRun
from storage.settings import Settings
from storage.store import Store
from trainer.devices import training_device
from trainer.distil.checkpoints import load_current, load_trainable, positions_of, stored_as, vocab_size
from trainer.distil.data import Readable, call_judges, gather
from trainer.distil.gate import GateDecision, PairedScores, as_served, judge, score_both
from trainer.distil.optimizer import adamw, first_learn, moments_of
from trainer.distil.processes import distil_on_devices
from trainer.distil.publish import kind_trained, stage, where_to_start
from trainer.distil.resident import ResidentModels
from trainer.distil.scores import score
from trainer.distil.step import NothingToLearn
from trainer.distil.teachers import learning_of
from trainer.interval import claim_terms, head_terms
from trainer.lease import Lease

AS_CANDIDATE = {"positions": "verified", "sampling": "teacher"}
"""What a candidate learns of others' traffic: which tokens were refused there says nothing of its own."""
COUNTED_REQUESTS = 4096
"""Newest requests whose tokens are counted for a draft vocabulary."""


class DraftLearner:
    """A draft, for one run. See :class:`trainer.distil.loop.Learner`."""

    run: TrainingRun
    _asked: Sequence[RequestSamples] = ()
    """Learners, then judges: those of the step under way."""

    def __init__(self, store: Store, settings: Settings, draft: str, resident: ResidentModels) -> None:
        """``settings`` may be overridden by the draft's own ``[learn]``. Raises UnknownDraft."""
        own = store.versions.options(draft)
        learn = settings.learn.model_copy(update=own)
        self.settings = settings.model_copy(update={"learn": learn}) if own else settings
        self._store, self._draft, self._resident = store, draft, resident

    def claim(self, holder: str, *, retry: bool) -> TrainingRun | None:
        """Claim the requests waiting for the draft, else new ones of routes that it might serve and does not."""
        store, draft = self._store, self._draft
        run = store.runs.claim(draft, holder, claim_terms(store, self.settings, draft), retry=retry)
        if run is None and self._is_candidate():
            learn = self.settings.learn.model_copy(update=AS_CANDIDATE)
            self.settings = self.settings.model_copy(update={"learn": learn})
            run = store.runs.claim_beside(draft, draft, holder, head_terms(store, self.settings, draft))
        return run

    def _is_candidate(self) -> bool:
        """Return whether there is a route that the draft might serve and does not."""
        own = draft_of(self._draft)
        return any(own in route.candidates and route.draft != own for route in self._store.routes.list())

    def collate(self, run: TrainingRun, lease: Lease) -> dict[str, Any]:
        """Load the draft that serves and the one that is trained, and gather requests that they can read."""
        store, self.run = self._store, run
        self._device = training_device(self.settings.trainer)
        self._parent = store.versions.get(run.parent)
        self._learn = learning_of(self.settings.learn, self._parent)
        self._lessons = self._resident.teachers.lessons(store, self.settings, self._parent, self._device)
        self._start = where_to_start(store, run, self._learn.method)
        self.candidate = self._trainable()
        if store.versions.provenance(self._start).get("provenance", {}).get("taken") is False:  # random weights
            self._learn = first_learn(self.candidate, self._learn)
        self._readable = Readable(vocab_size(self.candidate), positions_of(self.candidate), self._lessons)
        self._material = gather(store, run, self._learn, self._readable)
        facts = {"started_from": self._start.id, **self._material.counts}
        if not self._material.positions(self._learn):
            student = self._learn.sampling == "student"
            what = "tokens behind a refused one" if student else f"{self._learn.positions} positions"
            also = self._lessons is None and self._material.unusable
            hint = " (learn.teacher = recompute learns from texts alone, too)" if also else ""
            raise NothingToLearn(f"none of the requests has {what} to learn from{hint}", facts)
        return facts

    def _trainable(self) -> nn.Module:
        kept = self._resident.take_trained(self._start, self._device)
        if kept is not None and isinstance(kept, PeftModel) is (self._learn.method == "lora"):
            return kept
        return load_trainable(self._store, self._start, self._learn, self._device, self._target)

    @property
    def _target(self) -> FeatureTarget | None:
        """The target, where the draft learns from it."""
        return None if self._lessons is None else self._lessons.teacher.shared

    def distil(self, lease: Lease) -> dict[str, Any]:
        """Train on all that was gathered; the claimed requests judge first what they are then trained on."""
        self._folder = self._store.versions.folder(self._parent)  # a version is stored in its parent's number type
        self._as_served = partial(as_served, dtype=self._dtype_served())
        self._current = self._resident.serving(self._parent, self._device) or self._as_served(
            load_current(self._store, self._parent, self._device, self._target)
        )
        self._asked = self._material.all
        self._first = self._judge_claimed(lease)
        facts: dict[str, Any] = {}
        if isinstance(self.candidate, FeatureDraft) and self._target is not None:
            size = self._learn.draft_vocabulary
            facts |= follow_traffic(self._store, self.run.draft, self.candidate, self._target, size)
        moments = self._resident.memory.recall(self.run.draft, self._start.id)
        self._optimizer = adamw(self.candidate, self._learn, moments)
        teacher = None if self._lessons is None else self._lessons.teacher
        done = distil_on_devices(
            self.candidate, self._material.all, self._learn, self._optimizer, self.settings.trainer, lease, teacher
        )
        return facts | asdict(done)

    def _judge_claimed(self, lease: Lease) -> PairedScores | None:
        """Score what serves against the line of training so far, where there is one."""
        if self._start.id == self._parent.id:
            return None
        judged = self._as_served(stored_as(self.candidate, self._folder))
        return score_both(self._current, judged, self._material.claimed, lease.keep, self._lessons)

    def _dtype_served(self) -> torch.dtype:
        """Return the type of number that servers compute the draft in; a feature draft is computed in its target's."""
        if isinstance(self.candidate, FeatureDraft) and self._target is not None:
            return self._target.head.weight.dtype
        root = self._store.versions.lineage(self._parent.id)[-1]
        return serving_dtype(self.settings.serve, self._store.versions.folder(root))

    def stage(self, facts: dict[str, Any]) -> DraftVersion:
        """Write the candidate as servers will load it."""
        kind = kind_trained(self._parent, self._learn.method)
        return stage(self._store, self.run, self.candidate, kind, facts, self._target)

    def judge(self, lease: Lease) -> GateDecision:
        """Compare the stored candidate with what serves, on requests that it has not seen."""
        gate, tested = self.settings.gate, len(self._material.claimed) if self._first else 0
        judges = call_judges(self._store, self.run, self._material, gate, self._readable, tested)
        self._asked = judges.all
        self._stored = stored_as(self.candidate, self._folder).train(False)
        second = score_both(self._current, self._as_served(self._stored), judges.all, lease.keep, self._lessons)
        verdict = judge([self._first, second], gate)
        verdict.evidence.update(judges.counts, tested_first=tested)
        return verdict

    def culprits(self) -> list[str]:
        """Return the requests of the step under way on which even the draft that serves fails; none where it fails on
        all."""
        found = [s.request_id for s in self._asked if not self._can_score(s)]
        return found if len(found) < len(self._asked) else []

    def _can_score(self, samples: RequestSamples) -> bool:
        try:
            return bool(np.isfinite(score(self._current, [samples], lessons=self._lessons).expected).all())
        except Exception:  # whatever it is, it would end the next run too
            return False

    def prove(self, version: DraftVersion) -> None:
        """Load the version as servers do, and compare it with what the gate measured."""
        if isinstance(self._stored, FeatureDraft):
            assert self._target is not None
            require_servable_features(self._store, version, self._stored, self._target)
        else:
            require_servable(self._store, version, cast(PreTrainedModel, self._stored))

    def remember(self, version: DraftVersion) -> None:
        """Keep AdamW's moments."""
        self._resident.memory.keep(self.run.draft, version.id, moments_of(self._optimizer))

    def keep(self, version: DraftVersion, verdict: GateDecision) -> None:
        """Keep what serves now, and the candidate."""
        serving = (version.id, self._served_copy()) if verdict.better else (self._parent.id, self._current)
        self._resident.keep(self.run.draft, serving, (version.id, self.candidate))

    def _served_copy(self) -> nn.Module | None:
        """Return what servers compute, which training of the candidate does not change; None for an adapter: merging
        changes its base."""
        if isinstance(self.candidate, PeftModel):
            return None
        served = self._as_served(self._stored)
        return (copy.deepcopy(served) if served is self.candidate else served).requires_grad_(False)


def follow_traffic(
    store: Store, draft: str, model: FeatureDraft, shared: FeatureTarget, size: int | None
) -> dict[str, Any]:
    """Let a draft propose the ``size`` tokens that its traffic uses most, or all for None; return what the run's result
    says of it. A draft that has an output layer of its own keeps it, with its vocabulary, where ``size`` is None."""
    if size is None or size >= shared.vocab_size:
        if model.token_map is not None and model.lm_head is None:
            model.set_vocabulary(None)
        return {}
    use = token_use(store, draft, shared.vocab_size, COUNTED_REQUESTS)
    chosen = most_used(use, size, eos_ids(shared.module))
    model.set_vocabulary(torch.from_numpy(chosen))
    total = int(use.answers.sum())
    covered = float(use.answers[chosen].sum()) / total if total else None
    return {"draft_vocabulary": len(chosen), "draft_vocabulary_covers": covered and round(covered, 6)}


def most_used(use: TokenUse, size: int, ends: frozenset[int]) -> npt.NDArray[np.int64]:
    """Return the ids (``size``,) of the tokens that are used most, ascending, the end tokens always among them."""
    count = len(use.answers)
    order = np.lexsort((np.arange(count), -use.prompts, -use.answers))
    known = [token for token in sorted(ends) if token < count]
    others = order[~np.isin(order, known)][: max(0, size - len(known))]
    return np.sort(np.concatenate([np.array(known, np.int64), others]))
