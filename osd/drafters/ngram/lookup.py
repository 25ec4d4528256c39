"""Prompt look-up: where the text's last tokens occurred before, and what followed there.

The longest match counts first, among equally long ones the latest. Several matches make a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from osd.draft_tree import TokenProposal
from osd.drafters.ngram.counts import Index
from osd.kernels.code_cache import kept


@dataclass(frozen=True, slots=True)
class MatchSettings:
    """How a text's end is matched, in the text itself or in a stream of others."""

    longest: int = 8
    """Length of a match, in tokens, beyond which a longer one is no better."""
    shortest: int = 2
    """Fewest tokens that have to match."""
    matches: int = 4
    """Matches whose continuations are proposed."""
    length: int = 10
    """Tokens of a continuation."""
    nodes: int = 32
    """Most tokens of the tree."""


DEFAULTS = MatchSettings(shortest=1)


@njit
def match_length(text: Index, end: int, longest: int) -> int:
    """Count how many tokens before ``end`` equal the text's last ones, up to ``longest``."""
    length = 0
    while length < min(longest, end) and text[end - 1 - length] == text[len(text) - 1 - length]:
        length += 1
    return length


@njit
def best_ends(text: Index, shortest: int, longest: int, ends: Index) -> int:
    """Write the ends of the best matches, best first, into ``ends``; return how many."""
    found = 0
    lengths = np.zeros(len(ends), np.int64)
    for end in range(len(text) - 1, shortest - 1, -1):
        if text[end - 1] != text[-1]:
            continue
        length = match_length(text, end, longest)
        if length < shortest or (found == len(ends) and length <= lengths[-1]):
            continue
        at = min(found, len(ends) - 1)
        while at > 0 and lengths[at - 1] < length:
            ends[at], lengths[at] = ends[at - 1], lengths[at - 1]
            at -= 1
        ends[at], lengths[at] = end, length
        found = min(found + 1, len(ends))
        if lengths[-1] == longest and found == len(ends):
            break
    return found


@njit
def child_of(tokens: Index, parents: Index, size: int, parent: int, token: int) -> int:
    """Return the node that follows ``parent`` with this token, or −1."""
    for node in range(parent + 1, size):
        if parents[node] == parent and tokens[node] == token:
            return node
    return -1


@njit
def add_sequence(tokens: Index, parents: Index, size: int, sequence: Index) -> int:
    """Add a sequence to a tree of ``size`` nodes as far as there is room; return its new size."""
    node = -1
    for i in range(len(sequence)):
        found = child_of(tokens, parents, size, node, sequence[i])
        if found < 0:
            if size == len(tokens):
                break
            found = size
            tokens[found], parents[found] = sequence[i], node
            size += 1
        node = found
    return size


@kept
def look_up(text: Index, shortest: int, longest: int, length: int, ends: Index, tokens: Index, parents: Index) -> int:
    """Fill a tree with the matches' continuations; return its size."""
    size = 0
    for i in range(best_ends(text, shortest, longest, ends)):
        size = add_sequence(tokens, parents, size, text[ends[i] : ends[i] + length])
    return size


class PromptLookup:
    """Proposes what followed the text's last tokens elsewhere in the text itself."""

    def __init__(self, settings: MatchSettings = DEFAULTS) -> None:
        self.settings = settings

    def propose(self, texts: Sequence[Index], most: Sequence[int] | None = None) -> list[TokenProposal]:
        """Propose a tree for each row's whole text (int64), of ``most[r]`` tokens at most."""
        return [
            self._tree(np.ascontiguousarray(text, np.int64), self.settings.nodes if most is None else most[r])
            for r, text in enumerate(texts)
        ]

    def _tree(self, text: Index, most: int) -> TokenProposal:
        chosen = self.settings
        room = max(0, min(chosen.nodes, most))
        ends, tokens, parents = np.zeros(chosen.matches, np.int64), np.zeros(room, np.int64), np.zeros(room, np.int64)
        size = look_up(text, chosen.shortest, chosen.longest, chosen.length, ends, tokens, parents)
        return TokenProposal(tokens[:size], parents[:size])
