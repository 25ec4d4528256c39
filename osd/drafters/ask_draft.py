"""Whether it pays to ask the draft, where a proposer names tokens anyway.

After a round in which the draft was asked both sides are known: what its tree brought and took, and what the tree of
the proposals alone would have brought, for the target has decided how the text goes on. So two sums of tokens and
milliseconds are kept for each size of batch, and the side with more tokens a millisecond is taken. A draft that is
found to be not worth its time is asked again now and then, the more seldom the oftener that is confirmed; and a new
version of it, as if nothing were known.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from osd.draft import Tree

FIRST = 8
"""Rounds in which the draft is asked before anything is concluded."""
AGAIN, SELDOM = 32, 512
"""Rounds after which it is asked all the same; doubled whenever that round confirms that it does not pay, up to the
latter."""
MOST = 64
"""Compared rounds after which those before count half."""


class Side(NamedTuple):
    """What a batch's trees bring, and what they cost."""

    tokens: float
    """Tokens of all rows together, the target's own included."""
    ms: float


NOTHING = Side(0.0, 0.0)


@dataclass(slots=True)
class BatchSizeStats:
    """Sums for batches of one size."""

    asked: float = 0.0
    """Compared rounds, the older ones for less."""
    rested: int = 0
    """Rounds since it was last asked."""
    rest: int = AGAIN
    """Rounds after which it is asked though it does not pay."""
    both: Side = NOTHING
    """With the draft and the proposals."""
    alone: Side = NOTHING

    @property
    def pays(self) -> bool:
        """Whether the draft brings more tokens a millisecond, as far as is known."""
        return self.asked < FIRST or _at_least(self.both, self.alone)

    def asks(self) -> bool:
        """Decide whether to ask in the round that begins."""
        self.rested += 1
        if not self.pays and self.rested < self.rest:
            return False
        self.rested = 0
        return True

    def saw(self, both: Side, alone: Side) -> None:
        """Add a round in which the draft was asked: what both brought, and what the proposals alone would have."""
        confirmed = not self.pays and not _at_least(both, alone)
        self.rest = min(2 * self.rest, SELDOM) if confirmed else AGAIN
        keep = 0.5 if self.asked >= MOST else 1.0
        self.asked = keep * self.asked + 1
        self.both = Side(*(keep * old + new for old, new in zip(self.both, both, strict=True)))
        self.alone = Side(*(keep * old + new for old, new in zip(self.alone, alone, strict=True)))


def _at_least(one: Side, other: Side) -> bool:
    return one.tokens * other.ms >= other.tokens * one.ms


@dataclass(slots=True)
class AskPolicy:
    """The accounts, by size of batch: 1, 2 to 3, 4 to 7 rows, and so on."""

    accounts: dict[int, BatchSizeStats] = field(default_factory=dict)
    versions: frozenset[str] = frozenset()
    """The draft versions that the accounts are about."""

    def meet(self, versions: Set[str]) -> None:
        """Note the draft versions of the round that begins; a new one clears the accounts."""
        if not versions <= self.versions:
            self.versions = frozenset(versions)
            self.accounts.clear()

    def asks(self, rows: int) -> bool:
        """Decide whether to ask the draft in the round that begins."""
        return self._of(rows).asks()

    def pays(self, rows: int) -> bool:
        """Return whether it is asked in most rounds."""
        return self._of(rows).pays

    def saw(self, rows: int, both: Side, alone: Side) -> bool:
        """Add a round in which it was asked: what it brought, and would have brought; return whether :meth:`pays`
        changed."""
        before = self.pays(rows)
        self._of(rows).saw(both, alone)
        return self.pays(rows) is not before

    def _of(self, rows: int) -> BatchSizeStats:
        return self.accounts.setdefault(rows.bit_length(), BatchSizeStats())


def brought(tree: Tree, tokens: Sequence[int]) -> int:
    """Count the tokens that a tree would have brought where the text went on like this; no more than are known of
    it."""
    node, count = 0, 0
    for token in tokens:
        count += 1
        if (node := tree.places.get((node, token), -1)) < 0:
            break
    return count
