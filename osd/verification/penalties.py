"""Penalties for tokens that a text has already: repetition, presence, frequency, n-grams.

Each changes logits as the processor of transformers or vLLM that has its name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from osd.verification.logits_processors import StatefulProcessor


class OccurrenceCounts(StatefulProcessor):
    """Base of what depends on how often each token has come."""

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.counts: Counter[int] = Counter()

    def advance(self, token: int) -> bool:
        """Count a token."""
        self.counts[token] += 1
        return True

    def rollback(self, tokens: Sequence[int]) -> None:
        """Take tokens out of the counts."""
        for token in tokens:
            self.counts[token] -= 1
            if not self.counts[token]:
                del self.counts[token]


class RepetitionPenalty(OccurrenceCounts):
    """Divides the positive logits of tokens of prompt and output by ``penalty``, and multiplies the negative ones."""

    def __init__(self, penalty: float) -> None:
        super().__init__(0)
        self._penalty = penalty

    def change(self, logits: Tensor) -> None:
        """Penalise what has come; see :class:`StatefulProcessor`."""
        seen = torch.tensor(list(self.counts), device=logits.device)
        scores = logits[seen]
        logits[seen] = torch.where(scores < 0, scores * self._penalty, scores / self._penalty)


class OutputPenalties(OccurrenceCounts):
    """Subtracts ``frequency`` for each time that the output has had a token, and ``presence`` where it has."""

    def __init__(self, prompt_len: int, frequency: float, presence: float) -> None:
        super().__init__(prompt_len)
        self._frequency, self._presence = frequency, presence

    def change(self, logits: Tensor) -> None:
        """Penalise what has come; see :class:`StatefulProcessor`."""
        if self.counts:
            seen = torch.tensor(list(self.counts), device=logits.device)
            often = torch.tensor(list(self.counts.values()), dtype=logits.dtype, device=logits.device)
            logits[seen] -= self._frequency * often + self._presence


class NoRepeatNgram(StatefulProcessor):
    """Forbids the tokens that would complete an n-gram that prompt and output have had, of ``size`` tokens."""

    def __init__(self, size: int) -> None:
        super().__init__(0)
        self._size = size
        self._tokens: list[int] = []
        self._followed_by: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)

    def advance(self, token: int) -> bool:
        """Note the n-gram that the token completes."""
        if len(self._tokens) >= self._size - 1:
            self._followed_by[self._end()].append(token)
        self._tokens.append(token)
        return True

    def rollback(self, tokens: Sequence[int]) -> None:
        """Forget the n-grams that the newest tokens completed."""
        for _ in tokens:
            self._tokens.pop()
            if len(self._tokens) >= self._size - 1:
                self._followed_by[self._end()].pop()

    def change(self, logits: Tensor) -> None:
        """Forbid what would repeat; see :class:`StatefulProcessor`."""
        logits[self._followed_by.get(self._end(), [])] = -torch.inf

    def _end(self) -> tuple[int, ...]:
        return tuple(self._tokens[len(self._tokens) - self._size + 1 :])
