"""Drift detection: whether a route's newest requests differ from those before them, by their tokens.

Each request becomes a vector (TF-IDF over its tokens, reduced as for clusters); the distance between the two means is
compared with distances between random halves of the same requests. So false alarms occur at the rate ``LEVEL``,
whatever the traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from router.clusters import LEAST, Vectors, vectors_of

NEWEST = 0.25
"""Share of the requests that count as new."""
SHUFFLES = 999
LEVEL = 0.001
"""Probability of a false alarm on traffic that did not move."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The result of the comparison."""

    moved: bool
    distance: float
    """Distance between the mean vectors of old and new requests, in [0, 2]."""
    p_value: float
    """Share of random divisions with at least this distance."""
    requests: int
    new: int
    """How many of them, the newest, were compared with the others."""


def find_drift(documents: Sequence[Sequence[int]], seed: int = 0) -> Drift | None:
    """Test requests given as token ids, oldest first, for drift; None when there are too few of them."""
    new = int(len(documents) * NEWEST)
    if new < LEAST:
        return None
    vectors = vectors_of(documents, seed)
    distance = _apart(vectors, np.arange(len(vectors)) >= len(vectors) - new)
    chance = np.random.default_rng(seed)
    is_new = np.arange(len(vectors)) < new
    further = sum(_apart(vectors, chance.permutation(is_new)) >= distance for _ in range(SHUFFLES))
    p_value = (1 + further) / (1 + SHUFFLES)
    return Drift(p_value <= LEVEL, round(distance, 4), round(p_value, 4), len(documents), new)


def _apart(vectors: Vectors, is_new: npt.NDArray[np.bool_]) -> float:
    return float(np.linalg.norm(vectors[is_new].mean(axis=0) - vectors[~is_new].mean(axis=0)))
