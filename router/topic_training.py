"""A topic model out of many labelled examples at once: linear support vectors, then confidence by Platt's scaling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.topic import UNTRAINED, TopicModel, margins

Floats = NDArray[np.float64]
Calibration = tuple[float, float, float]
HELD_OUT = 10
"""One example in so many is kept from a first fit, so that confidence can be fitted on what it has not seen."""
FEW = 100
"""Below so many kept-out examples confidence stays as it is."""
CROWDED = 0.4
"""Labels for each example above which there is nothing to fit (scikit-learn takes them for numbers from 0.5 on)."""
C = 1.0
"""LinearSVC's weight of errors; 0.5 and 2 did the same within the noise."""


def train_topics(texts: Sequence[str], labels: Sequence[str | None], *, calibrate: bool = True) -> TopicModel:
    """A model of these examples; a label None says that a text belongs to none of the topics.

    Deterministic. With fewer than two kinds of labels, or two examples of each, it teaches them one by one instead.
    Raises ValueError when the two sequences differ in length.
    """
    if len(texts) != len(labels):
        raise ValueError(f"{len(texts)} texts and {len(labels)} labels")
    if len(set(labels)) < 2 or len(set(labels)) > CROWDED * len(texts):
        return _one_by_one(texts, labels)
    kept = np.arange(len(texts)) % HELD_OUT == 0
    order = np.random.default_rng(0).permutation(len(texts))
    model = _fit(texts, labels)
    if calibrate and kept.sum() >= FEW:
        learned, seen = ([[part[i] for i in order[rows]] for part in (texts, labels)] for rows in (~kept, kept))
        if set(learned[1]) == set(labels):
            model.calibration = _calibrated(_fit(*learned), *seen)
    return model


def _one_by_one(texts: Sequence[str], labels: Sequence[str | None]) -> TopicModel:
    model = TopicModel()
    for text, label in zip(texts, labels, strict=True):
        model.learn(text, label)
    return model


def _fit(texts: Sequence[str], labels: Sequence[str | None]) -> TopicModel:
    """Squared hinge loss, each topic against the rest (sklearn's LinearSVC)."""
    from sklearn.svm import LinearSVC

    model = TopicModel(tuple(sorted({label for label in labels if label is not None})))
    for text in texts:
        model.vector.count(text)
    ids, matrix = _matrix(model, texts)
    places = {label: place for place, label in enumerate(model.labels)} | {None: len(model.labels)}
    machine = LinearSVC(C=C, random_state=0).fit(matrix, [places[label] for label in labels])
    weights, bias = _all_sides(machine.coef_.T, machine.intercept_)
    count = len(model.labels)  # the column of "none of them" comes last, and is not needed
    model.linear.replace(model.labels, ids, weights[:, :count].astype(np.float32), bias[:count].astype(np.float32))
    return model


def _all_sides(weights: Floats, bias: Floats) -> tuple[Floats, Floats]:
    """Two classes come as one column, the second's."""
    if weights.shape[1] > 1:
        return weights, bias
    return np.hstack((-weights, weights)), np.concatenate((-bias, bias))


def _matrix(model: TopicModel, texts: Sequence[str]) -> tuple[NDArray[np.int64], object]:
    """The features that stand in any text, and texts × features as a scipy matrix."""
    from scipy.sparse import csr_matrix

    vectors = [model.vector.of(text) for text in texts]
    ends = np.cumsum([0, *(ids.size for ids, _ in vectors)])
    ids, columns = np.unique(np.concatenate([ids for ids, _ in vectors]), return_inverse=True)
    values = np.concatenate([values for _, values in vectors]).astype(np.float64)
    matrix = csr_matrix((values, columns, ends), shape=(len(texts), ids.size))
    matrix.sum_duplicates()
    return ids, matrix


def _calibrated(model: TopicModel, texts: Sequence[str], labels: Sequence[str | None]) -> Calibration:
    """Logistic regression of "the best label is right" on its score and its lead."""
    from sklearn.linear_model import LogisticRegression

    facts, right = [], []
    for text, label in zip(texts, labels, strict=True):
        ids, values = model.vector.of(text)
        if ids.size:
            scores = model.linear.scores(ids, values)
            facts.append(margins(scores))
            right.append(model.labels[int(scores.argmax())] == label)
    if len(set(right)) < 2:
        return UNTRAINED
    fitted = LogisticRegression(C=10.0).fit(np.array(facts), right)
    return float(fitted.intercept_[0]), float(fitted.coef_[0][0]), float(fitted.coef_[0][1])
