"""Grows trees from a feature draft: EAGLE-2's dynamic tree, and Medusa's tree of its heads' top choices.

Level by level: of all tokens that may follow the nodes of a level, those of the highest cumulative chance become nodes,
and are expanded in one pass of the draft (EAGLE-2, Section 4). A row at temperature 0 takes the likeliest tokens, which
are certain. One that samples decides how many children each node gets before any of them is drawn, by q and by what
stands in the tree, and draws them from q without replacement, so recursive rejection keeps the target's distribution
(:mod:`osd.verification.verify_trees`): nothing that was drawn is left out for what it is. Gamma rules that
ask a signal end growth after a level, never within one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osd.draft import Draft, draft_of
from osd.draft_tree import Tree
from osd.drafters.base import DraftRequest, TreeShape
from osd.gamma.base import Signal
from osd.models.acceptance_head import Heads
from osd.models.attention_metadata import Layout
from osd.models.features.decoder import ROOM, FeatureDecoder
from osd.verification.logits_processors import process_nodes

CANDIDATES = 64
"""Likeliest tokens of a node that may be its children: what is drawn is drawn from q over them."""
WIDEST = 16
"""Nodes of a level at most that are expanded."""
MARGIN = 0.5
"""Share of the bar that a node's own estimate must reach: calibration may think better of it."""
Floats = npt.NDArray[np.float64]


class Level(NamedTuple):
    """The candidates after each node of a level: B rows, M nodes, K tokens."""

    ids: Tensor
    """(B, M, K) int64, the likeliest first."""
    chances: Tensor
    """(B, M, K) float32: what the draft thinks of them; of a row that samples, q."""


