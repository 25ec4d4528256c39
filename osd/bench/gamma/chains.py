"""The draft's chains at every position of a text: rows of one batch, which draft together.

For some positions at a time the draft's cache is filled with the text once and copied to a row each. Greedy chains are
held against the text itself. Sampled ones are read by the target, in the same way, for only it can say what it
thinks of a token that its text does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from osd.bench.contenders import Tokens
from osd.bench.gamma.rounds import Floats, Ints
from osd.drafters.signals import PassInfo, Signals
from osd.models.acceptance_head import HeadPass
from osd.models.decoder import Decoder
from osd.models.pair import Pair
from osd.verification.warping import Warp, draw
from storage.records import Sampling


class Chains(NamedTuple):
    """(n, G) each; see :class:`osd.bench.gamma.rounds.RecordedText`."""

    drafted: Ints
    confidence: Floats
    peak: Floats
    acceptance: Floats
    head: Floats | None


class _Step(NamedTuple):
    """One draft pass over B rows, (B,) each."""

    token: Tensor
    q: Tensor
    """Probability with which the token was drawn."""
    confidence: Tensor
    peak: Tensor
    head: Tensor


class ChainDrawer:
    """Draws chains over one text after another."""

    def __init__(
        self, pair: Pair, temperature: float, rows: int, length: int, depth: int, seed: int, head: HeadPass | None
    ) -> None:
        """``rows`` positions together; ``length``: of the longest text, its prompt and a chain included."""
        self._pair, self._depth, self._rows, self._head = pair, depth, rows, head
        self._draft = pair.draft.decoder(rows, length)
        self._draft.cache.wants_embedding = head is not None
        self._target = pair.target.decoder(rows, length) if temperature else None
        self._sampling = Sampling(temperature)
        self._chance = np.random.default_rng(seed)

    @torch.inference_mode()
    def chains(self, prompt: Tokens, text: Sequence[int], beyond: Sequence[int]) -> Chains:
        """The chains of a text of n tokens. ``beyond``: how a greedy one would go on after its end token."""
        parts = [
            self._some([*prompt, *text], len(prompt) + first, len(prompt) + min(first + self._rows, len(text)))
            for first in range(0, len(text), self._rows)
        ]
        tokens, confidence, peak, head, acceptance = (np.concatenate(column) for column in zip(*parts, strict=True))
        drafted = tokens.astype(np.int32)
        if self._target is None:
            acceptance = _agreement(drafted, np.array([*text, *beyond], np.int32))
        return Chains(drafted, confidence, peak, acceptance, head if self._head else None)

    def _some(self, tokens: list[int], first: int, end: int) -> list[Floats]:
        """What rows that have read ``first`` to ``end − 1`` tokens drafted; confidence, peak, head, acceptance."""
        lengths = range(first, end)
        warp = Warp.of([self._sampling] * len(lengths), self._pair.vocab_size, self._pair.device)
        steps = list(self._drafted(tokens, lengths, warp))
        drafted, q, *signals = (torch.stack(column, dim=1) for column in zip(*steps, strict=True))
        accepted = self._accepted(tokens, lengths, drafted, q, warp) if warp else q
        return [drafted.cpu().numpy(), *(column.float().cpu().numpy() for column in (*signals, accepted))]

    def _drafted(self, tokens: list[int], lengths: Sequence[int], warp: Warp | None) -> Iterator[_Step]:
        _fork(self._draft, tokens, lengths)
        fed = torch.tensor([tokens[length - 1] for length in lengths], device=self._pair.device)
        for step in range(self._depth):
            logits = self._draft.logits(fed.unsqueeze(1), [length - 1 + step for length in lengths])
            logits = F.pad(logits, (0, self._pair.vocab_size - logits.shape[-1]), value=float("-inf"))
            fed, q = self._choose(logits, warp)
            signals = Signals(logits[:, 0], fed, PassInfo(head=self._head, embedding=self._draft.cache.embedding))
            estimate = signals.read("acceptance") if self._head else [0.0] * len(lengths)
            yield _Step(fed, q, *torch.tensor([signals.read("confidence"), signals.read("peak"), estimate]))

    def _choose(self, logits: Tensor, warp: Warp | None) -> tuple[Tensor, Tensor]:
        if warp is None:
            chosen = logits[:, 0].argmax(-1)
            return chosen, torch.ones(len(chosen))
        q = warp(logits)[:, 0]
        chosen = draw(q, torch.tensor(self._chance.random(len(q)), device=q.device))
        return chosen, q.gather(1, chosen.unsqueeze(1)).squeeze(1)

    def _accepted(self, tokens: list[int], lengths: Sequence[int], drafted: Tensor, q: Tensor, warp: Warp) -> Tensor:
        """min(1, p ÷ q) of every drafted token: (B, G)."""
        assert self._target is not None
        _fork(self._target, tokens, lengths)
        last = torch.tensor([[tokens[length - 1]] for length in lengths], device=self._pair.device)
        logits = self._target.logits(torch.cat([last, drafted[:, :-1]], dim=1), [length - 1 for length in lengths])
        p = warp(logits).gather(2, drafted.unsqueeze(2)).squeeze(2)
        return (p / q).clamp(max=1.0)


def _fork(decoder: Decoder, tokens: Sequence[int], lengths: Sequence[int]) -> None:
    """Let row i's cache hold all but the last of the first ``lengths[i]`` tokens; the last row is the longest."""
    decoder.prefill(0, tokens[: lengths[-1] - 1])
    for row, length in enumerate(lengths[1:], start=1):
        decoder.move_row(0, row, length - 1)


def _agreement(drafted: Ints, text: Ints) -> Floats:
    """1 where a chain (n, G) still is the text, which may reach beyond its end; else 0."""
    n, depth = drafted.shape
    padded = np.concatenate([text, np.full(max(0, n + depth - len(text)), -1, np.int32)])
    said = np.lib.stride_tricks.sliding_window_view(padded, depth)[:n]
    return np.asarray((drafted == said).cumprod(axis=1), np.float32)
