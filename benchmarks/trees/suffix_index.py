"""Suffix matching: where the text's last tokens occur in served texts, and what mostly followed (REST's idea).

    stream   texts one after another, −1 behind each: no match reaches over it
    order    the stream's positions, sorted by the DEPTH tokens that begin there

The longest suffix of a text that occurs is one stretch of ``order``, found by halving; of the continuations there the
most frequent make the tree. One token of the stream takes 8 bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile

import numpy as np
import numpy.typing as npt

from osd.draft_tree import NOTHING, TokenProposal
from osd.drafters.ngram import BadTable
from osd.drafters.ngram.counts import Index
from osd.drafters.ngram.lookup import MatchSettings
from osd.drafters.ngram.table import require_tokens

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


class SuffixIndex:
    """A stream of served texts in which continuations are looked up. It does not change once it is built."""

    def __init__(self, texts: Iterable[npt.NDArray[np.integer]], settings: MatchSettings = DEFAULTS) -> None:
        """Build an index from the tokens of texts. Sorting takes some 60 bytes a token meanwhile. Raises BadTable for
        a longest suffix above DEPTH."""
        if settings.longest > DEPTH:
            raise BadTable(name="longest", reason=f"{settings.longest} is above {DEPTH}, what the stream is sorted by.")
        parts: list[npt.NDArray[np.integer]] = [np.zeros(0, np.int32)]
        for text in texts:
            require_tokens(text)
            parts += [text, np.array([-1])]
        self.settings, self.stream = settings, np.concatenate(parts).astype(np.int32)
        self.order = sort_positions(self.stream) if len(self.stream) else self.stream

    @property
    def bytes(self) -> int:
        """Memory of its arrays, in bytes."""
        return self.stream.nbytes + self.order.nbytes

    def propose(self, texts: Sequence[Index], most: Sequence[int] | None = None) -> list[TokenProposal]:
        """Propose a tree for each row's text (int64), of which the end is enough, of ``most[r]`` tokens at most."""
        nodes = self.settings.nodes
        return [self._tree(text, nodes if most is None else min(nodes, most[r])) for r, text in enumerate(texts)]

    def _tree(self, text: Index, room: int) -> TokenProposal:
        """Return the most frequent continuations of the longest suffix that occurs."""
        for length in range(min(self.settings.longest, len(text)), self.settings.shortest - 1, -1):
            if counts := self._continuations(text[-length:].tolist()):
                chosen = [path for path, _ in counts.most_common(max(0, room))]  # parents come first among equals
                place = {path: node for node, path in enumerate(chosen)}
                parents = [place.get(path[:-1], -1) for path in chosen]
                return TokenProposal(np.array([path[-1] for path in chosen], np.int64), np.array(parents, np.int64))
        return NOTHING

    def _continuations(self, wanted: list[int]) -> Counter[tuple[int, ...]]:
        """Count the beginnings of what follows the tokens wanted, over ``matches`` of their places."""

        def begins(position: int) -> list[int]:
            tokens: list[int] = self.stream[position : position + len(wanted)].tolist()
            return tokens

        first, last = (side(self.order, wanted, key=begins) for side in (bisect_left, bisect_right))
        counts: Counter[tuple[int, ...]] = Counter()
        seen = min(self.settings.matches, last - first)
        for number in range(seen):
            begin = self.order[first + number * (last - first) // seen] + len(wanted)
            after = takewhile(lambda token: token >= 0, self.stream[begin : begin + self.settings.length].tolist())
            counts.update(accumulate(((token,) for token in after), tuple.__add__))
        return counts
