"""Guesses and trust once more, in plain Python."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from osd.ngram.guess import CLAIM, CLAIMED, COUNTS, LEAST, MEMORY, SHARES, SLOWLY, SURENESS
from tests.osd.ngram.plain import PlainTable

Kind = tuple[int, bool, int, int]


def plain_guess(shared: PlainTable, own: PlainTable, text: Sequence[int], weight: float) -> tuple[int, Kind] | None:
    """The likeliest token after the longest context that was seen, and its kind."""
    for length in range(min(shared.order - 1, len(text)), 0, -1):
        context = tuple(text[len(text) - length :])
        here, mine = dict(shared.lists.get(context, [])), dict(own.lists.get(context, []))
        if not here and not mine:
            continue
        counts: dict[int, float] = {}
        if here:
            first = shared.lists[context][0][0]
            counts[first] = float(here[first])
        for token, count in mine.items():
            counts[token] = weight * count + here.get(token, 0)
        best, total = max(counts.values()), sum(here.values()) + weight * sum(mine.values())
        token = next(t for t, c in counts.items() if c == best)
        often = min(COUNTS - 1, int(math.log2(total)))
        return token, (length, bool(mine), often, int((SHARES - 1) * best / total))
    return None


class PlainTrust:
    """Of greedy rows alone."""

    def __init__(self) -> None:
        self.models: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        self.guesses: dict[Kind, list[float]] = defaultdict(lambda: [0.0, 0.0])

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
