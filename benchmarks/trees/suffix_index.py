"""Suffix matching: where the text's last tokens occur in served texts, and what mostly followed (REST's idea).

    stream   texts one after another, −1 behind each: no match reaches over it
    order    the stream's positions, sorted by the DEPTH tokens that begin there

The longest suffix of a text that occurs is one stretch of ``order``, found by halving; of the continuations there the
most frequent make the tree. One token of the stream takes 8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

from osd.draft_tree import NOTHING, TokenProposal
from osd.drafters.ngram import BadTable
from osd.drafters.ngram.counts import Index
from osd.drafters.ngram.lookup import MatchSettings, child_of
from osd.drafters.ngram.table import require_tokens
from osd.kernels.code_cache import kept

DEPTH = 16
"""Tokens by which positions are sorted."""
Stream = npt.NDArray[np.int32]

DEFAULTS = MatchSettings(longest=12, matches=64)
"""Default settings: ``matches`` of the occurrences are looked at, evenly over all."""


def sort_positions(stream: Stream) -> Stream:
    """Return positions, sorted by the DEPTH tokens that begin there. Ranks of 2k tokens are pairs of ranks of k."""
    ranks = np.unique(stream, return_inverse=True)[1].astype(np.int64) + 1
    order = np.argsort(ranks, kind="stable")
    span = 1
    while span < DEPTH:
        after = np.zeros_like(ranks)
        after[:-span] = ranks[span:]
        pairs = ranks * (len(stream) + 2) + after
        order = np.argsort(pairs, kind="stable")
        steps = np.concatenate([[1], (np.diff(pairs[order]) > 0).astype(np.int64)])
        ranks[order] = np.cumsum(steps)
        span *= 2
        if ranks[order[-1]] == len(stream):
            break
    return order.astype(np.int32)


@njit
def compare(stream: Stream, position: int, wanted: Index) -> int:
    """Compare what begins at a position with the tokens wanted: −1, 0 or 1."""
    for i in range(len(wanted)):
        token = stream[position + i] if position + i < len(stream) else -2
        if token != wanted[i]:
            return -1 if token < wanted[i] else 1
    return 0


@njit
def edge(stream: Stream, order: Stream, wanted: Index, after: int) -> int:
    """Return the first index of ``order`` whose text is not below the one wanted (``after`` 0), or is above it (1)."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if compare(stream, order[middle], wanted) < after:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def count_paths(
    stream: Stream, places: Stream, skip: int, matches: int, length: int, tokens: Index, parents: Index, counts: Index
) -> int:
    """Write all continuations as one tree with counts; return its size."""
    size = 0
    seen = min(matches, len(places))
    for m in range(seen):
        begin, node = places[m * len(places) // seen] + skip, -1
        for i in range(begin, min(begin + length, len(stream))):
            if stream[i] < 0:
                break
            found = child_of(tokens, parents, size, node, stream[i])
            if found < 0:
                if size == len(tokens):
                    break
                found, size = size, size + 1
                tokens[found], parents[found], counts[found] = stream[i], node, 0
            counts[found] += 1
            node = found
    return size


@njit
def keep_frequent(tokens: Index, parents: Index, counts: Index, size: int, chosen: Index, most: int) -> int:
    """Write the nodes with the largest counts, parents before children, into ``chosen``; return how many."""
    picked = 0
    while picked < min(most, size):
        best = -1
        for node in range(size):
            if counts[node] > 0 and (best < 0 or counts[node] > counts[best]):
                best = node
        counts[best] = -picked - 1
        chosen[picked] = best
        picked += 1
    return picked


@kept
def match_suffix(
    stream: Stream, order: Stream, text: Index, shortest: int, longest: int, matches: int, length: int,
    tokens: Index, parents: Index,
) -> int:  # fmt: skip
    """Fill a tree with the most frequent continuations of the longest suffix that occurs; return its size."""
    for n in range(min(longest, len(text)), shortest - 1, -1):
        wanted = text[len(text) - n :]
        first, last = edge(stream, order, wanted, 0), edge(stream, order, wanted, 1)
        if first == last:
            continue
        room = matches * length
        all_tokens, all_parents, counts = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
        chosen = np.empty(len(tokens), np.int64)
        size = count_paths(stream, order[first:last], n, matches, length, all_tokens, all_parents, counts)
        kept = keep_frequent(all_tokens, all_parents, counts, size, chosen, len(tokens))
        for i in range(kept):
            node = chosen[i]
            tokens[i] = all_tokens[node]
            parents[i] = -1 if all_parents[node] < 0 else -counts[all_parents[node]] - 1
        if kept > 0:
            return kept
    return 0


class SuffixIndex:
    """A stream of served texts in which continuations are looked up. It does not change once it is built."""

    def __init__(self, stream: Stream, order: Stream, settings: MatchSettings = DEFAULTS) -> None:
        """Wrap a sorted stream. Raises BadTable for a longest suffix above DEPTH."""
        if settings.longest > DEPTH:
            raise BadTable(name="longest", reason=f"{settings.longest} is above {DEPTH}, what the stream is sorted by.")
        self.stream, self.order, self.settings = stream, order, settings

    @classmethod
    def build(cls, texts: Iterable[npt.NDArray[np.integer]], settings: MatchSettings = DEFAULTS) -> SuffixIndex:
        """Build an index from the tokens of texts, such as the replay store's. Sorting takes some 60 bytes a token
        meanwhile."""
        parts: list[npt.NDArray[np.integer]] = []
        for text in texts:
            require_tokens(text)
            parts += [text, np.array([-1])]
        stream = np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32)
        return cls(stream, sort_positions(stream) if len(stream) else stream, settings)

    @property
    def bytes(self) -> int:
        """Memory of its arrays, in bytes."""
        return self.stream.nbytes + self.order.nbytes

    def propose(self, texts: Sequence[Index], most: Sequence[int] | None = None) -> list[TokenProposal]:
        """Propose a tree for each row's text (int64), of which the end is enough, of ``most[r]`` tokens at most."""
        nodes = self.settings.nodes
        return [self._tree(text, nodes if most is None else min(nodes, most[r])) for r, text in enumerate(texts)]

    def _tree(self, text: Index, room: int) -> TokenProposal:
        chosen = self.settings
        if room < 1 or not len(self.stream):
            return NOTHING
        text = np.ascontiguousarray(text[-chosen.longest :], np.int64)
        tokens, parents = np.zeros(room, np.int64), np.zeros(room, np.int64)
        size = match_suffix(
            self.stream, self.order, text, chosen.shortest, chosen.longest, chosen.matches, chosen.length,
            tokens, parents,
        )  # fmt: skip
        return TokenProposal(tokens[:size], parents[:size])
