"""Batch training of a topic model: linear support vectors, then confidence by Platt scaling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.topic import UNTRAINED, TopicModel, margins

Floats = NDArray[np.float64]
Calibration = tuple[float, float, float]
Outcome = tuple[float, float, bool, bool]
"""Score, lead, whether the guess was right, and whether the example represents what belongs to no topic."""
FOREIGN = 0.1
"""Share of prompts assumed to belong to no topic where no example says so."""
FOLDS = 5
"""Number of folds for calibration: each model guesses the fold that it was not trained on."""
MANY = 2000
"""Number of examples from which one fold is enough."""
FEW = 20
"""Number of examples below which confidence is not calibrated."""
CROWDED = 0.5
"""Labels per example above which there is nothing to fit (scikit-learn would treat labels as numbers)."""
C = 1.0
"""LinearSVC's penalty; 0.5 and 2 did the same within the noise."""


def train_topics(texts: Sequence[str], labels: Sequence[str | None], *, calibrate: bool = True) -> TopicModel:
    """Train a model on these examples; a label None means that a text belongs to none of the topics.

    Deterministic. With fewer than two kinds of labels, or two examples of each, it learns them one by one instead.
    Raises ValueError when the two sequences differ in length.
    """
    if len(texts) != len(labels):
        raise ValueError(f"{len(texts)} texts and {len(labels)} labels")
    if len(set(labels)) < 2 or len(set(labels)) > CROWDED * len(texts):
        return _one_by_one(texts, labels)
    model = _fit(texts, labels)
    if calibrate and len(texts) >= FEW and len(set(labels)) > 2:
        model.calibration = _calibrated(_unseen(texts, labels))
    return model


def _one_by_one(texts: Sequence[str], labels: Sequence[str | None]) -> TopicModel:
    model = TopicModel()
    for text, label in zip(texts, labels, strict=True):
        model.learn(text, label)
    return model


def _fit(texts: Sequence[str], labels: Sequence[str | None]) -> TopicModel:
    """Fit a squared hinge loss, each topic against the rest (sklearn's LinearSVC)."""
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
    """Return weights and bias of both classes where there are two: sklearn gives only the second's."""
    if weights.shape[1] > 1:
        return weights, bias
    return np.hstack((-weights, weights)), np.concatenate((-bias, bias))


def _matrix(model: TopicModel, texts: Sequence[str]) -> tuple[NDArray[np.int64], object]:
    """Return the features that occur in any text, and texts × features as a scipy matrix."""
    from scipy.sparse import csr_matrix

    vectors = [model.vector.of(text) for text in texts]
    ends = np.cumsum([0, *(ids.size for ids, _ in vectors)])
    ids, columns = np.unique(np.concatenate([ids for ids, _ in vectors]), return_inverse=True)
    values = np.concatenate([values for _, values in vectors]).astype(np.float64)
    matrix = csr_matrix((values, columns, ends), shape=(len(texts), ids.size))
    matrix.sum_duplicates()
    return ids, matrix


def _unseen(texts: Sequence[str], labels: Sequence[str | None]) -> list[Outcome]:
    """Return guesses at examples by models that were not trained on them.

    Where no example is marked as belonging to no topic, each model also lacks a fifth of the topics, whose examples
    then represent such texts: else confidence would be that of a world in which every prompt has a topic.
    """
    topics, folds = sorted(set(labels) - {None}, key=str), np.random.default_rng(0).permutation(len(texts)) % FOLDS
    found: list[Outcome] = []
    for fold in range(1 if len(texts) >= MANY else FOLDS):
        lacking = set() if None in labels else set(topics[fold::FOLDS])
        others = [i for i, place in enumerate(folds) if place != fold and labels[i] not in lacking]
        some = [labels[i] for i in others]
        if len(set(some)) > 1:
            model = _fit([texts[i] for i in others], some)
            held = np.flatnonzero(folds == fold).tolist()
            found += [_outcome(model, texts[i], labels[i], labels[i] in lacking) for i in held]
    return found


def _outcome(model: TopicModel, text: str, label: str | None, is_foreign: bool) -> Outcome:
    scores = model.linear.scores(*model.vector.of(text))
    return *margins(scores), model.labels[int(scores.argmax())] == label, is_foreign


def _calibrated(found: list[Outcome]) -> Calibration:
    """Fit a logistic regression of "the best label is right" on its score and its lead."""
    from sklearn.linear_model import LogisticRegression

    right = [each[2] for each in found]
    if len(set(right)) < 2:
        return UNTRAINED
    foreign = np.array([each[3] for each in found])
    weights = np.where(foreign, FOREIGN / (1 - FOREIGN) * (~foreign).sum() / max(1, foreign.sum()), 1.0)
    fitted = LogisticRegression(C=10.0).fit([each[:2] for each in found], right, sample_weight=weights)
    return float(fitted.intercept_[0]), float(fitted.coef_[0][0]), float(fitted.coef_[0][1])
