"""Topic classification of prompts, from examples taught at once (:mod:`router.topic_training`) or one at a time.

A prompt's features are two families of n-grams, each of length 1, rare n-grams weighing more:

    x_f = w d_f / √(Σ d²)  over the family's n-grams,   d_f = √(1 + ln((1 + N) / (1 + n_f)))

with N prompts learned, n_f of them containing f (the root of the usual inverse document frequency), and w the family's
weight. One vector of both families with a common length did worse by 0.9 points on 150 intents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router.base import LabelGuess
from router.features import Buckets, Features
from router.linear import Linear, Vector, insist, read_arrays, write_arrays

WORDS = Features(chars=(), words=True, pairs=True, bits=16)
CHARS = Features(chars=(2, 3, 4), words=False, pairs=False, bits=17)
WEIGHTS = (1.2, 1.0)
SIZE = (1 << WORDS.bits) + (1 << CHARS.bits)
"""Total number of features."""


class TopicVector:
    """Texts as sparse vectors, with the document frequency of each feature."""

    def __init__(self) -> None:
        self.texts = 0
        self.holding = np.zeros(SIZE, np.uint32)

    def restore(self, texts: int, features: Buckets, holding: NDArray[np.uint32]) -> None:
        """Take the number of texts, and of those that hold these features, as they were kept."""
        self.texts = texts
        self.holding[features] = holding

    def of(self, text: str) -> tuple[Buckets, NDArray[np.float32]]:
        """Return a text's features, with repeats, and their values; both empty for an empty text."""
        ids = features_of(text)
        return ids, self.values(ids)

    def values(self, ids: Buckets) -> NDArray[np.float32]:
        """Return the values of a text's features, those of words first, shape (n,)."""
        rarity = 1 + np.log((1 + self.texts) / (1 + self.holding[ids]))
        values: NDArray[np.float32] = np.sqrt(rarity, dtype=np.float32)
        words = int(np.count_nonzero(ids < 1 << WORDS.bits))
        if ids.size:
            values[:words] *= WEIGHTS[0] / np.sqrt(rarity[:words].sum())
            values[words:] *= WEIGHTS[1] / np.sqrt(rarity[words:].sum())
        return values

    def count(self, ids: Buckets) -> None:
        """Count a learned text's features in the document frequencies."""
        self.texts += 1
        self.holding[np.unique(ids)] += np.uint32(1)


def features_of(text: str) -> Buckets:
    """Return a text's features with repeats, those of words before those of characters; empty for an empty text."""
    return np.concatenate((WORDS.buckets(text), CHARS.buckets(text) + (1 << WORDS.bits)))


KIND = "osd-topics-1"
WHAT = "a topic model"
UNTRAINED = (-1.0, 1.5, 2.5)
"""Calibration before there are examples to fit it with: a score of +0.5 that leads by 1.5 has confidence 0.96."""


