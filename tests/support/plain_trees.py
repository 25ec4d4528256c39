"""Sibling rejection as plainly as it can be said: one row, one node at a time, float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from osd.verification.rejection_sampling_trees import TreeBatch


@dataclass
class PlainTree:
    """Node 0 is the root, node i the i-th token."""

    tokens: list[int]
    parents: list[int]
    turns: list[int]
    """The how manieth draw at its parent; −1 for a token that is certain."""

    def children(self, node: int) -> list[int]:
        return [i for i, parent in enumerate(self.parents, 1) if parent == node]

    def drawn(self, node: int) -> list[int]:
        return sorted((c for c in self.children(node) if self.turns[c - 1] >= 0), key=lambda c: self.turns[c - 1])

    def depth(self, node: int) -> int:
        return 0 if node == 0 else 1 + self.depth(self.parents[node - 1])


def norm(weights: Tensor) -> Tensor:
    return weights / weights.sum()


def without(q: Tensor, token: int) -> Tensor:
    """q after its token was drawn: what the next sibling is drawn from."""
    rest = q.clone()
    rest[token] = 0
    return norm(rest)


def emitted(p: Tensor, q: Tensor, drawn: Sequence[int]) -> tuple[Tensor, Tensor, float]:
    """At one node with these children drawn from q one after another: the distribution of the token that comes out
    (V,), what is left of p when all were refused (V,), and the chance of that."""
    out, r, mass = torch.zeros_like(p), p, 1.0
    for token in drawn:
        keep = min(1.0, float(r[token] / q[token]))
        out[token] += mass * keep
        mass *= 1 - keep
        left = (r - q).clamp(min=0)
        r = norm(left) if left.sum() > 0 else r
        if mass == 0:
            break
        q = without(q, token) if len(drawn) > 1 else q
    return out + mass * r, r, mass


def walk(p: Tensor, q: Tensor, tree: PlainTree, tests: Tensor, draws: Tensor) -> tuple[list[int], int, list[float]]:
    """The nodes that are kept, from the root on, the token that follows, and the chance at each node."""
    path, chances = [0], []
    while True:
        node, depth = path[-1], len(path) - 1
        child, token, chance = step(p[node], q, node, tree, tests[depth], float(draws[depth]))
        chances.append(chance)
        if child == 0:
            return path, token, chances
        path.append(child)


def step(r: Tensor, q: Tensor, node: int, tree: PlainTree, tests: Tensor, draw: float) -> tuple[int, int, float]:
    chance, children = float("nan"), tree.children(node)
    for turn, child in enumerate(tree.drawn(node)):
        here = q[node] if turn == 0 else here  # noqa: F821  # set at turn 0
        token = tree.tokens[child - 1]
        keep = min(1.0, float(r[token] / here[token]))
        chance = keep if turn == 0 else chance
        if float(tests[turn]) * float(here[token]) < float(r[token]):
            return child, -1, keep
        left = (r - here).clamp(min=0)
        r = norm(left) if left.sum() > 0 else r
        here = without(here, token)
    token = int((r.cumsum(0) <= draw * r.sum()).sum())
    found = [child for child in children if tree.tokens[child - 1] == token]
    if found:
        return found[0], token, float(r[token] / r.sum())
    if children and not tree.drawn(node):
        chance = float(r[tree.tokens[children[0] - 1]] / r.sum())
    return 0, token, chance


def forest(trees: Sequence[PlainTree], q: Tensor | None) -> TreeBatch:
    """Trees as the fast rule takes them."""
    width = max(1, *(len(tree.tokens) for tree in trees), 1)

    def column(name: str, fill: int) -> Tensor:
        return torch.tensor([[*getattr(t, name), *[fill] * (width - len(t.tokens))] for t in trees])

    turns = column("turns", -1)
    height = max(tree.depth(node) for tree in trees for node in range(len(tree.tokens) + 1))
    draws = int(turns.max()) + 1
    return TreeBatch(column("tokens", 0), column("parents", -1), turns, q if draws else None, draws, height)
