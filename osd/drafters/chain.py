"""The chains of a batch while they are drafted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from osd.draft import Draft
from osd.gamma.goodput.repeats import BatchRepeats
from osd.sequence import SequenceState


class Chain:
    """Of B rows, one token after another; ``vocabulary`` is V, the width of q."""

    def __init__(self, rows: Sequence[SequenceState], vocabulary: int, device: torch.device, *, sampled: bool) -> None:
        self._rows, self._vocabulary, self._device, self._sampled = len(rows), vocabulary, device, sampled
        self.repeats = BatchRepeats(rows)
        """What the rows' texts say of its tokens."""
        self.tokens: list[Tensor] = []
        """(B,) each."""
        self._q: list[Tensor] = []
        self.passes = 0
        """Passes of the draft."""
        self.fed = 0
        """Leading tokens that it has read."""

    @property
    def size(self) -> int:
        """Tokens so far."""
        return len(self.tokens)

    def read(self) -> None:
        """The draft has made a pass over all that was here."""
        self.passes, self.fed = self.passes + 1, self.size

    def add(self, chosen: Tensor, q: Tensor | None) -> None:
        """The next tokens (B,), and in a batch that samples what they were drawn from, (B, V)."""
        self.tokens.append(chosen)
        if q is not None:
            self._q.append(q)

    def put_in(self, tokens: Sequence[int]) -> None:
        """The next tokens, which are certain."""
        chosen = torch.tensor(tokens, device=self._device)
        q = None
        if self._sampled:
            q = torch.zeros(self._rows, self._vocabulary, device=self._device).scatter_(1, chosen.unsqueeze(1), 1.0)
        self.add(chosen, q)

    def unread(self) -> Tensor:
        """(B, n) the tokens that the draft has not read."""
        new = self.tokens[self.fed :]
        return new[0].unsqueeze(1) if len(new) == 1 else torch.stack(new, dim=1)

    def draft(self, lengths: Sequence[int]) -> Draft:
        """So much of it."""
        size = max(lengths)
        nothing = torch.zeros(self._rows, 0, dtype=torch.long, device=self._device)
        tokens = torch.stack(self.tokens[:size], dim=1) if size else nothing
        q = torch.stack(self._q[:size], dim=1) if self._q[:size] else None
        return Draft(tokens, tuple(lengths), q, self.passes, fed=self.fed)
