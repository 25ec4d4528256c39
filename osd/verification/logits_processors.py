"""Logits processors: what changes the logits of a row's next token, given its tokens so far: penalties, biases, masks.

A row has a list of them (:attr:`osd.sequence.SequenceState.processors`), mostly empty. They see the target's logits at
every position that is verified and the draft's at every position that it drafts, before both go through one warping:
so p and q change alike, and what is accepted follows the processed target exactly, at any temperature. Tokens that a
table proposes are certain, they have no q; one that a processor forbids has p = 0 and is refused. What is recorded and
what clients get as log-probabilities stays the target's own.

A processor belongs to one row and is asked about texts that begin with the row's tokens, which only ever grow, and go
on with tokens that were drafted, which may be refused: in a round first about growing drafts, then about all positions
of the draft again, in a tree along the path to each node. One with a state that tokens advance, such as a grammar's
matcher, derives from :class:`StatefulProcessor`, which takes tokens back and advances over others as it is asked."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from osd.draft import Draft
from osd.logits import RaggedLogits
from osd.sequence import SequenceState


class LogitsProcessor(Protocol):
    """Changes the logits of one row."""

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Change logits (V,) float32, in place, of the token after the row's own ``text``, prompt included, and
        ``drafted`` tokens. Those that must not come get −inf. One that would leave no token is passed over."""


class StatefulProcessor(ABC):
    """A processor with a state that follows the row's tokens."""

    def __init__(self, start: int) -> None:
        """Follow a row's tokens from ``start`` on: the prompt's length for one that looks at the output only."""
        self._start = start
        """Tokens of the text that are in the state for good, or that it leaves out."""
        self._followed: list[int] = []
        """Tokens after those that are in the state."""

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Bring the state to these tokens and change the logits; see :class:`LogitsProcessor`. After tokens that it
        refuses it changes nothing: they are refused themselves."""
        if self._follow([*text[self._start :], *drafted]):
            self.change(logits)
        settled = min(len(text) - self._start, len(self._followed))
        self._start += settled
        del self._followed[:settled]

    def _follow(self, tokens: Sequence[int]) -> bool:
        pairs = zip(self._followed, tokens, strict=False)
        common = next((i for i, (old, new) in enumerate(pairs) if old != new), min(len(self._followed), len(tokens)))
        if common < len(self._followed):
            self.rollback(self._followed[common:])
            del self._followed[common:]
        for token in tokens[common:]:
            if not self.advance(token):
                return False
            self._followed.append(token)
        return True

    @abstractmethod
    def advance(self, token: int) -> bool:
        """Advance the state by a token; return False, and leave it as it was, where it cannot come here."""

    @abstractmethod
    def rollback(self, tokens: Sequence[int]) -> None:
        """Take the newest tokens back, which were drafted in this round: never more than that."""

    @abstractmethod
    def change(self, logits: Tensor) -> None:
        """Change the logits (V,) of the next token, in place."""


def process_draft(rows: Sequence[SequenceState], going: Sequence[bool], drafted: Tensor, logits: Tensor) -> Tensor:
    """Return a draft's logits (B, 1, V) after ``drafted`` (B, n), processed, float32, for the rows that are going
    on."""
    logits, chains = logits.float(), drafted.tolist()
    for row, goes, chain, line in zip(rows, going, chains, logits[:, 0], strict=True):
        if goes:
            _process_line(row, line, chain)
    return logits


def process_nodes(rows: Sequence[SequenceState], drafted: Sequence[Sequence[Sequence[int]]], logits: Tensor) -> Tensor:
    """Return a draft's logits (B, M or 1, V) after nodes of trees, processed, float32: (B, M, V). ``drafted``: of each
    row's nodes, the drafted tokens up to it."""
    width = max(1, max(map(len, drafted)))
    logits = logits.float().expand(-1, width, -1).clone()
    for row, nodes, lines in zip(rows, drafted, logits, strict=True):
        for path, line in zip(nodes, lines, strict=False):
            _process_line(row, line, path)
    return logits


