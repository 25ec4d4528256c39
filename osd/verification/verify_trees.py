"""Verification of trees: what the target accepts of them, by its logits at all their nodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from osd.draft import Draft
from osd.draft_tree import Tree
from osd.models.attention_metadata import tables
from osd.sequence import SequenceState
from osd.verification import compiled_sampling
from osd.verification.rejection_sampling_trees import (
    TreeBatch,
    TreeVerifyResult,
    accept_tree_greedy,
    accept_tree_sampled,
)
from osd.verification.result import VerifyResult
from osd.verification.warping import Warp


def judge_trees(
    logits: Tensor,
    rows: Sequence[SequenceState],
    draft: Draft,
    warp: Warp | None,
    chance: Tensor | None,
    *,
    keep_chances: bool,
) -> VerifyResult:
    """Accept paths of the rows' trees, from the target's logits (B, N + 1, V) at each of their nodes."""
    assert draft.trees is not None
    if warp is None or chance is None:
        choices = logits.argmax(-1).tolist()
        paths = [accept_tree_greedy(tree, own) for tree, own in zip(draft.trees, choices, strict=True)]
        return _verdict(draft.trees, paths, [own[path[-1]] for own, path in zip(choices, paths, strict=True)], None)
    walk = _walk(logits, rows, draft, warp, chance)
    table = torch.cat([walk.follows.unsqueeze(1), walk.path], dim=1).tolist()  # the one sync
    paths = [[node for node in line[1:] if node >= 0] for line in table]
    chances = _by_node(walk, draft.size) if keep_chances else None
    return _verdict(draft.trees, paths, [line[0] for line in table], chances)


def _verdict(trees: Sequence[Tree], paths: list[list[int]], follows: list[int], chances: Tensor | None) -> VerifyResult:
    drafted = [tree.follow(path) for tree, path in zip(trees, paths, strict=True)]
    depths = [tree.reach(path[-1]) for tree, path in zip(trees, paths, strict=True)]
    return VerifyResult([len(path) - 1 for path in paths], drafted, follows, depths, chances, paths=paths)


def _walk(logits: Tensor, rows: Sequence[SequenceState], draft: Draft, warp: Warp, chance: Tensor) -> TreeVerifyResult:
    assert draft.trees is not None
    parents, turns = tables(draft.trees, draft.size, logits.device)
    height = max(max(tree.depths()) for tree in draft.trees)
    most = max(max(tree.turns(), default=-1) for tree in draft.trees) + 1
    forest = TreeBatch(draft.tokens, parents, turns, draft.q if most else None, most, height)
    lines = torch.arange(len(rows), device=logits.device)
    tests, draws = _uniforms(rows, draft.trees, chance, height, most)
    if compiled_sampling.takes(logits):
        return compiled_sampling.judge_trees(logits, forest, tests, draws, warp)
    return accept_tree_sampled(lambda node: warp(logits[lines, node].unsqueeze(1))[:, 0], forest, tests, draws)


def _uniforms(
    rows: Sequence[SequenceState], trees: Sequence[Tree], chance: Tensor, height: int, most: int
) -> tuple[Tensor, Tensor]:
    """Return tests (B, D + 1, ``most`` or 1) and draws (B, D + 1), D = ``height``. ``most``: children of a node that
    were drawn.

    A chain uses the numbers that it would use among chains (``chance``, see :func:`osd.verification.result.uniforms`):
    then a seed repeats its text whatever its neighbours have drafted. A tree may draw at every depth, and takes so
    many more; one that has drawn several children of a node, a test for each further one at every level."""
    used, last = chance.shape[1] // 2, chance[:, -1:]
    tests = torch.cat([chance[:, used:-1], last], dim=1)[:, : height + 1]
    deep = [_draws(tree) for tree in trees]
    own = [[*row.chances(many), *[-1.0] * (height + 1 - many)] for row, many in zip(rows, deep, strict=True)]
    draws = torch.tensor(own, dtype=chance.dtype, device=chance.device)
    further = [_further(row, tree, height + 1, most) for row, tree in zip(rows, trees, strict=True)]
    others = torch.tensor(further, dtype=chance.dtype, device=chance.device).view(len(rows), height + 1, -1)
    return torch.cat([tests.unsqueeze(2), others], dim=2), torch.where(draws < 0, last, draws)


def _further(row: SequenceState, tree: Tree, levels: int, most: int) -> list[list[float]]:
    """Return the tests of the second and later drawn children of a node, (D + 1, ``most`` − 1): a row takes as many as
    its own tree asks for, whatever its neighbours have drawn."""
    own = max(0, max(tree.turns(), default=0)) if tree.drawn else 0
    if not own:
        return [[0.0] * max(0, most - 1)] * levels
    deep = max(tree.depths())
    lines = row.chances(deep * own).reshape(deep, own).tolist()
    rest = [[0.0] * own] * (levels - deep)
    return [[*line, *[0.0] * (most - 1 - own)] for line in [*lines, *rest]]


def _draws(tree: Tree) -> int:
    """Return how often a row may draw before the last time: at every level; a chain that was drawn, only at its end."""
    return 0 if tree.is_drawn_chain else max(tree.depths())


def _by_node(walk: TreeVerifyResult, size: int) -> Tensor:
    """Scatter the chances to their nodes: (B, N)."""
    spread = walk.chances.new_full((len(walk.path), size + 2), torch.nan)
    return spread.scatter_(1, walk.path.masked_fill(walk.path < 0, size + 1), walk.chances)[:, :size]
