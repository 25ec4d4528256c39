"""Estimates of what clusters of a draft's traffic would gain from drafts of their own.

In each cluster three quarters of the requests train a candidate from the weights that serve now, and the gate compares
the two on the last quarter, as it does for any candidate. A control draft makes as many passes over three
quarters of *everything*: the gain from separating the cluster is the difference to that one.

A cluster wins by more than its error where the one-sided lower limit of that gain is above ``gate.min_gain``, at a
level that all clusters share (Bonferroni): the chance that any is offered that wins nothing is 1 − ``gate.confidence``
at most.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from router.clusters import LEAST, Clusters, find_clusters
from storage.records import DraftVersion, RequestSamples
from storage.settings import Settings
from storage.store import Store
from trainer.distil.checkpoints import load_current, load_trainable, positions_of, vocab_size
from trainer.distil.data import Readable
from trainer.distil.distil import DistilProgress, distil
from trainer.distil.gate import judge, score_both

JUDGES = 4
"""One request in this many of a cluster judges; the others train."""
NAME_WORDS, SHOWN_WORDS = 3, 8

Say = Callable[[int, int], None]
"""A progress callback: number of requests trained on, and their total."""
Words = Callable[[Sequence[int]], list[str]]
"""A function that turns tokens into readable words."""


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A cluster, and the gain from a draft of its own."""

    name: str
    """A route name made from the cluster's distinctive words, for people to change."""
    words: tuple[str, ...]
    requests: tuple[RequestSamples, ...]
    share: float
    """Share of the analysed traffic."""
    better: bool
    """Whether the gate would publish the candidate, and setting it apart wins by more than its error."""
    evidence: dict[str, Any]
    """The gate's evidence against the serving version; ``apart`` is the gain over a draft trained on everything,
    ``apart_error`` how much less it may be."""
    candidate: nn.Module = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Samples of one draft's routes, oldest first, with their clustering."""

    version: DraftVersion
    current: nn.Module
    """The current version's weights, not to be trained."""
    samples: list[RequestSamples]
    clusters: Clusters
    forgotten: int
    """The newest line about forgetting when they were read."""

    def split(self, label: int) -> tuple[list[RequestSamples], list[RequestSamples]]:
        """Return a cluster's requests to train on, and those to judge by."""
        mine = [self.samples[i] for i in self.clusters.members(label)]
        return [s for i, s in enumerate(mine) if i % JUDGES], mine[::JUDGES]


def read_traffic(
    store: Store, draft: str, routes: Sequence[str], limit: int, seed: int, device: torch.device
) -> Traffic:
    """Read the newest ``limit`` usable requests of the routes and cluster them by prompt and answer.

    Raises UnknownDraft, WeightsDamaged, SegmentDamaged.
    """
    forgotten, target = store.forgetter.news(0).line, store.targets.newest()
    version = store.versions.current(draft, target)
    current = load_current(store, version, device)
    ids = store.samples.recent(version.draft, limit=limit, routes=routes)
    samples = Readable(vocab_size(current), positions_of(current)).among(store.samples.read(ids[::-1]))
    clusters = find_clusters([s.tokens.tolist() for s in samples], seed=seed)
    return Traffic(version, current, samples, clusters, forgotten)


class OfferMaker:
    """Makes offers for traffic: trains a candidate for each cluster, and a control draft on everything."""

    def __init__(
        self, store: Store, settings: Settings, traffic: Traffic, device: torch.device, words: Words,
        say: Say = lambda done, of: None, between: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Prepare the search. ``words`` turns tokens to words; ``between`` is called between steps and may raise to end
        it."""
        self._store, self._settings, self._traffic, self._device = store, settings, traffic, device
        self._words, self._say, self._between = words, say, between
        labels = [i for i in range(len(traffic.clusters)) if len(traffic.clusters.members(i)) >= LEAST]
        self._parts = {label: traffic.split(label) for label in labels}
        self._done = 0

    def offers(self) -> list[Offer]:
        """Return one offer a cluster, the largest first; none where the traffic is of one kind or too little.

        Raises NotFinite, WeightsDamaged, and whatever ``between`` raises.
        """
        if len(self._parts) < 2:
            return []
        everything = self._trained([s for training, _ in self._parts.values() for s in training])
        made: list[Offer] = []
        for label in self._parts:
            made.append(self._offer(label, everything, [offer.name for offer in made]))
        return made

    def _offer(self, label: int, everything: nn.Module, taken: Sequence[str]) -> Offer:
        (training, judges), gate = self._parts[label], self._settings.gate
        candidate = self._trained(training)
        verdict = judge([score_both(self._traffic.current, candidate, judges, self._between)], gate)
        level = 1 - (1 - gate.confidence) / len(self._parts)
        strict = gate.model_copy(update={"confidence": level})
        apart = judge([score_both(everything, candidate, judges, self._between)], strict)
        mine = [self._traffic.samples[i] for i in self._traffic.clusters.members(label)]
        words = readable(self._words(self._traffic.clusters.typical[label]))
        better, evidence = verdict.better and apart.better, verdict.evidence | error_of(apart.evidence)
        share = len(mine) / len(self._traffic.samples)
        return Offer(free_name(words, taken), tuple(words), tuple(mine), share, better, evidence, candidate)

    def _trained(self, samples: list[RequestSamples]) -> nn.Module:
        learn = self._settings.learn.model_copy(update={"method": "full"})
        model = load_trainable(self._store, self._traffic.version, learn, self._device)

        def step(_: DistilProgress) -> None:
            self._between()

        distil(model, samples, learn, step)
        self._done += len(samples)
        self._say(self._done, 2 * sum(len(training) for training, _ in self._parts.values()))
        return model.requires_grad_(False)


def error_of(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gain of setting a cluster apart and its error: the way down to its lower limit."""
    gain, lower = evidence.get("difference"), evidence.get("lower")
    error = None if gain is None or lower is None else round(gain - lower, 6)
    return {"apart": gain, "apart_error": error, "apart_confidence": evidence.get("confidence")}


def readable(words: Sequence[str]) -> list[str]:
    """Return the words that are meaningful to people, each once; if there are none, all."""
    telling = [word for word in dict.fromkeys(words) if sum(map(str.isalnum, word)) > 1]
    return (telling or [word for word in dict.fromkeys(words) if word])[:SHOWN_WORDS]


def free_name(words: Sequence[str], taken: Sequence[str]) -> str:
    """Return an unused route name made of words: lower case letters, digits and hyphens."""
    slugs = [re.sub(r"[^a-z0-9]+", "", word.lower()) for word in words]
    name = "-".join([slug for slug in dict.fromkeys(slugs) if len(slug) > 1][:NAME_WORDS]) or "cluster"
    return next(n for n in (name, *(f"{name}-{i}" for i in range(2, 1 << 20))) if n not in taken)
