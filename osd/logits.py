"""The target's logits of one pass over rows that may each have fed another number of tokens, and log-probabilities.

Logits stay one line after another, as the pass makes them: a batch whose drafts have different lengths would else write
a table of which half is padding, and look through it, which took a twentieth of its round (docs/bench-log.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class RaggedLogits(NamedTuple):
    """Logits of B rows that fed different numbers of tokens."""

    lines: Tensor
    """(N, V) logits, row after row."""
    begins: Sequence[int]
    """(B,) the first line of each row."""
    hidden: Tensor | None = None
    """(N, D) the hidden states that the lines come from, after the final norm; None where nobody keeps them."""

    @classmethod
    def of(cls, logits: Tensor) -> RaggedLogits:
        """Wrap the logits of rows that fed equally many tokens: (B, T, V)."""
        rows, width = logits.shape[:2]
        return cls(logits.flatten(0, 1), range(0, rows * width, width))

    @classmethod
    def packed(cls, lines: Tensor, counts: Sequence[int]) -> RaggedLogits:
        """Wrap packed logits (N, V), of which row i has the next ``counts[i]`` lines."""
        begins = [0] * len(counts)
        for row, count in enumerate(counts[:-1]):
            begins[row + 1] = begins[row] + count
        return cls(lines, begins)

    def at(self, row: int, places: Sequence[int]) -> Tensor:
        """Return one row's logits after its fed tokens at these places: (m, V)."""
        return self.lines[[self.begins[row] + place for place in places]]

    def first(self, row: int, count: int) -> Tensor:
        """Return one row's logits after its first tokens: (``count``, V)."""
        return self.lines[self.begins[row] :][:count]

    def table(self, width: int) -> Tensor:
        """Return the logits padded to (B, T, V) for T = ``width``, at least the tokens of each row; 0 where it fed
        none."""
        rows = len(self.begins)
        if len(self.lines) == rows * width:
            return self.lines.view(rows, width, -1)
        return spread(self.lines, self._places(width), rows, width)

    def _places(self, width: int) -> Tensor:
        ends = [*self.begins[1:], len(self.lines)]
        counts = [end - begin for begin, end in zip(self.begins, ends, strict=True)]
        found = [row * width + i for row, count in enumerate(counts) for i in range(count)]
        return torch.tensor(found, device=self.lines.device)


def spread(lines: Tensor, places: Tensor, rows: int, count: int) -> Tensor:
    """(N, …) at their places among (rows, count, …), 0 elsewhere."""
    whole = lines.new_zeros(rows * count, *lines.shape[1:])
    return whole.index_copy_(0, places, lines).view(rows, count, *lines.shape[1:])


class Scores(NamedTuple):
    """The log-probabilities of m tokens: those that a round emitted, or all of a prompt but its first."""

    chosen: list[float]
    """(m,) log-probability of each token."""
    top_ids: list[list[int]]
    """(m, k) likeliest token ids, likeliest first."""
    top: list[list[float]]
    """(m, k) log-probabilities of those."""
    ranks: list[int]
    """(m,) how many tokens are as likely as each or likelier, itself included."""

    def then(self, later: Scores) -> Scores:
        """Concatenate with the scores of later tokens."""
        return Scores(
            self.chosen + later.chosen, self.top_ids + later.top_ids, self.top + later.top, self.ranks + later.ranks
        )


def score(logits: Tensor, tokens: Sequence[int], top: int) -> Scores:
    """Compute scores from the target's logits (m, V) at the m tokens' positions; ``top`` is k."""
    logprobs = logits.float().log_softmax(-1)
    which = torch.tensor(tokens, device=logprobs.device).unsqueeze(1)
    values, ids = logprobs.topk(min(top, logprobs.shape[-1]), dim=-1)
    chosen = logprobs.gather(1, which)
    ranks = (logprobs >= chosen).sum(1)
    return Scores(chosen.squeeze(1).tolist(), ids.tolist(), values.tolist(), ranks.tolist())