class FeatureTrees:
    """The trees of one draft's rows while they grow."""

    def __init__(
        self, decoder: FeatureDecoder, request: DraftRequest, shape: TreeShape, vocabulary: int,
        head: Heads | None = None,
    ) -> None:  # fmt: skip
        """``head``: the rows' acceptance heads; None where they have none."""
        self._decoder, self._request, self._shape, self._vocabulary = decoder, request, shape, vocabulary
        self._head = head
        self._rows, self._warp = request.rows, request.warp
        self.trees = [Tree() for _ in self._rows]
        self._gains: list[list[float]] = [[1.0] for _ in self._rows]
        """Cumulative chance of each node, the root first."""
        self._drawn_from: list[tuple[int, int, Tensor, Tensor]] = []
        """Row and node, and the tokens and q that the node's children were drawn from."""
        self._fed: list[list[int]] = [[] for _ in self._rows]
        """The nodes that the draft has read, by row, with places that nothing stands at (−1)."""
        self._level_width = 0
        """Nodes of a row in the level that was read last, padding included."""
        self._peaks: list[tuple[float, int]] = [(0.0, 0) for _ in self._rows]
        """By row, of the newest level: the chance that it has the next token where the level above had one, as the
        draft sees it before any is drawn, and its likeliest token."""
        self._accepted: list[float] = [math.nan for _ in self._rows]
        """By row, what the head says of the level that was read last: the chance that it has the next token where the
        level above had one."""
        self._above = [1.0 for _ in self._rows]
        """By row, the cumulative chances of the level that was read last, summed up."""
        self.passes = 0

    def grow(self, hidden: Tensor, depths: Sequence[int]) -> None:
        """Grow all levels, from the features (B, H) after the rows' last tokens, to depths (B,), or as far as the gamma
        rules go on. A level that is there stays: to leave out what was drawn, for what it is, would not be exact."""
        frontier, hidden, depths = [[0] if depth else [] for depth in depths], hidden.unsqueeze(1), list(depths)
        for depth in range(1, max(depths) + 1):
            frontier = [nodes if depth <= depths[i] else [] for i, nodes in enumerate(frontier)]
            if not any(frontier):
                return
            self._ask_head(hidden, frontier)
            level = self._candidates(hidden, frontier, depth)
            self.passes += 1
            grown = self._choose(level, frontier, depths, depth)
            depths = [length if grown[i] else min(length, depth - 1) for i, length in enumerate(depths)]
            self._request.should_continue(self._rows, depths, depth, self._read)
            frontier = [nodes if depth < depths[i] else [] for i, nodes in enumerate(grown)]
            if not any(frontier) or len(self._fed[0]) + max(map(len, frontier)) > ROOM:
                return
            hidden = self._expand(hidden, frontier)

    def _read(self, signal: Signal) -> list[Any]:
        """Return a signal by row: the peak of the newest level for every one but ``acceptance``, which is of the level
        before, as the draft has just read that."""
        if signal == "acceptance":
            return list(self._accepted)
        return list(self._peaks) if signal == "peak_token" else [peak for peak, _ in self._peaks]

    def _ask_head(self, hidden: Tensor, frontier: Sequence[Sequence[int]]) -> None:
        """Note what the head says of the nodes that were read, whose features are ``hidden`` (B, M, H): over the nodes
        above, by their chances, the sum of its estimates for the nodes that hang there, as one at most is right."""
        if self._head is None:
            return
        places = self._decoder.embedding(hidden).unbind(1)
        chances = torch.stack([self._head(each) for each in places], dim=1).tolist()
        for i, nodes in enumerate(frontier):
            own, total = self._gains[i], self._above[i]
            above = [own[self.trees[i].parents[node - 1] if node else 0] for node in nodes]
            found = sum(gain * chance for gain, chance in zip(above, chances[i], strict=False))
            self._accepted[i] = min(found / total, 1.0) if total else 0.0  # in this order what is unknown stays so
            self._above[i] = sum(own[node] for node in nodes)

    def draft(self) -> Draft:
        """Return the trees as a draft."""
        return draft_of(self.trees, self._q(), self.passes, self._decoder.device)

    def _q(self) -> Tensor | None:
        """Return (B, Q, V) what the children of each node were drawn from, up to the last node that has such; None in a
        batch that is all greedy."""
        if self._warp is None or not any(map(len, self.trees)):
            return None
        most = max((node + 1 for _, node, _, _ in self._drawn_from), default=1)
        q = torch.zeros(len(self.trees), most, self._vocabulary, dtype=torch.float32, device=self._decoder.device)
        for row, node, ids, chances in self._drawn_from:
            q[row, node].scatter_(0, ids, chances)
        return q

    def _candidates(self, hidden: Tensor, frontier: Sequence[Sequence[int]], depth: int) -> Level:
        """Return what may follow the nodes of a level, whose features are ``hidden`` (B, M, H)."""
        logits, named = self._logits(hidden, frontier, depth)
        top = logits.topk(min(CANDIDATES, logits.shape[-1]), dim=-1)
        ids = top.indices if named is None else named[top.indices]
        chances = (top.values - logits.logsumexp(-1, keepdim=True)).exp()
        if self._warp is not None:
            sampled = torch.tensor([not row.greedy for row in self._rows], device=logits.device)
            chances = torch.where(sampled[:, None, None], self._warp(top.values), chances)
        width = max(1, max(map(len, frontier)))
        return Level(*(each.expand(-1, width, -1) if each.shape[1] == 1 else each for each in (ids, chances)))

    def _logits(self, hidden: Tensor, frontier: Sequence[Sequence[int]], depth: int) -> tuple[Tensor, Tensor | None]:
        """Return logits after the nodes of a level, float32, and the ids that they are of; None for all, as what a
        request asks for is said of."""
        if not any(row.processors for row in self._rows):
            return self._decoder.proposed(hidden, depth - 1).float(), self._decoder.draft.token_map
        paths = [[_path(tree, node) for node in nodes] for tree, nodes in zip(self.trees, frontier, strict=True)]
        return process_nodes(self._rows, paths, self._decoder.logits(hidden, depth - 1)).float(), None

    def _choose(
        self, level: Level, frontier: Sequence[Sequence[int]], depths: Sequence[int], depth: int
    ) -> list[list[int]]:
        """Add a level's children; return the new nodes, the likeliest first, no more than are expanded."""
        ids, chances = level.ids.tolist(), level.chances.double().cpu().numpy()
        found: list[list[int]] = []
        for i, nodes in enumerate(frontier):
            width = min(WIDEST, -(-self._shape.nodes // max(1, depths[i])))
            left = self._shape.nodes - len(self.trees[i])
            pairs = self._best(i, nodes, chances[i], width, left if self._rows[i].greedy else left - depths[i] + depth)
            self._note_peak(i, nodes, pairs, chances[i], ids[i])
            if self._rows[i].greedy:
                new = [self._add(i, nodes[m], ids[i][m][k], float(chances[i, m, k])) for m, k in pairs]
            else:
                new = self._draw(i, nodes, pairs, level, chances[i])
            own = self._gains[i]
            found.append(sorted(new, key=lambda node, own=own: -own[node])[:width])  # type: ignore[misc]
        return found

    def _best(self, row: int, nodes: Sequence[int], chances: Floats, width: int, left: int) -> list[tuple[int, int]]:
        """Return the best pairs of a node's index and its candidate's: by cumulative chance, above the bar, as many as
        there is room for."""
        if not nodes:
            return []
        own = self._gains[row]
        gains = np.array([own[node] for node in nodes])[:, None] * chances[: len(nodes), :WIDEST]
        count = max(0, min(width, left))
        order = np.argsort(-gains, axis=None, kind="stable")[:count]
        least = max(MARGIN * self._shape.bar, np.finfo(np.float64).tiny)
        places = [divmod(int(at), gains.shape[1]) for at in order]
        return [(m, k) for m, k in places if gains[m, k] >= least]

    def _note_peak(
        self, row: int, nodes: Sequence[int], pairs: Sequence[tuple[int, int]], chances: Floats, ids: list[list[int]]
    ) -> None:
        """Note what gamma rules are told of a row's new level."""
        own = self._gains[row]
        above = sum(own[node] for node in nodes)
        peak = sum(own[nodes[m]] * float(chances[m, k]) for m, k in pairs) / above if above else 0.0
        self._peaks[row] = min(peak, 1.0), ids[pairs[0][0]][pairs[0][1]] if pairs else 0

    def _add(self, row: int, parent: int, token: int, chance: float) -> int:
        """Add a child and its chances."""
        tree = self.trees[row]
        node = tree.add(parent, token)
        tree.likely[node] = chance
        self._gains[row].append(self._gains[row][parent] * chance)
        return node

    def _draw(
        self, row: int, nodes: Sequence[int], pairs: Sequence[tuple[int, int]], level: Level, chances: Floats
    ) -> list[int]:
        """Draw as many children of each node as it has pairs, from q without replacement."""
        new, ids = [], level.ids[row]
        for m, parent in enumerate(nodes):
            count = sum(at == m for at, _ in pairs)
            if not count:
                continue
            self._drawn_from.append((row, parent, ids[m], level.chances[row, m]))
            for place in draw_distinct(chances[m], self._rows[row].chances(count)):
                new.append(self._add(row, parent, int(ids[m, place]), float(chances[m, place])))
        self.trees[row].drawn = len(self.trees[row])
        return new

    def _expand(self, hidden: Tensor, frontier: Sequence[Sequence[int]]) -> Tensor:
        """Let the draft read the nodes of a level; return their features, (B, M, H). ``hidden`` (B, M', H): those of
        the level before."""
        if not self._decoder.runs_on:
            return hidden
        width, offset = max(map(len, frontier)), len(self._fed[0])
        pairs = list(zip(self.trees, frontier, strict=True))
        above = [[tree.parents[node - 1] for node in nodes] for tree, nodes in pairs]
        places = [[self._place_before(i, parent) for parent in line] for i, line in enumerate(above)]
        index = _padded(places, width, self._decoder.device)
        before = hidden.gather(1, index.unsqueeze(2).expand(-1, -1, hidden.shape[2]))
        tokens = _padded([[tree.tokens[node - 1] for node in nodes] for tree, nodes in pairs], width, index.device)
        for fed, nodes in zip(self._fed, frontier, strict=True):
            fed += [*nodes, *[-1] * (width - len(nodes))]
        self._level_width = width
        layout = self._layout(frontier, offset, width)
        return self._decoder.branch([row.length - 1 for row in self._rows], offset, layout, before, tokens)

    def _place_before(self, row: int, parent: int) -> int:
        """Return where a node stands in the level that was read last; the root is alone in its own."""
        if parent == 0:
            return 0
        level = self._fed[row][-self._level_width :]
        return level.index(parent)

    def _layout(self, frontier: Sequence[Sequence[int]], offset: int, width: int) -> Layout:
        """Return the depths, from 0, of a level's nodes, and which of the nodes that were read each sees."""
        seen = np.zeros((len(frontier), width, offset + width), bool)
        seen[:, range(width), range(offset, offset + width)] = True
        depths = np.zeros((len(frontier), width), np.int64)
        for i, (tree, nodes) in enumerate(zip(self.trees, frontier, strict=True)):
            places = {node: place for place, node in enumerate(self._fed[i]) if node > 0}
            for m, node in enumerate(nodes):
                while node := tree.parents[node - 1]:
                    seen[i, m, places[node]] = True
                    depths[i, m] += 1
        device = self._decoder.device
        return Layout(torch.from_numpy(depths).to(device), torch.from_numpy(seen).to(device))


def draw_distinct(chances: Floats, uniforms: Floats) -> list[int]:
    """Draw places from weights (K,) one after another, without replacement, by the inverse CDF; ``uniforms`` (n,) in
    [0, 1). Fewer than n come where fewer have any weight."""
    weights, found = chances.astype(np.float64), []
    for chance in uniforms:
        mass = weights.cumsum()
        if not mass[-1] > 0:
            break
        place = int(np.searchsorted(mass, chance * mass[-1], side="right"))
        place = min(place, int(np.flatnonzero(weights)[-1]))
        found.append(place)
        weights[place] = 0.0
    return found


def _path(tree: Tree, node: int) -> list[int]:
    """Return the drafted tokens up to a node, the root first."""
    path: list[int] = []
    while node:
        path.append(tree.tokens[node - 1])
        node = tree.parents[node - 1]
    return path[::-1]


def _padded(lines: Sequence[Sequence[int]], width: int, device: torch.device) -> Tensor:
    """Return lines of numbers as (B, ``width``) int64."""
    return torch.tensor([[*line, *[0] * (width - len(line))] for line in lines], dtype=torch.long, device=device)