class TopicModel:
    """One-versus-rest linear scores of topics. Not thread-safe while one thread learns."""

    def __init__(self, labels: tuple[str, ...] = (), *, least: float = 0.5) -> None:
        """Start with untrained topics. Below the confidence ``least`` the answer is None, the default route."""
        self.vector, self.linear, self.least = TopicVector(), Linear(SIZE, labels), least
        self.calibration = UNTRAINED
        """(c, a, b) of confidence = σ(c + a s + b (s − s')) for the best score s and the second best s'."""
        self.languages: dict[str, list[str]] = {}
        """The languages of each topic's examples, where somebody looked. Not saved: another language model may say
        otherwise."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The topics, in the order in which they were first learned."""
        return tuple(self.linear.labels)

    def predict(self, text: str) -> LabelGuess:
        """Predict the text's topic; None where no topic is learned, the text has no words, or the best one is
        unlikely."""
        best = self.best(text)
        return best if best.confidence >= self.least else replace(best, label=None)

    def taught_in(self, topic: str) -> frozenset[str]:
        """Return the languages in which a topic was taught; empty where that is not known."""
        return frozenset(self.languages.get(topic, ()))

    def best(self, text: str) -> LabelGuess:
        """Return the likeliest topic however unlikely; None where no topic is learned or the text has no words."""
        ids, values = self.vector.of(text)
        if not ids.size or not self.labels:
            return LabelGuess(None, 0.0, math.inf)
        scores = self.linear.scores(ids, values)
        place = int(scores.argmax())
        return LabelGuess(self.labels[place], confidence(*margins(scores), self.calibration), -float(scores[place]))

    def learn_example(self, ids: Buckets, label: str | None) -> None:
        """Learn one example by its features (:func:`features_of`); a new label becomes a topic, and None means that the
        text belongs to no topic. A text without words teaches nothing."""
        if not ids.size:
            return
        if label is not None and label not in self.linear.labels:
            self.linear.add(label)
        self.vector.count(ids)
        self.linear.learn(ids, self.vector.values(ids), label)

    def save(self, path: Path) -> None:
        """Write the model as one file. Raises StoreWriteFailed."""
        ids, weights = self.linear.learned()
        held = np.flatnonzero(self.vector.holding)
        facts = {"labels": self.linear.labels, "calibration": self.calibration, "least": self.least}
        arrays: dict[str, NDArray[Any]] = {
            "ids": ids.astype(np.uint32), "weights": weights.astype(np.float16), "bias": self.linear.bias,
            "held": held.astype(np.uint32), "holding": self.vector.holding[held],
        }  # fmt: skip
        write_arrays(path, KIND, {**facts, "texts": self.vector.texts}, arrays)

    @classmethod
    def load(cls, path: Path) -> TopicModel:
        """Read a model. Raises ModelFileDamaged for a file that is missing, damaged, or of another kind."""
        facts, arrays = read_arrays(path, KIND, WHAT)
        insist(path, WHAT, _holds(facts, arrays))
        made = cls(least=facts["least"])
        made.calibration = tuple(facts["calibration"])
        made.linear.replace(facts["labels"], arrays["ids"], arrays["weights"], arrays["bias"])
        made.vector.restore(facts["texts"], arrays["held"], arrays["holding"])
        return made


def margins(scores: Vector) -> tuple[float, float]:
    """Return the best score, and its lead over the second best, or over 0 where there is but one topic."""
    if scores.size == 1:
        return float(scores[0]), float(scores[0])
    second, first = np.partition(scores, scores.size - 2)[-2:]
    return float(first), float(first - second)


def confidence(score: float, lead: float, calibration: tuple[float, float, float]) -> float:
    """Return σ(c + a s + b (s − s')): Platt scaling with a second feature."""
    c, a, b = calibration
    return 1 / (1 + math.exp(-min(50.0, max(-50.0, c + a * score + b * lead))))


def _holds(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, bool]:
    """Return the conditions that a file's parts must meet."""
    names = {"ids", "weights", "bias", "held", "holding"}
    if not names <= set(arrays) or not {"labels", "calibration", "least", "texts"} <= set(facts):
        return {"list of parts": False}
    labels, ids, held = facts["labels"], arrays["ids"], arrays["held"]
    return {
        "labels": all(isinstance(label, str) for label in labels) and len(set(labels)) == len(labels),
        "calibration": len(facts["calibration"]) == 3 and bool(np.isfinite(facts["calibration"]).all()),
        "features": ids.ndim == 1 and held.ndim == 1 and max([0, *ids[-1:], *held[-1:]]) < SIZE
        and bool((np.diff(ids.astype(np.int64)) > 0).all() and (np.diff(held.astype(np.int64)) > 0).all()),
        "weights": arrays["weights"].shape == (ids.size, len(labels)) and bool(np.isfinite(arrays["weights"]).all()),
        "bias": arrays["bias"].shape == (len(labels),) and bool(np.isfinite(arrays["bias"]).all()),
        "counts": arrays["holding"].shape == held.shape and isinstance(facts["texts"], int),
    }  # fmt: skip
