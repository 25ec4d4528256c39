"""Predictions and trust once more, in plain Python."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from osd.drafters.ngram.predictions import CLAIM, CLAIMED, COUNTS, LEAST, MEMORY, SHARES, SLOWLY, SURENESS
from tests.support.plain_ngram import PlainTable

Kind = tuple[str, str, int, int, int]
"""Whose, what the other one says, and the context's length, how often it was seen, the token's share."""


def plain_prediction(table: PlainTable, text: Sequence[int]) -> tuple[int, int, int, int] | None:
    """One table's likeliest token after the longest context that it has seen; that context's length and counts."""
    for length in range(min(table.order - 1, len(text)), 0, -1):
        if found := table.lists.get(tuple(text[len(text) - length :])):
            token, count = found[0]
            total = sum(other for _, other in found)
            return token, length, min(COUNTS - 1, int(math.log2(total))), (SHARES - 1) * count // total
    return None


def plain_predictions(shared: PlainTable, own: PlainTable, text: Sequence[int]) -> list[tuple[int, Kind]]:
    """What the tables expect, the shared one first, and the kind of each prediction."""
    whose = {"shared": plain_prediction(shared, text), "own": plain_prediction(own, text)}
    known = {name: prediction for name, prediction in whose.items() if prediction}
    tokens = {prediction[0] for prediction in known.values()}
    others = "nothing" if len(known) == 1 else "the same" if len(tokens) == 1 else "another"
    return [(prediction[0], (name, others, *prediction[1:])) for name, prediction in known.items()]


class PlainTrust:
    """Of greedy rows alone."""

    def __init__(self) -> None:
        self.models: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        self.predictions: dict[Kind, list[float]] = defaultdict(lambda: [0.0, 0.0])

    @staticmethod
    def trust(counts: Sequence[float]) -> float:
        return (counts[0] + 1) / (counts[1] + 2)

    def trust_in_model(self, sureness: int) -> float:
        claim = 0.1 * sureness + 0.05 if sureness < 5 else 1 - 0.75 / 2 ** (sureness - 4)
        right, seen, _ = self.models[sureness]
        return (right + CLAIMED * CLAIM * claim) / (seen + CLAIMED)

    @staticmethod
    def note(counts: list[float], right: bool) -> None:
        counts[0], counts[1] = MEMORY * counts[0] + right, MEMORY * counts[1] + 1

    def gain(self, believed: float) -> float:
        often = sum(counts[2] for counts in self.models.values())
        kinds = list(self.models)
        gain = sum(self.models[kind][2] * max(0.0, self.trust_in_model(kind) - believed) for kind in kinds)
        return gain / often if often >= LEAST else 1.0

    def hear_model(self, sureness: int, right: bool) -> None:
        for kind in range(SURENESS):
            self.models[kind][2] *= SLOWLY
        self.models[sureness][2] += 1
        self.note(self.models[sureness], right)


def plain_sureness(peak: float) -> int:
    return int(10 * peak) if peak < 0.5 else 4 + min(SURENESS - 5, int(-math.log2(max(1e-9, 1 - peak))))
