"""What the readings of many answers come to: acceptance by all that may tell why, and what it would be worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from osd.bench.examine.reading import GAMMA, AnswerReading, classes_of, pieces_of, rounds_of
from router.throughput import Costs, best_pace

REFUSED = 12
"""Refused tokens that are listed."""
FEWEST = 64
"""Positions of a group below which nothing is said of it."""
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Figures:
    """The measures of one draft on some answers."""

    answers: int
    empty: int
    """Further answers, which ended before anything was drafted."""
    positions: int
    alpha: float
    """Mean Σ min(p, q) of a chain's first token."""
    right: float
    """Share of positions at which the draft's likeliest token is the answer's."""
    confidence: float
    """Mean of the draft's highest probability."""
    ends: tuple[int, int]
    """End tokens, and how many of them the draft foresaw."""
    by: dict[str, Rows]
    """By ``depth``, ``context``, ``topic`` and ``class``."""
    refused: Rows
    gammas: Rows
    """Tokens a round and speed against the target alone, by γ, of this draft and of prompt lookup."""
    break_even: float | None
    """Acceptance from which drafting pays here; None where nothing was timed, or it pays at none."""

    @property
    def best(self) -> dict[str, Any]:
        """The γ that makes most: tokens a round ÷ cost, or where nothing was timed 4 tokens."""
        timed = [row for row in self.gammas if row["speed"] is not None]
        return max(timed, key=lambda row: row["speed"]) if timed else self.gammas[3]


def figures_of(
    readings: Sequence[AnswerReading], tokenizer: Any, ends: frozenset[int], costs: Costs | None, empty: int = 0
) -> Figures:
    """Return the measures of some readings, at least one, and of ``empty`` answers beside them."""
    overlap = np.concatenate([each.overlap for each in readings])
    right = np.concatenate([each.right[0] for each in readings])
    said = [each.text[len(each.text) - len(each) :] for each in readings]
    labels = {
        "context": np.concatenate([_lengths(len(each.text), len(each)) for each in readings]),
        "topic": np.concatenate([np.full(len(each), each.topic) for each in readings]),
    }
    if tokenizer is not None:
        labels["class"] = np.array([c for tokens in said for c in classes_of(pieces_of(tokenizer, tokens))])
    tokens, likeliest = np.concatenate([*map(np.array, said)]), np.concatenate([each.likeliest for each in readings])
    at_end = np.isin(tokens, [*ends])
    by = {name: _grouped(label, overlap, right) for name, label in labels.items()}
    return Figures(
        len(readings), empty, len(overlap), float(overlap.mean()), float(right.mean()),
        float(np.concatenate([each.confidence for each in readings]).mean()),
        (int(at_end.sum()), int((at_end & right).sum())), {"depth": _depths(readings)} | by,
        _refused(tokens[~right], likeliest[~right], tokenizer), _gammas(readings, costs), _break_even(costs),
    )  # fmt: skip


def _lengths(end: int, count: int) -> Any:
    """Return the range of each of a text's last tokens' places, by powers of four."""
    edges = [0, 64, 256, 1024, 4096, 16384]
    names = [*(f"{low} to {high}" for low, high in pairwise(edges)), f"{edges[-1]} on"]
    return np.array([names[int(np.digitize(place, edges)) - 1] for place in range(end - count, end)])


def _grouped(label: Any, overlap: Any, right: Any) -> Rows:
    """Return a row a group, the largest first."""
    names, counts = np.unique(label, return_counts=True)
    rows: Rows = []
    for name, count in sorted(zip(names.tolist(), counts.tolist(), strict=True), key=lambda each: -each[1]):
        own = overlap[label == name]
        error = float(own.std() / max(1, count - 1) ** 0.5)
        shares = {"alpha": float(own.mean()), "error": error, "right": float(right[label == name].mean())}
        rows.append({"group": name, "positions": count} | shares)
    return rows


def _depths(readings: Sequence[AnswerReading]) -> Rows:
    """Return how often the chain's token of each number was right where those before it were."""
    judged, good = sum((rounds_of(each.right, GAMMA)[1] for each in readings), np.zeros((2, GAMMA), np.int64))
    return [
        {"group": f"{number + 1}", "positions": int(n), "right": float(good[number] / n)}
        for number, n in enumerate(judged) if n
    ]  # fmt: skip


def _refused(wanted: Any, drafted: Any, tokenizer: Any) -> Rows:
    pairs = Counter(zip(drafted.tolist(), wanted.tolist(), strict=True)).most_common(REFUSED)

    def text(token: int) -> Any:
        return token if tokenizer is None else repr(tokenizer.decode([token]))

    return [{"drafted": text(one), "target": text(other), "times": count} for (one, other), count in pairs]


def _gammas(readings: Sequence[AnswerReading], costs: Costs | None) -> Rows:
    tokens = sum(map(len, readings))
    rows: Rows = []
    for gamma in range(1, GAMMA + 1):
        rounds = sum(rounds_of(each.right, gamma)[0] for each in readings)
        lookup = sum(rounds_of(each.looked_up[None], gamma)[0] for each in readings)
        speed = None
        if costs is not None:
            speed = tokens / rounds * costs.verify_ms[0] / (costs.verify_ms[gamma] + gamma * costs.draft_ms)
        by_lookup = None if costs is None else tokens / lookup * costs.verify_ms[0] / costs.verify_ms[gamma]
        rows.append({
            "gamma": gamma, "tokens a round": tokens / rounds, "speed": speed, "lookup": tokens / lookup,
            "lookup speed": by_lookup,
        })  # fmt: skip
    return rows


def _break_even(costs: Costs | None) -> float | None:
    """Return the least acceptance at which some γ is faster than none."""
    if costs is None:
        return None
    return next((alpha / 100 for alpha in range(1, 100) if best_pace(alpha / 100, costs).gamma), None)
