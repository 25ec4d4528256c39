"""A prompt as a short vector: its length, its perplexity and its TF-IDF (on-the-fly adaptation, section 5).

TF-IDF over a vocabulary is as long as the vocabulary, and least squares on a few dozen prompts needs r features, not
thousands: so tokens are hashed, with a sign, into the remaining r − 3 places (the paper's Table 13 has r from 4 to
16).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

FIXED = 3
"""Number of leading features: a constant, length and perplexity."""
COMMON = 8
"""Prompts that must contain a token before its count is saved: rarer ones could identify somebody."""
SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Knuth's multiplier, which spreads neighbouring ids."""


class PromptVectors:
    """Makes vectors, and learns document frequencies of tokens from prompts. Not thread-safe."""

    def __init__(self, dimensions: int = 16) -> None:
        """Start with nothing learned. ``dimensions`` is r, at least 4."""
        self.dimensions = dimensions
        self._documents = 0
        self._holding: dict[int, int] = {}

    def state(self) -> dict[str, Any]:
        """Return the document frequencies of common tokens, for JSON. May be called by another thread."""
        common = {token: held for token, held in self._holding.copy().items() if held >= COMMON}
        return {"documents": self._documents, "tokens": list(common), "held": list(common.values())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned. Raises ValueError for an invalid state."""
        self._holding = {int(token): int(held) for token, held in zip(state["tokens"], state["held"], strict=True)}
        self._documents = max([int(state["documents"]), 0, *self._holding.values()])

    def vector(self, tokens: Sequence[int], perplexity: float | None) -> Vector:
        """Return a prompt's vector, shape (r,).

        ``perplexity`` is exp of the mean negative log-likelihood under the target; None where it was not measured,
        which counts as 1, the perplexity of a certain prompt.
        """
        ids, counts = np.unique(np.asarray(tokens, dtype=np.int64), return_counts=True)
        log_perplexity = 0.0 if perplexity is None else float(np.log(max(perplexity, 1.0)))
        head = np.array([1.0, np.log1p(len(tokens)) / 5.0, log_perplexity / 5.0])
        return np.concatenate([head, self._hashed(ids, counts / max(1, len(tokens)) * self._idf(ids))])

    def learn(self, tokens: Sequence[int]) -> None:
        """Count a prompt's tokens in the document frequencies."""
        self._documents += 1
        for token in set(tokens):
            self._holding[token] = self._holding.get(token, 0) + 1

    def _idf(self, ids: npt.NDArray[np.int64]) -> Vector:
        """Return ln((1 + N) ÷ (1 + df)) + 1 for each token, smoothed as in scikit-learn."""
        holding = np.array([self._holding.get(int(token), 0) for token in ids], dtype=np.float64)
        return np.log((1 + self._documents) / (1 + holding)) + 1

    def _hashed(self, ids: npt.NDArray[np.int64], weights: Vector) -> Vector:
        """Return the hashed TF-IDF, shape (r − 3,), of unit length."""
        mixed = ids.astype(np.uint64) * SPREAD
        places = (mixed >> np.uint64(33)) % np.uint64(self.dimensions - FIXED)
        signs = np.where(mixed >> np.uint64(32) & np.uint64(1), 1.0, -1.0)
        folded = np.bincount(places.astype(np.int64), weights * signs, minlength=self.dimensions - FIXED)
        return folded / max(float(np.linalg.norm(folded)), 1e-12)
