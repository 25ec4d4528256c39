"""α̂ = uᵀ Ẑ by least squares, one prompt at a time (on-the-fly adaptation, Eq. 5).

Ẑ = (Σ b bᵀ)⁻¹ Σ b α over the prompts b seen so far. The paper fits it once on r prompts; here it goes on with every
outcome, and what is old counts less, since drafts learn and traffic moves. Several numbers may be predicted from one
prompt at once: they share Σ b bᵀ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

RIDGE = 1e-2
"""Ridge term added to the diagonal: Σ b bᵀ is singular until there are r independent prompts."""


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
