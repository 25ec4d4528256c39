"""The one place where logits become the distribution that is sampled from.

Target and draft pass through the same warping, in Hugging Face's order: temperature, then top-k, then
top-p on what is left. Temperature 0 is the limit: all mass on the likeliest token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from storage.records import Sampling


@dataclass(frozen=True, slots=True)
class Warp:
    """The sampling settings of B rows, as tensors."""

    temperature: Tensor
    """(B,) float32; 1 where the row is greedy."""
    greedy: Tensor
    """(B,) bool."""
    top_k: Tensor | None
    """(B,) int64, the vocabulary's size where a row keeps all; None when every row does."""
    top_p: Tensor | None
    """(B,) float32, 1 where a row keeps all; None when every row does."""

    @classmethod
    def of(cls, rows: Sequence[Sampling], vocabulary: int, device: torch.device) -> Warp | None:
        """Gather the settings of a batch; None when all are greedy, for then no probability is needed."""
        if not any(r.temperature > 0 for r in rows):
            return None

        def column(values: list[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        some_k, some_p = any(r.top_k for r in rows), any(r.top_p is not None and r.top_p < 1 for r in rows)
        return cls(
            column([r.temperature or 1.0 for r in rows], torch.float32),
            column([r.temperature == 0 for r in rows], torch.bool),
            column([min(r.top_k or vocabulary, vocabulary) for r in rows], torch.int64) if some_k else None,
            column([1.0 if r.top_p is None else r.top_p for r in rows], torch.float32) if some_p else None,
        )

    def take(self, places: Sequence[int]) -> Warp:
        """The settings of the rows at these places."""
        index = torch.tensor(places, device=self.greedy.device)
        columns = (self.temperature, self.greedy, self.top_k, self.top_p)
        return Warp(*(None if column is None else column[index] for column in columns))  # type: ignore[arg-type]

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits (B, T, V) → probabilities (B, T, V), float32."""
        greedy = logits.argmax(-1, keepdim=True)
        scores = logits.float() / self.temperature[:, None, None]
        if self.top_k is not None or self.top_p is not None:
            scores = self._filter(scores)
        probabilities = scores.softmax(-1)
        one_hot = torch.zeros_like(probabilities).scatter_(-1, greedy, 1.0)
        return torch.where(self.greedy[:, None, None], one_hot, probabilities)

    def _filter(self, scores: Tensor) -> Tensor:
        ranked, order = scores.sort(dim=-1, descending=True, stable=True)
        drop = torch.zeros_like(ranked, dtype=torch.bool)
        if self.top_k is not None:
            drop |= torch.arange(ranked.shape[-1], device=ranked.device) >= self.top_k[:, None, None]
            ranked = ranked.masked_fill(drop, -torch.inf)
        if self.top_p is not None:
            mass = ranked.softmax(-1)
            drop |= mass.cumsum(-1) - mass >= self.top_p[:, None, None]
        drop[..., 0] = False  # the likeliest token always stays
        return scores.masked_fill(torch.zeros_like(drop).scatter_(-1, order, drop), -torch.inf)


def draw(probabilities: Tensor, chance: Tensor) -> Tensor:
    """Inverse-CDF sampling: probabilities (…, V), not necessarily summing to 1, and chance (…) in [0, 1) → ids (…).

    A token of probability 0 is never drawn.
    """
    mass = probabilities.double().cumsum(-1)
    threshold = chance.double().unsqueeze(-1) * mass[..., -1:]
    return torch.searchsorted(mass, threshold, right=True).squeeze(-1).clamp_(max=probabilities.shape[-1] - 1)
