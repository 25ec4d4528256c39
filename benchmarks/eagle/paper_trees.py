"""EAGLE-2's tree as its paper grows it, for rows at temperature 0.

Of a level's nodes the ten of the highest cumulative chance are expanded, each to its ten likeliest tokens; all of these
may stand in the tree. At the end the best of all are verified, by cumulative chance (EAGLE-2, Sections 4.1 and 4.2). A
node's chance is no higher than its parent's, so the best are one tree. Where rows sample it would not be exact: what
was drawn must not be left out for what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from osd.draft import Draft
from osd.draft_tree import Tree
from osd.drafters.feature_tree import FeatureTrees, Level

EXPANDED = 10
"""Nodes of a level that are expanded, and tokens that each is expanded to (EAGLE-2, Section 5)."""


class Eagle2Trees(FeatureTrees):
    """The trees of one draft's rows. Gamma rules are asked no signal."""

    def _choose(
        self, level: Level, frontier: Sequence[Sequence[int]], depths: Sequence[int], depth: int
    ) -> list[list[int]]:
        """Add the candidates of a level; return those that are expanded next, the likeliest first."""
        assert self._warp is None, "rows sample"
        ids, chances = level.ids.tolist(), level.chances.tolist()
        found = []
        for i, nodes in enumerate(frontier):
            new = [
                self._add(i, node, ids[i][m][k], chances[i][m][k])
                for m, node in enumerate(nodes) for k in range(EXPANDED)
            ]  # fmt: skip
            found.append(self._ranked(i, new)[:EXPANDED])
        return found

    def _ranked(self, row: int, nodes: Sequence[int]) -> list[int]:
        """Return nodes by cumulative chance, the highest first; of equal ones the older."""
        return sorted(nodes, key=lambda node: (-self._gains[row][node], node))

    def draft(self) -> Draft:
        """Return the best nodes of all as a draft."""
        self.trees = [
            pruned(tree, self._ranked(i, range(1, len(tree) + 1))[: self._shape.nodes])
            for i, tree in enumerate(self.trees)
        ]
        return super().draft()


def pruned(tree: Tree, kept: Sequence[int]) -> Tree:
    """Return a tree's nodes that are kept, each with all nodes above it."""
    small, places = Tree(), {0: 0}
    for node in sorted(kept):
        places[node] = small.add(places[tree.parents[node - 1]], tree.tokens[node - 1])
        small.likely[places[node]] = tree.likely[node]
    return small
