"""A prompt as a short vector (on-the-fly adaptation, section 5), and least squares on it.

A vector is a prompt's length, its perplexity and its TF-IDF. TF-IDF over a vocabulary is as long as the vocabulary, and
least squares on a few dozen prompts needs r features, not thousands: so tokens are hashed, with a sign, into the
remaining r − 3 places (the paper's Table 13 has r from 4 to 16).

α̂ = uᵀ Ẑ is predicted by Ẑ = (Σ b bᵀ)⁻¹ Σ b α over the prompts b seen so far (Eq. 5). The paper fits it once on r
prompts; here it goes on with every outcome, and what is old counts less, since drafts learn and traffic moves. Several
numbers may be predicted from one prompt at once: they share Σ b bᵀ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

RIDGE = 1e-2
"""Ridge term added to the diagonal: Σ b bᵀ is singular until there are r independent prompts."""
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


class LeastSquares:
    """A recursive least-squares model that predicts ``outputs`` numbers from a prompt's vector."""

    def __init__(self, dimensions: int, outputs: int = 1, *, memory: float = 400.0) -> None:
        """Start with nothing learned. After ``memory`` prompts, one counts e times less."""
        self._keep = float(np.exp(-1.0 / memory))
        self._products: Vector = np.zeros((dimensions, dimensions))
        self._sums: Vector = np.zeros((dimensions, outputs))
        self._weights: Vector = np.zeros((dimensions, outputs))
        self._stale = False
        self.seen = 0
        """Number of prompts learned from."""

    def state(self) -> dict[str, Any]:
        """Return what it has learned, for JSON."""
        return {"products": self._products.tolist(), "sums": self._sums.tolist(), "seen": self.seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned. Raises ValueError for other dimensions or numbers that are not
        finite."""
        products, sums = np.array(state["products"], np.float64), np.array(state["sums"], np.float64)
        if products.shape != self._products.shape or sums.shape != self._sums.shape:
            raise ValueError(f"sums of shape {sums.shape}, {self._sums.shape} are needed")
        if not (np.isfinite(products).all() and np.isfinite(sums).all()):
            raise ValueError("sums that are not finite")
        self._products, self._sums, self.seen, self._stale = products, sums, int(state["seen"]), True

    def predict(self, vector: Vector) -> Vector:
        """Predict (outputs,) numbers for a prompt's vector (r,)."""
        if self._stale:
            ridge = RIDGE * np.eye(len(self._sums))
            self._weights[:] = np.linalg.solve(self._products + ridge, self._sums)
            self._stale = False
        predicted: Vector = vector @ self._weights
        return predicted

    def learn(self, vector: Vector, values: Vector, weight: float = 1.0) -> None:
        """Add a prompt's vector (r,) with its results ``values`` (outputs,); ``weight`` 1 counts as one prompt."""
        self._products = self._keep * self._products + weight * np.outer(vector, vector)
        self._sums = self._keep * self._sums + weight * np.outer(vector, values)
        self._stale = True
        self.seen += 1
