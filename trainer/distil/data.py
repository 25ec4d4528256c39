"""The requests that a run trains on, and those that judge its candidate.

Judges are requests that the candidate has not seen: those held out, and those that came while it was trained and
that no run has claimed yet. Both come from the stretch of traffic that the run was trained on: where traffic
has moved on, older requests would hold a draft to what nobody asks any more. A run that replays old requests, so as
not to forget (``learn.replay``), may be judged by old ones too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from osd.hotswap.succession import weight_of
from osd.models.limits import ENDLESS
from storage.branches import Branches
from storage.errors import FeaturesNotKept
from storage.names import draft_of
from storage.records import RequestSamples, TrainingRun
from storage.runs import TAKEN_UNTIL
from storage.settings import GateSettings, LearnSettings
from storage.store import Store
from trainer.distil.branching import count
from trainer.distil.collate import select, until
from trainer.distil.teacher import Lessons, RecordedTeacher

WHOLE = 0.05
"""Tolerance for the sum of stored probabilities and the mass outside: float16 rounds; a larger error is another
fault."""
CHUNK = 16
"""Requests read at a time when it is unknown how many are recent enough."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The requests to train on."""

    claimed: list[RequestSamples]
    """Oldest first."""
    replayed: list[RequestSamples]
    """Requests of earlier runs, newest first."""
    inherited: list[RequestSamples] = field(default_factory=list)
    """Requests that targets answered which this one succeeds; they weigh what both targets have in common."""
    unusable: int = 0
    """Requests left out: of another vocabulary, not a distribution, or texts alone where distributions are learned."""

    @property
    def all(self) -> list[RequestSamples]:
        """New, replayed and inherited requests."""
        return self.claimed + self.replayed + self.inherited

    @property
    def counts(self) -> dict[str, int]:
        """The number of requests of each kind, for the run's result."""
        inherited = {"inherited": len(self.inherited)} if self.inherited else {}
        return {"claimed": len(self.claimed), "replayed": len(self.replayed), **inherited, "unusable": self.unusable}

    def positions(self, learn: LearnSettings) -> int:
        """Return the number of their positions that ``learn.positions`` trains on."""
        return sum(count(select(s, learn.positions, learn.sampling)) for s in self.all)


@dataclass(frozen=True, slots=True)
class Judges:
    """The requests to judge by, newest first."""

    held_out: list[RequestSamples]
    fresh: list[RequestSamples]
    """Requests not yet claimed by any run."""
    trained: list[RequestSamples]
    """Trained on; used only where there are too few others."""

    @property
    def all(self) -> list[RequestSamples]:
        """Held-out, fresh and trained-on requests."""
        return self.held_out + self.fresh + self.trained

    @property
    def counts(self) -> dict[str, int]:
        """The number of requests of each kind, for the evidence."""
        return {"held_out": len(self.held_out), "fresh": len(self.fresh), "trained_on": len(self.trained)}


@dataclass(frozen=True, slots=True)
class Readable:
    """Which requests a draft can learn from."""

    vocab_size: int
    positions: int = ENDLESS
    """Positions that it knows."""
    lessons: Lessons | None = None
    """What it learns from beside the recorded distributions."""

    def among(self, some: Iterable[RequestSamples]) -> list[RequestSamples]:
        """Return those of some requests, cut to the positions that the draft knows; texts alone where a target
        reads them again."""
        found = usable(some, self.vocab_size, self.positions)
        return [s for s in found if (s.k if self.lessons is None else self.lessons.teacher.can_read(s))]


def gather(store: Store, run: TrainingRun, learn: LearnSettings, readable: Readable) -> TrainingData:
    """Return what the run claimed and ``learn.replay_requests`` of earlier runs, without unusable ones.

    Raises SegmentDamaged, and FeaturesNotKept where hidden states are asked for and no claimed request has any.
    """
    replayed = _replayed(store, run, learn)
    inherited = [] if is_beside(run) else _inherited(store, run, learn.replay_requests - len(replayed), readable)
    store.runs.note_replayed(run, [*replayed, *(s.request_id for s in inherited)])
    read = [store.samples.read(ids) for ids in (run.request_ids, replayed)]
    new, old = (_sound(store, some) for some in read)
    claimed_now, before = readable.among(new), readable.among(old)
    keeps = readable.lessons is not None and isinstance(readable.lessons.teacher, RecordedTeacher)
    if not claimed_now and keeps and usable(new, readable.vocab_size, readable.positions):
        raise FeaturesNotKept(reason=f"Of {len(new)} requests that wait none has them at every position.")
    unusable = sum(map(len, read)) - len(claimed_now) - len(before)
    return TrainingData(claimed_now, before, inherited, unusable)


def is_beside(run: TrainingRun) -> bool:
    """Return whether a run took the requests of routes that its draft might serve and does not, which stay free for the
    drafts that do."""
    return TAKEN_UNTIL in run.settings


def _replayed(store: Store, run: TrainingRun, learn: LearnSettings) -> list[str]:
    if is_beside(run):  # what it took earlier is what is older
        before = min((s.created_at for s in store.samples.read(run.request_ids)), default=0.0)
        return choose_replayed(store, run.draft, run.id, learn, before=before, candidate=True)
    return choose_replayed(store, run.draft, run.id, learn, claimed_before=run.id)


