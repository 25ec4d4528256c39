"""Topic classification of prompts, from examples taught one at a time, or many at once
(:mod:`router.topic_training`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router.features import Buckets
from router.linear import Linear, Vector
from router.linear_file import insist, read_arrays, write_arrays
from router.topic_vector import SIZE, TopicVector, features_of

KIND = "osd-topics-1"
WHAT = "a topic model"
UNTRAINED = (-1.0, 1.5, 2.5)
"""Calibration before there are examples to fit it with: a score of +0.5 that leads by 1.5 has confidence 0.96."""


@dataclass(frozen=True, slots=True)
class TopicGuess:
    """A classifier's result for a text."""

    label: str | None
    """The label; None where it is undecided."""
    confidence: float
    """Probability that the label, or the best one where it is undecided, is right, in [0, 1]."""
    outside: float = 0.0
    """Distance of the text from everything learned: the higher, the less likely any label is right. Unbounded."""


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

    def predict(self, text: str) -> TopicGuess:
        """Predict the text's topic; None where no topic is learned, the text has no words, or the best one is
        unlikely."""
        best = self.best(text)
        return best if best.confidence >= self.least else replace(best, label=None)

    predict_one = predict
    """The same under the name that streaming libraries use."""

    def taught_in(self, topic: str) -> frozenset[str]:
        """Return the languages in which a topic was taught; empty where that is not known."""
        return frozenset(self.languages.get(topic, ()))

    def best(self, text: str) -> TopicGuess:
        """Return the likeliest topic however unlikely; None where no topic is learned or the text has no words."""
        ids, values = self.vector.of(text)
        if not ids.size or not self.labels:
            return TopicGuess(None, 0.0, math.inf)
        scores = self.linear.scores(ids, values)
        place = int(scores.argmax())
        return TopicGuess(self.labels[place], confidence(*margins(scores), self.calibration), -float(scores[place]))

    def learn(self, text: str, label: str | None) -> None:
        """Learn one example; a new label becomes a topic, and None means that the text belongs to no topic.

        A text without words teaches nothing.
        """
        self.learn_features(features_of(text), label)

    def learn_features(self, ids: Buckets, label: str | None) -> None:
        """Learn one example by its features, see :func:`router.topic_vector.features_of`."""
        if not ids.size:
            return
        if label is not None and label not in self.linear.labels:
            self.linear.add(label)
        self.vector.count(ids)
        self.linear.learn(ids, self.vector.values(ids), label)

    learn_one = learn
    """The same under the name that streaming libraries use."""

    def forget(self, label: str) -> bool:
        """Remove a topic; False when there is none of that name. The other topics' scores stay."""
        if label not in self.linear.labels:
            return False
        self.linear.forget(label)
        return True

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
        made.vector.texts = facts["texts"]
        made.vector.holding[arrays["held"]] = arrays["holding"]
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
