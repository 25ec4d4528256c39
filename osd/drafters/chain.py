"""What grows in one round: the chains of a batch's rows, the signals of each pass for gamma rules, and the choice of
tokens as it is captured in a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from osd.draft import Draft
from osd.drafters.base import DraftRequest
from osd.gamma.base import Signal
from osd.models.acceptance_head import Heads
from osd.models.fixed_pass import Choose
from osd.verification.compiled_sampling import ReadOff
from osd.verification.logits_processors import process_draft
from osd.verification.warping import Warp, draw


class Chain:
    """Chains of B rows, which grow one token after another; ``vocabulary`` is V, the width of q."""

    def __init__(self, request: DraftRequest, vocabulary: int, device: torch.device) -> None:
        self._request, self._vocabulary, self._device = request, vocabulary, device
        self.lengths = list(request.gammas)
        """(B,) tokens that a row will have; fewer once it has stopped."""
        self.processed = any(row.processors for row in request.rows)
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

    def is_whole(self) -> bool:
        """Return whether no row goes on."""
        return self.size >= max(self.lengths)

    @property
    def going(self) -> list[bool]:
        """(B,) which rows go on."""
        return [length > self.size for length in self.lengths]

    def cut(self) -> None:
        """End all rows here."""
        self.lengths = [min(length, self.size) for length in self.lengths]

    def process(self, logits: Tensor) -> Tensor:
        """Return a pass's logits (B, 1, V) as the processors of rows that are going on change them."""
        return process_draft(self._request.rows, self.going, self.table(), logits) if self.processed else logits

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
        if self._request.sampled:
            q = torch.zeros(len(tokens), self._vocabulary, dtype=torch.float32, device=self._device)
            q.scatter_(1, chosen.unsqueeze(1), 1.0)
        self.add(chosen, q)

    def unread(self) -> Tensor:
        """Return the tokens that the draft model has not read: (B, n)."""
        new = self.tokens[self.fed :]
        return new[0].unsqueeze(1) if len(new) == 1 else torch.stack(new, dim=1)

    def table(self, size: int | None = None) -> Tensor:
        """Return the first ``size`` tokens of the rows, all without it: (B, n)."""
        nothing = torch.zeros(len(self.lengths), 0, dtype=torch.long, device=self._device)
        return torch.stack(self.tokens[:size], dim=1) if self.tokens[:size] else nothing

    def draft(self) -> Draft:
        """Return the chains as a draft."""
        size = max(self.lengths)
        q = torch.stack(self._q[:size], dim=1) if self._q[:size] else None
        return Draft(self.table(size), tuple(self.lengths), q, self.passes, fed=self.fed)


class PassInfo(NamedTuple):
    """What is known beside a pass's logits."""

    read_off: ReadOff | None = None
    """What the pass itself computed from its logits."""
    head: Heads | None = None
    embedding: Tensor | None = None
    """(B, 1, D) the draft's final hidden states for the tokens before."""


class Signals:
    """Signals of one pass."""

    def __init__(self, logits: Tensor, chosen: Tensor, info: PassInfo = PassInfo()) -> None:  # noqa: B008, it is a constant
        """Take ``logits`` (B, V), and the tokens chosen from them (B,)."""
        self._logits, self._chosen, self._info = logits, chosen, info

    def read(self, signal: Signal) -> list[Any]:
        """Read a signal, as :meth:`osd.drafters.base.PassSignals.read`, before temperature and cuts, so that
        greedy and sampling rows compare. ``acceptance`` is NaN where there is no head yet."""
        if signal == "peak_token":
            return self._peak_tokens()
        if signal == "acceptance":
            return self._acceptance()
        known = self._info.read_off
        if known and (signal == "peak" or self._chosen is known.choices):
            return known.peaks
        return self._likelihood(signal).tolist()

    def _likelihood(self, signal: Signal) -> Tensor:
        likelihood = self._logits.softmax(-1, dtype=torch.float32)  # on the CPU three times as fast as logsumexp
        return likelihood.amax(-1) if signal == "peak" else likelihood.gather(1, self._chosen.unsqueeze(1)).squeeze(1)

    def _acceptance(self) -> list[float]:
        head, embedding, known = self._info.head, self._info.embedding, self._info.read_off
        if known and known.chances is not None:
            return known.chances
        if head is None or embedding is None:
            return [math.nan] * len(self._logits)
        return head(embedding[:, 0]).tolist()

    def _peak_tokens(self) -> list[tuple[float, int]]:
        """Return ``peak_token``: each row's likeliest token, whatever was drawn, for what is drawn must not decide
        whether it is verified. On a device one transfer brings both."""
        known = self._info.read_off
        if known:
            return list(zip(known.peaks, known.choices.tolist(), strict=True))
        peaks, tokens = self._logits.softmax(-1, dtype=torch.float32).max(-1)
        lines = torch.stack([peaks.double(), tokens.double()]).tolist()
        return [(peak, int(token)) for peak, token in zip(*lines, strict=True)]


@dataclass(frozen=True, slots=True)
class SampledChoice:
    """Draws the next tokens of a batch in a graph: settings and uniforms are inputs, so that one graph serves all
    batches of a kind; see :class:`osd.models.fixed_pass.Chooser`. The uniforms are the rows' own, as elsewhere."""

    warp: Warp
    chance: Tensor
    """(B, G or more) float64 uniforms."""
    step: int
    """Tokens of the chain that were chosen before."""

    @property
    def kind(self) -> tuple[bool, ...]:
        """Which steps of warping are made."""
        return self.warp.steps

    def inputs(self, drafts: int) -> Sequence[Tensor]:
        """Return settings (B, 4), and the uniforms of the next ``drafts`` tokens."""
        settings = torch.from_numpy(self.warp.settings).to(self.chance.device, torch.float32)
        return settings, self.chance[:, self.step : self.step + drafts]

    def over(self, inputs: Sequence[Tensor]) -> Choose:
        """Return the choice by other numbers of this kind."""
        settings, chance = inputs

        def choose(logits: Tensor, step: int) -> tuple[Tensor, Tensor]:
            q = self.warp.over(settings)(logits)[:, 0]
            return draw(q, chance[:, step]), q

        return choose