def _inherited(store: Store, run: TrainingRun, limit: int, readable: Readable) -> list[RequestSamples]:
    """Return at most ``limit`` of the newest requests that earlier targets answered. A target that reads them again
    teaches what it says itself; else they weigh by the measured divergence, and those of which none was measured, or
    that contradict the target, are left out. Hidden states of another target teach nothing."""
    target, found = store.versions.target_of(run.draft), list[RequestSamples]()
    if readable.lessons is not None and isinstance(readable.lessons.teacher, RecordedTeacher):
        return found
    divergence = store.targets.divergence(target)
    for old in store.targets.ancestors(target):
        line = store.versions.find(draft_of(run.draft), old)
        if limit <= len(found) or line is None or store.versions.target_of(line.draft) != old:
            continue
        ids = store.samples.recent(line.draft, limit=limit - len(found), holdout=False)
        for samples in readable.among(read_sound(store, ids)):
            weight = weight_of(divergence.get(old, {}).get(samples.route, 1.0))
            weight = 1.0 if readable.lessons is not None else weight
            found += [replace(samples, weight=weight)] if weight else []
    return found


def choose_replayed(store: Store, draft: str, run: str, learn: LearnSettings, **conditions: Any) -> list[str]:
    """Return ids of the requests that a run trains on again, by ``learn.replay``, newest first: at most
    ``learn.replay_requests`` that meet the conditions (:meth:`storage.replay.samples.SampleStore.recent`)."""
    if learn.replay == "newest":
        return store.samples.recent(draft, limit=learn.replay_requests, holdout=False, **conditions)
    return store.samples.spread(draft, limit=learn.replay_requests, seed=run, holdout=False, **conditions)


def usable(some: Iterable[RequestSamples], vocab_size: int, positions: int = ENDLESS) -> list[RequestSamples]:
    """Return what a draft with this vocabulary and so many positions can learn from."""
    return [s for s in (until(each, positions) for each in some) if is_usable(s, vocab_size)]


def is_usable(samples: RequestSamples, vocab_size: int) -> bool:
    """Return whether a draft with this vocabulary can learn from a request; one that it cannot must not fail every
    run."""
    if not len(samples):
        return False
    ids = np.append(samples.tokens, samples.topk_ids)
    mass = np.exp(samples.topk_logprobs.astype(np.float32)).sum(axis=1) + samples.outside
    branches = samples.branches is None or _branches_are_usable(samples.branches, vocab_size)
    whole = (abs(mass - 1) < WHOLE).all()
    return bool(ids.min() >= 0 and ids.max() < vocab_size and is_sound(samples) and whole and branches)


def is_sound(samples: RequestSamples) -> bool:
    """Return whether a request's positions are places in its text, in order: else no draft can learn from it."""
    places = np.concatenate([[0], samples.positions.astype(np.int64), [len(samples.tokens)]])
    return bool((np.diff(places) > 0).all())


def read_sound(store: Store, request_ids: Sequence[str]) -> list[RequestSamples]:
    """Read requests, and set aside, by name, those that no draft can learn from."""
    return _sound(store, store.samples.read(request_ids))


def _sound(store: Store, found: Sequence[RequestSamples]) -> list[RequestSamples]:
    broken = [s.request_id for s in found if not is_sound(s)]
    store.suspects.set_aside(broken, "its positions are not places in its text")
    return [s for s in found if s.request_id not in broken]


def _branches_are_usable(branches: Branches, vocab_size: int) -> bool:
    mass = np.exp(branches.topk_logprobs.astype(np.float32)).sum(axis=1) + branches.outside
    ids = np.append(branches.tokens, branches.topk_ids)
    return bool(ids.min() >= 0 and ids.max() < vocab_size and (abs(mass - 1) < WHOLE).all())


def call_judges(
    store: Store, run: TrainingRun, material: TrainingData, gate: GateSettings, readable: Readable, tested: int = 0
) -> Judges:
    """Return the newest unseen requests, at most ``gate.requests``, no older than what was trained on.

    Where they and the ``tested`` ones, which have judged already, are fewer than ``gate.min_requests``, the newest
    claimed ones make up the number. Raises SegmentDamaged.
    """
    since = min((s.created_at for s in material.all), default=0.0)
    beside, draft = is_beside(run), run.draft
    asked = (
        store.samples.recent(draft, limit=gate.requests, holdout=True, candidate=beside),
        store.samples.recent(
            draft, limit=gate.requests, holdout=False, claimed=None if beside else False, candidate=beside
        ),
    )
    found = (read_since(store, ids, since) for ids in asked)
    held_out, fresh = (readable.among(some) for some in found)
    if beside:  # those that no run of it has taken yet are newer than all that this one took
        fresh = [s for s in fresh if s.created_at > run.settings[TAKEN_UNTIL]]
    newest = sorted(held_out + fresh, key=lambda s: s.created_at, reverse=True)[: gate.requests]
    chosen = {s.request_id for s in newest}
    lacking = max(0, gate.min_requests - len(newest) - tested)
    trained = material.claimed[::-1][:lacking]
    return Judges(
        [s for s in held_out if s.request_id in chosen], [s for s in fresh if s.request_id in chosen], trained
    )


def read_since(store: Store, request_ids: Sequence[str], since: float) -> list[RequestSamples]:
    """Read requests given newest first until one is older than ``since``; return those that are not."""
    found: list[RequestSamples] = []
    for i in range(0, len(request_ids), CHUNK):
        some = read_sound(store, request_ids[i : i + CHUNK])
        found += [s for s in some if s.created_at >= since and len(s)]
        if any(s.created_at < since for s in some):
            break
    return found
