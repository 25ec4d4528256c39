"""Accuracy of the topic guess, and how well it knows what it was never taught."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.router.folder import BenchSides, Rows
from router.topic import TopicModel
from router.topic_training import train_topics

OUTSIDE = "oos"
"""clinc150's topic of what belongs to none."""
SURE = 0.5
"""Confidence below which the product's answer is the default route."""


@dataclass(frozen=True, slots=True)
class IntentGuess:
    """One test prompt's outcome."""

    right: bool
    inside: bool
    confidence: float
    outside: float


def measure_intents(
    sides: BenchSides, key: str, *, negatives: bool = True, calibrate: bool = True
) -> tuple[TopicModel | None, list[IntentGuess]]:
    """Return a model of clinc150's topics or labels, and its guesses on the other side.

    ``negatives``: whether out-of-scope prompts of the training side are learned, as belonging to no topic.
    ``calibrate``: whether confidence is fitted; the scores and labels are the same without.
    """
    learned, tested = sides.split("clinc150")
    rows = [row for row in learned if negatives or row.facts["topic"] != OUTSIDE]
    if not rows or not tested:
        return None, []
    model = train_topics([row.text for row in rows], [_label(row.facts, key) for row in rows], calibrate=calibrate)
    return model, guesses(model, tested, key)


def measure_banking(sides: BenchSides) -> float | None:
    """Return the accuracy on banking77's 77 intents."""
    learned, tested = sides.split("banking77")
    if not learned or not tested:
        return None
    texts, labels = [row.text for row in learned], [row.facts["label"] for row in learned]
    return accuracy(guesses(train_topics(texts, labels, calibrate=False), tested, "label"))


def guesses(model: TopicModel, rows: Rows, key: str) -> list[IntentGuess]:
    """Return the best label for every row, however unsure."""
    found = []
    for row in rows:
        truth, best = _label(row.facts, key), model.best(row.text)
        found.append(IntentGuess(best.label == truth, truth is not None, best.confidence, best.outside))
    return found


def figures(found: list[IntentGuess]) -> dict[str, float | None]:
    """Return all that guesses of intents show."""
    return {
        "intent_accuracy_clinc150": accuracy(found), "oos_auroc": auroc(found), "unsure_inside": unsure(found, True),
        "unsure_outside": unsure(found, False), "calibration_error": calibration_error(found),
    }  # fmt: skip


def accuracy(found: list[IntentGuess]) -> float | None:
    """Return the share of prompts that belong to some topic, whose best label is theirs."""
    inside = [guess.right for guess in found if guess.inside]
    return sum(inside) / len(inside) if inside else None


def auroc(found: list[IntentGuess]) -> float | None:
    """Return the chance that a prompt outside scores higher as outside than one inside does; 0.5 is no better than a
    coin."""
    from sklearn.metrics import roc_auc_score

    if len({guess.inside for guess in found}) < 2:
        return None
    return float(roc_auc_score([not guess.inside for guess in found], [guess.outside for guess in found]))


def unsure(found: list[IntentGuess], inside: bool) -> float | None:
    """Return the share of prompts, inside or outside, that goes to the default route."""
    kind = [guess.confidence < SURE for guess in found if guess.inside == inside]
    return sum(kind) / len(kind) if kind else None


def calibration_error(found: list[IntentGuess]) -> float | None:
    """Return the expected calibration error in ten bins of confidence: mean |confidence − share right|, weighted by
    prompts."""
    bins: list[list[IntentGuess]] = [[] for _ in range(10)]
    for guess in found:
        bins[min(9, int(10 * guess.confidence))].append(guess)
    gaps = [abs(sum(g.confidence for g in each) - sum(g.right for g in each)) for each in bins]
    return sum(gaps) / len(found) if found else None


def _label(facts: dict[str, str], key: str) -> str | None:
    return None if facts.get("topic") == OUTSIDE else facts[key]
