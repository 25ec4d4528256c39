"""Batch training of a topic model: linear support vectors, then confidence by Platt scaling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.features import Buckets
from router.topic import UNTRAINED, TopicModel, features_of, margins

Examples = Sequence[tuple[Buckets, str | None]]
"""Features and label of each example; None belongs to no topic."""
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
NEAR = -0.5
"""Score of a topic from which on a prompt of the traffic may belong to it: halfway from none of them (−1) to 0."""


def train_topics(
    texts: Sequence[str],
    labels: Sequence[str | None],
    background: Sequence[Buckets] = (),
    *,
    calibrate: bool = True,
) -> TopicModel:
    """Train a model on these examples; a label None means that a text belongs to none of the topics.

    ``background`` are features of prompts whose topic nobody told: those that look like none of the topics stand for
    what belongs to none. Deterministic. With fewer than two kinds of labels, or two examples of each, it learns them
    one by one instead. Raises ValueError when texts and labels differ in number.
    """
    if len(texts) != len(labels):
        raise ValueError(f"{len(texts)} texts and {len(labels)} labels")
    examples: Examples = [(features_of(text), label) for text, label in zip(texts, labels, strict=True)]
    examples = [*examples, *((ids, None) for ids in _strangers(examples, background))]
    kinds = {label for _, label in examples}
    if len(kinds) < 2 or len(kinds) > CROWDED * len(examples):
        return _one_by_one(examples)
    model = _fit(examples)
    if calibrate and len(examples) >= FEW and len(kinds) > 2:
        model.calibration = _calibrated(_unseen(examples))
    return model


def _strangers(examples: Examples, background: Sequence[Buckets]) -> list[Buckets]:
    """Return the prompts that look like no topic to models that took the others as belonging to none.

    Traffic from before a topic was taught holds prompts of that topic: learning to refuse them would undo the
    examples. This is the first step of two-step learning from positive and unlabelled texts (Liu et al. 2003).
    """
    folds = np.random.default_rng(0).permutation(len(background)) % FOLDS
    kept: list[Buckets] = []
    for fold in range(FOLDS if len(examples) > 1 else 0):
        others = [(ids, None) for ids, place in zip(background, folds, strict=True) if place != fold]
        if others:
            model = _fit([*examples, *others])
            held = (ids for ids, place in zip(background, folds, strict=True) if place == fold and ids.size)
            kept += [ids for ids in held if model.linear.scores(ids, model.vector.values(ids)).max() < NEAR]
    return kept


def _one_by_one(examples: Examples) -> TopicModel:
    model = TopicModel()
    for ids, label in examples:
        model.learn_example(ids, label)
    return model


def _fit(examples: Examples) -> TopicModel:
    """Fit a squared hinge loss, each topic against the rest (sklearn's LinearSVC)."""
    from sklearn.svm import LinearSVC

    model = TopicModel(tuple(sorted({label for _, label in examples if label is not None})))
    for ids, _ in examples:
        model.vector.count(ids)
    ids, matrix = _matrix(model, [ids for ids, _ in examples])
    places = {label: place for place, label in enumerate(model.labels)} | {None: len(model.labels)}
    machine = LinearSVC(C=C, random_state=0).fit(matrix, [places[label] for _, label in examples])
    weights, bias = _all_sides(machine.coef_.T, machine.intercept_)
    count = len(model.labels)  # the column of "none of them" comes last, and is not needed
    model.linear.replace(model.labels, ids, weights[:, :count].astype(np.float32), bias[:count].astype(np.float32))
    return model


def _all_sides(weights: Floats, bias: Floats) -> tuple[Floats, Floats]:
    """Return weights and bias of both classes where there are two: sklearn gives only the second's."""
    if weights.shape[1] > 1:
        return weights, bias
    return np.hstack((-weights, weights)), np.concatenate((-bias, bias))


def _matrix(model: TopicModel, texts: Sequence[Buckets]) -> tuple[NDArray[np.int64], object]:
    """Return the features that occur in any text, and texts × features as a scipy matrix."""
    from scipy.sparse import csr_matrix

    ends = np.cumsum([0, *(text.size for text in texts)])
    ids, columns = np.unique(np.concatenate(texts), return_inverse=True)
    values = np.concatenate([model.vector.values(text) for text in texts]).astype(np.float64)
    matrix = csr_matrix((values, columns, ends), shape=(len(texts), ids.size))
    matrix.sum_duplicates()
    return ids, matrix


def _unseen(examples: Examples) -> list[Outcome]:
    """Return guesses at examples by models that were not trained on them.

    Where no example is marked as belonging to no topic, each model also lacks a fifth of the topics, whose examples
    then represent such texts: else confidence would be that of a world in which every prompt has a topic.
    """
    labels = {label for _, label in examples}
    topics, folds = sorted(labels - {None}, key=str), np.random.default_rng(0).permutation(len(examples)) % FOLDS
    found: list[Outcome] = []
    for fold in range(1 if len(examples) >= MANY else FOLDS):
        lacking = set() if None in labels else set(topics[fold::FOLDS])
        placed = list(zip(examples, folds, strict=True))
        others = [each for each, place in placed if place != fold and each[1] not in lacking]
        if len({label for _, label in others}) > 1:
            model = _fit(others)
            found += [_outcome(model, *each, each[1] in lacking) for each, place in placed if place == fold]
    return found


def _outcome(model: TopicModel, ids: Buckets, label: str | None, is_foreign: bool) -> Outcome:
    scores = model.linear.scores(ids, model.vector.values(ids))
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
