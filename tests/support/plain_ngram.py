"""The table and the tree search once more, in plain Python: what the compiled ones are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from osd.drafters.ngram.cells import MOST, WIDEST
from osd.drafters.ngram.counts import ENOUGH
from osd.drafters.ngram.drafter import SearchSettings

Tokens = Sequence[int]
Counts = list[list[int]]
"""[token, count], most frequent first, of equal ones the newest first."""


class PlainTable:
    """Contexts without a bound on how many."""

    def __init__(self, order: int) -> None:
        self.order = order
        self.lists: dict[tuple[int, ...], Counts] = {}

    def learn(self, tokens: Tokens, start: int = 0) -> None:
        for i in range(start, len(tokens)):
            for length in range(min(self.order - 1, i) + 1):
                self.count(tuple(tokens[i - length : i]), tokens[i])

    def count(self, context: tuple[int, ...], token: int) -> None:
        found = self.lists.setdefault(context, [])
        at = next((i for i, (known, _) in enumerate(found) if known == token), None)
        if at is None and len(found) == 1 << WIDEST:
            if found[-1][1] > 1:
                found[-1][1] -= 1
                return
            found.pop()
        if at is not None and found[at][1] == MOST:
            found[:] = [[token, count // 2] for token, count in found if count > 1]
        count = found.pop(at)[1] + 1 if at is not None else 1
        place = next((i for i, (_, other) in enumerate(found) if other <= count), len(found))
        found.insert(place, [token, count])


def plain_successors(
    shared: PlainTable, own: PlainTable, context: Tokens, settings: SearchSettings
) -> list[tuple[int, float]]:
    chances: dict[int, float] = {}
    left = 1.0
    for length in range(min(shared.order - 1, len(context)), settings.shortest - 1, -1):
        key = tuple(context[len(context) - length :])
        here, mine = shared.lists.get(key, []), own.lists.get(key, [])
        total = sum(count for _, count in here) + settings.weight * sum(count for _, count in mine)
        if total == 0:
            continue
        scale = left / (total + settings.kappa)
        for found, weight in ((mine, settings.weight), (here, 1.0)):
            for token, count in found[: settings.breadth]:
                chances[token] = chances.get(token, 0.0) + scale * weight * count
        left *= settings.kappa / (total + settings.kappa)
        if left < ENOUGH:
            break
    return sorted(chances.items(), key=lambda item: -item[1])[: settings.breadth]


class Node:
    def __init__(self, parent: Node | None, token: int, chance: float) -> None:
        self.parent, self.token, self.chance = parent, token, chance
        self.depth: int = parent.depth + 1 if parent else 0
        self.likelihood: float = parent.likelihood * chance if parent else 1.0
        self.children: list[Node] = []
        self.asked = False
        self.visits, self.total = 0, 0.0

    def path(self) -> list[int]:
        return [*self.parent.path(), self.token] if self.parent else []


def expand(node: Node, shared: PlainTable, own: PlainTable, text: Tokens, settings: SearchSettings) -> list[Node]:
    node.asked = True
    found = plain_successors(shared, own, [*text, *node.path()], settings)
    node.children = [Node(node, token, chance) for token, chance in found]
    return node.children


def puct(child: Node, total: int, settings: SearchSettings) -> float:
    quality = child.total / child.visits if child.visits else child.likelihood
    explore = settings.c1 + math.log((total + settings.c2 + 1) / settings.c2)
    return quality + explore * math.sqrt(total) * child.chance / (1.0 + child.visits)


def plain_search(
    shared: PlainTable, own: PlainTable, text: Tokens, settings: SearchSettings
) -> list[tuple[tuple[int, ...], int]]:
    """The merged tree: each token's sequence from the root, and its parent's place."""
    root = Node(None, -1, 1.0)
    nodes = [*expand(root, shared, own, text, settings)]
    for _ in range(settings.searches if nodes else 0):
        node = root
        while node.children:
            total = sum(child.visits for child in node.children)
            node = max(node.children, key=lambda child: puct(child, total, settings))
        if not node.asked and node.depth < settings.depth:
            nodes += expand(node, shared, own, text, settings)
        value, up = node.likelihood, node
        while up.parent:
            up.visits, up.total, up = up.visits + 1, up.total + value, up.parent
    visited = [node for node in nodes if node.visits]
    ranked = sorted(visited, key=lambda node: (-node.visits, -node.likelihood))[: settings.nodes]
    return [(tuple(node.path()), ranked.index(node.parent) if node.parent in ranked else -1) for node in ranked]
