"""Warping: the one place where logits become the distribution that is sampled from.

Target and draft pass through the same warping, in Hugging Face's order: temperature, then top-k,
top-p on what is left, then min-p. Temperature 0 is the limit: all mass on the likeliest token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from storage.sampling import Sampling


class Warp:
    """The sampling settings of B rows, of which at least one samples."""

    def __init__(self, rows: Sequence[Sampling], vocabulary: int, device: torch.device) -> None:
        self._rows, self._vocabulary, self._device = rows, vocabulary, device
        self._given: Tensor | None = None

    @classmethod
    def of(cls, rows: Sequence[Sampling], vocabulary: int, device: torch.device) -> Warp | None:
        """Collect the settings of a batch; return None when all are greedy, for then no probability is needed."""
        return None if all(r.greedy for r in rows) else cls(rows, vocabulary, device)

    def take(self, places: Sequence[int]) -> Warp:
        """Return the settings of the rows at these places."""
        return Warp([self._rows[i] for i in places], self._vocabulary, self._device)

    def on(self, device: torch.device) -> Warp:
        """Return the same for logits on another device."""
        return Warp(self._rows, self._vocabulary, device)

    @cached_property
    def steps(self) -> tuple[bool, bool, bool, bool]:
        """Whether any row is greedy, and whether any cuts by top-k, top-p, min-p."""
        _, few, part, likely = self.settings.T
        return self._any_greedy, bool((few < self._vocabulary).any()), bool((part < 1).any()), bool((likely > 0).any())

    def over(self, settings: Tensor) -> Warp:
        """Return the same steps by other ``settings``, (B, 4) float32 on the device."""
        other = Warp(self._rows, self._vocabulary, self._device)
        other._given = settings
        return other

    @cached_property
    def settings(self) -> npt.NDArray[np.float64]:
        """(B, 4) temperature (0 where greedy), top-k (the vocabulary's size where all are kept), top-p (1 where so) and
        min-p (0 where so)."""
        return np.array([(0 if r.greedy else r.temperature, *self._cuts(r)) for r in self._rows], np.float64)

    def _cuts(self, row: Sampling) -> tuple[int, float, float]:
        few = row.top_k if row.top_k and row.top_k > 0 else self._vocabulary
        return min(few, self._vocabulary), 1.0 if row.top_p is None else row.top_p, row.min_p or 0.0

    @cached_property
    def _greedy(self) -> Tensor:
        """(B,) bool: which rows are greedy."""
        return self._column(0) == 0

    @cached_property
    def _any_greedy(self) -> bool:
        return bool((self.settings[:, 0] == 0).any())

    @cached_property
    def _temperature(self) -> Tensor:
        """(B,) float32 temperature; 1 where the row is greedy."""
        return torch.where(self._greedy, 1.0, self._column(0))

    @cached_property
    def _top_k(self) -> Tensor | None:
        """(B,) float32 top-k; None when every row keeps all."""
        return self._column(1) if self.steps[1] else None

    @cached_property
    def _top_p(self) -> Tensor | None:
        """(B,) float32 top-p; None when every row keeps all."""
        return self._column(2) if self.steps[2] else None

    @cached_property
    def _min_p(self) -> Tensor | None:
        """(B,) float32 min-p; None when every row keeps all."""
        return self._column(3) if self.steps[3] else None

    def _column(self, index: int) -> Tensor:
        if self._given is not None:
            return self._given[:, index]
        return torch.tensor(self.settings[:, index], dtype=torch.float32, device=self._device)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return probabilities (B, T, V), float32, for logits (B, T, V)."""
        greedy = logits.argmax(-1, keepdim=True)
        scores = logits.float() - logits.gather(-1, greedy)  # or the quotient by a small temperature overflows
        scores /= self._temperature[:, None, None]
        if self._top_k is not None or self._top_p is not None:
            scores = self._filter(scores)
        probabilities = scores.softmax(-1)
        if self._min_p is not None:
            least = self._min_p[:, None, None] * probabilities.amax(-1, keepdim=True)
            probabilities = scores.masked_fill(probabilities < least, -torch.inf).softmax(-1)
        if not self._any_greedy:
            return probabilities
        one_hot = torch.zeros_like(probabilities).scatter_(-1, greedy, 1.0)
        return torch.where(self._greedy[:, None, None], one_hot, probabilities)

    def _filter(self, scores: Tensor) -> Tensor:
        ranked, order = scores.sort(dim=-1, descending=True, stable=True)
        drop = torch.zeros_like(ranked, dtype=torch.bool)
        if self._top_k is not None:
            drop |= torch.arange(ranked.shape[-1], device=ranked.device) >= self._top_k[:, None, None]
            ranked = ranked.masked_fill(drop, -torch.inf)
        if self._top_p is not None:
            mass = ranked.softmax(-1)
            drop |= mass.cumsum(-1) - mass >= self._top_p[:, None, None]
        drop[..., 0] = False  # the likeliest token always stays
        return scores.masked_fill(torch.zeros_like(drop).scatter_(-1, order, drop), -torch.inf)


def draw(probabilities: Tensor, chance: Tensor) -> Tensor:
    """Draw by the inverse CDF: probabilities (…, V), not necessarily summing to 1, and chance (…) in [0, 1) → ids (…).

    A token of probability 0 is never drawn.
    """
    mass = probabilities.double().cumsum(-1)
    threshold = chance.double().unsqueeze(-1) * mass[..., -1:]
    return torch.searchsorted(mass, threshold, right=True).squeeze(-1).clamp_(max=probabilities.shape[-1] - 1)
