"""The chains of a batch while they are drafted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from osd.draft import Draft
from osd.sequence import SequenceState
from osd.verification.logits_processors import process_draft


class Chain:
    """Chains of B rows, which grow one token after another; ``vocabulary`` is V, the width of q."""

    def __init__(self, rows: Sequence[SequenceState], vocabulary: int, device: torch.device, *, sampled: bool) -> None:
        self._rows, self._vocabulary, self._device, self._sampled = len(rows), vocabulary, device, sampled
        self.processed = any(row.processors for row in rows)
        """Whether processors change logits."""
        self.tokens: list[Tensor] = []
        """The drafted tokens, (B,) for each step."""
        self._q: list[Tensor] = []
        self.passes = 0
        """Passes of the draft model so far."""
        self.fed = 0
        """Leading tokens that the draft model has read."""

    @property
    def size(self) -> int:
        """Number of tokens so far."""
        return len(self.tokens)

    def process(self, rows: Sequence[SequenceState], lengths: Sequence[int], logits: Tensor) -> Tensor:
        """Return a pass's logits (B, 1, V) as the processors of rows that are going on change them."""
        if not self.processed:
            return logits
        return process_draft(rows, [length > self.size for length in lengths], self.table(), logits)

    def read(self) -> None:
        """Note a pass of the draft model over all tokens so far."""
        self.passes, self.fed = self.passes + 1, self.size

    def add(self, chosen: Tensor, q: Tensor | None) -> None:
        """Append the next tokens (B,), and in a batch that samples the distributions they were drawn from, (B, V)."""
        self.tokens.append(chosen)
        if q is not None:
            self._q.append(q)

    def put_in(self, tokens: Sequence[int]) -> None:
        """Append tokens that are certain: q has all its mass on them."""
        chosen = torch.tensor(tokens, device=self._device)
        q = None
        if self._sampled:
            q = torch.zeros(self._rows, self._vocabulary, dtype=torch.float32, device=self._device)
            q.scatter_(1, chosen.unsqueeze(1), 1.0)
        self.add(chosen, q)

    def unread(self) -> Tensor:
        """Return the tokens that the draft model has not read: (B, n)."""
        new = self.tokens[self.fed :]
        return new[0].unsqueeze(1) if len(new) == 1 else torch.stack(new, dim=1)

    def table(self, size: int | None = None) -> Tensor:
        """Return the first ``size`` tokens of the rows, all without it: (B, n)."""
        nothing = torch.zeros(self._rows, 0, dtype=torch.long, device=self._device)
        return torch.stack(self.tokens[:size], dim=1) if self.tokens[:size] else nothing

    def draft(self, lengths: Sequence[int]) -> Draft:
        """Return the first ``lengths`` tokens of the rows as a draft."""
        size = max(lengths)
        q = torch.stack(self._q[:size], dim=1) if self._q[:size] else None
        return Draft(self.table(size), tuple(lengths), q, self.passes, fed=self.fed)