def process_target(scored: RaggedLogits, rows: Sequence[SequenceState], draft: Draft) -> RaggedLogits:
    """Return the target's logits after each row's last token and each drafted one, processed; the same object where no
    row has processors. What came in stays as it is."""
    if not any(row.processors for row in rows):
        return scored
    lines, tokens = scored.lines.to(torch.float32, copy=True), draft.tokens.tolist()
    for index, row in enumerate(rows):
        if row.processors:
            parents = draft.trees[index].parents if draft.trees else range(draft.lengths[index])
            for place, path in enumerate(paths(tokens[index][: draft.lengths[index]], parents)):
                _process_line(row, lines[scored.begins[index] + place], path)
    return RaggedLogits(lines, scored.begins)


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[list[int]]:
    """Return the drafted tokens up to each node of a tree, the root first: (N + 1,) lists."""
    found: list[list[int]] = [[]]
    for token, parent in zip(tokens, parents, strict=True):
        found.append([*found[parent], token])
    return found


def _process_line(row: SequenceState, logits: Tensor, drafted: Sequence[int]) -> None:
    """Apply a row's processors to logits (V,), in place, in their order."""
    for processor in row.processors:
        before = logits.clone()
        processor.apply(logits, row.decoded, drafted)
        if logits.max() == -torch.inf:
            logits.copy_(before)


class SequenceBias:
    """Adds to the logit of a sequence's last token where the text ends with those before it: ``logit_bias`` for
    sequences of one token, bad words with −inf."""

    def __init__(self, biases: Mapping[Sequence[int], float]) -> None:
        self._biases = [(list(sequence[:-1]), sequence[-1], bias) for sequence, bias in biases.items()]
        self._longest = max((len(prefix) for prefix, _, _ in self._biases), default=0)

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Add the biases; see :class:`osd.verification.logits_processors.LogitsProcessor`."""
        end, due = [*text[max(0, len(text) - self._longest) :], *drafted], dict[int, float]()
        for prefix, token, bias in self._biases:
            if not prefix or end[-len(prefix) :] == prefix:
                due[token] = due.get(token, 0.0) + bias
        if due:
            logits[list(due)] += torch.tensor(list(due.values()), dtype=logits.dtype, device=logits.device)


class SuppressTokens:
    """Forbids tokens in texts of ``begin`` tokens or more, prompt included, and fewer than ``end``."""

    def __init__(self, tokens: Iterable[int], begin: int = 0, end: float = torch.inf) -> None:
        self._tokens, self._begin, self._end = list(tokens), begin, end

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Forbid them; see :class:`osd.verification.logits_processors.LogitsProcessor`."""
        if self._begin <= len(text) + len(drafted) < self._end:
            logits[self._tokens] = -torch.inf


class AllowedTokens:
    """Forbids all but some tokens."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens = list(tokens)

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Forbid the others; see :class:`osd.verification.logits_processors.LogitsProcessor`."""
        allowed = logits[self._tokens]
        logits.fill_(-torch.inf)
        logits[self._tokens] = allowed


class ForcedTokens:
    """Leaves nothing but ``tokens``, equally likely, after a text of exactly ``length`` tokens, prompt included."""

    def __init__(self, tokens: Iterable[int], length: int) -> None:
        self._tokens, self._length = list(tokens), length

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Force them; see :class:`osd.verification.logits_processors.LogitsProcessor`."""
        if len(text) + len(drafted) == self._length:
            logits.fill_(-torch.inf)
            logits[self._tokens] = 0.0


MOST_GROWTH = 1e30
"""What an end token's logit grows by at most: nothing else is drawn long before, and it stays a number."""


class EndTokenGrowth:
    """Raises the logits of end tokens beyond ``begin`` tokens, prompt included: by ``factor`` to the power of what the
    text has beyond them (exponential_decay_length_penalty)."""

    def __init__(self, tokens: Iterable[int], begin: int, factor: float) -> None:
        self._tokens, self._begin, self._factor = list(tokens), begin, factor
        self._most = math.log(MOST_GROWTH) / math.log(factor) if factor > 1 else math.inf

    def apply(self, logits: Tensor, text: Sequence[int], drafted: Sequence[int]) -> None:
        """Raise them; see :class:`osd.verification.logits_processors.LogitsProcessor`."""
        beyond = len(text) + len(drafted) - self._begin
        if beyond > 0:
            scores = logits[self._tokens]
            growth = (scores.abs() * (self._factor ** min(beyond, self._most) - 1)).masked_fill(~scores.isfinite(), 0.0)
            logits[self._tokens] = scores + growth
