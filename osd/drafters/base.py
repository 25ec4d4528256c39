"""What a drafter is: it proposes tokens, and the probabilities it drew them from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from osd.gamma.pace import Read
from osd.row import Row
from osd.trees.tree import Tree
from osd.warp import Warp


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals for B rows, G tokens each at most."""

    tokens: Tensor
    """(B, G) int64; beyond a row's length they mean nothing. In trees, G is the most that a row has."""
    lengths: tuple[int, ...]
    """Tokens that count, a row."""
    q: Tensor | None
    """(B, G, V) the distributions drawn from, after warping; None in a batch that is all greedy. Of trees (B, Q, V), Q
    at least the length of the longest chain that was drawn."""
    passes: int
    """Passes of the drafter that it took: G, more where rows declined their last tokens, or fewer where a table named
    some. Of several drafters, those of the one that made most."""
    trees: tuple[Tree, ...] | None = None
    """The same tokens with the node that each follows; None where every row has a chain, of tokens drawn from q in a
    batch that samples."""
    fed: int = 0
    """Leading tokens of the chains that the draft itself has read."""

    @property
    def size(self) -> int:
        """G."""
        return self.tokens.shape[1]


Steer = Callable[[Sequence[Row], list[int], int, Read], None]
"""Rows, the lengths of their drafts (to be shortened), the tokens drafted, a way to read the newest one's signals:
:meth:`osd.gamma.pace.Pace.steer`."""


class Drafter(Protocol):
    """Proposes tokens."""

    def propose(
        self, rows: Sequence[Row], gammas: Sequence[int], warp: Warp | None, chance: Tensor | None, steer: Steer
    ) -> Draft:
        """Up to ``gammas[i]`` tokens for row i; in a batch that samples, ``chance`` (B, G or more) uniforms.
        ``steer`` is asked after every pass which rows stop."""
        ...

    def commit(self, row: Row, length_before: int, accepted: int, draft: Draft) -> None:
        """The target accepted so many of the row's drafted tokens."""
        ...

    def move_row(self, source: int, target: int, row: Row) -> None:
        """The row takes another place in the batch."""
        ...


class Drafting(Protocol):
    """What the engine asks for drafts, and tells of its rows."""

    def join(self, row: Row, draft: str) -> None:
        """The row has come: seat it with a draft, for its life."""
        ...

    def leave(self, row: Row) -> None:
        """The row has ended."""
        ...

    def propose(
        self, rows: Sequence[Row], gammas: Sequence[int], warp: Warp | None, chance: Tensor | None, steer: Steer
    ) -> Draft:
        """See :meth:`Drafter.propose`; of a tree, ``gammas[i]`` is the depth."""
        ...

    def commit(self, row: Row, length_before: int, accepted: int, draft: Draft) -> None:
        """See :meth:`Drafter.commit`; the row has its new tokens already."""
        ...

    def measure(self, whole_ms: float) -> None:
        """The newest round's drafts took so many milliseconds."""
        ...

    def version(self, row: Row) -> str:
        """Who drafted for the row."""
        ...
