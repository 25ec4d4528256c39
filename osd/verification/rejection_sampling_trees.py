"""Rejection sampling of token trees, as pure functions.

At every node the target's distribution is p. The node's children are tried in turn, with r = p at first. One that was
drawn from q is kept with probability min(1, r(y) / q(y)); refused, it leaves r ← norm(max(0, r − q)), and where
another was drawn beside it, without replacement, q ← norm(q without y) (recursive rejection: SpecInfer, EAGLE,
SpecTr). Then one token is drawn from what r is by then. If it is among the children, it is kept and its own children
are next; if not, it is the token that follows. What comes out is distributed exactly as p (docs/ngram.md has the
proof). Children that are certain are kept with all the mass that r has on them; no rule could keep them more often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from osd.draft_tree import Tree
from osd.verification.warping import draw

At = Callable[[Tensor], Tensor]
"""Takes nodes (B,) and returns p there (B, V)."""


def accept_tree_greedy(tree: Tree, choices: Sequence[int]) -> list[int]:
    """Return the path of nodes along the target's argmax choices (N + 1,), from the root, node 0 (temperature 0)."""
    path = [0]
    while node := tree.places.get((path[-1], choices[path[-1]])):
        path.append(node)
    return path


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """B trees of at most N tokens. Node 0 is the row's last token, node i the i-th drafted one."""

    tokens: Tensor
    """(B, N) int64; siblings differ."""
    parents: Tensor
    """(B, N) int64; −1 for padding."""
    turns: Tensor
    """(B, N) int64: a token's index among the siblings drawn at its parent, from 0 on; −1 for those that are
    certain."""
    q: Tensor | None
    """(B, Q, V): at [b, i] what the first of node i's children was drawn from; None where none was drawn anywhere."""
    draws: int
    """Most children of one node that were drawn."""
    height: int
    """Depth of the deepest token."""


@dataclass(frozen=True, slots=True)
class TreeVerifyResult:
    """How far the trees were accepted; D is their height."""

    path: Tensor
    """(B, D + 1) the nodes that were reached, from 0 on; −1 after the last."""
    follows: Tensor
    """(B,) the target's own token after them."""
    chances: Tensor
    """(B, D + 1) at each of those nodes, the probability with which the child that was accepted was to be when its turn
    came; where none was, the first child's. NaN where there was none, and after the last node."""


def accept_tree_sampled(at: At, forest: TreeBatch, tests: Tensor, draws: Tensor) -> TreeVerifyResult:
    """Accept paths of trees by the rule above. ``tests`` (B, D + 1, forest.draws) and ``draws`` (B, D + 1): independent
    uniforms in [0, 1), for a node at depth d those of column d."""
    rows = len(forest.tokens)
    node = torch.zeros(rows, dtype=torch.long, device=forest.tokens.device)
    follows, going = torch.zeros_like(node), torch.ones_like(node, dtype=torch.bool)
    path, chances = [node], []
    for depth in range(forest.height + 1):
        child, token, chance = _step(at(node), node, forest, tests[:, depth], draws[:, depth])
        chances.append(chance.masked_fill(~going, torch.nan))
        follows = torch.where(going & (child == 0), token, follows)
        going = going & (child > 0)
        node = torch.where(going, child, node)
        path.append(torch.where(going, child, -1))
        if node.device.type == "cpu" and not going.any():
            break
    missing = forest.height + 1 - len(chances)
    chances += [torch.full_like(chances[0], torch.nan)] * missing
    path += [torch.full_like(node, -1)] * missing
    return TreeVerifyResult(torch.stack(path[: forest.height + 1], 1), follows, torch.stack(chances, 1))


def _step(p: Tensor, node: Tensor, forest: TreeBatch, tests: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decide one node of each row: the child that is kept (B,), 0 for none; the token drawn in the end; and the
    chance."""
    children = forest.parents == node.unsqueeze(1)
    kept, chance = torch.zeros_like(node), torch.full_like(p[:, 0], torch.nan)
    if forest.q is not None:
        p, kept, chance = _try_drawn(p, node, children, forest, tests)
    token = draw(p, draws)
    hit, place = _first(children & (forest.tokens == token.unsqueeze(1)) & (kept == 0).unsqueeze(1))
    kept = torch.where(hit, place + 1, kept)
    there, first = _first(children)
    asked = torch.where(hit, token, forest.tokens.gather(1, first.unsqueeze(1)).squeeze(1))
    mass = p.gather(1, asked.unsqueeze(1)).squeeze(1) / p.sum(-1)
    chance = torch.where(hit | (there & chance.isnan()), mass, chance)
    return kept, token, chance


def _try_drawn(
    r: Tensor, node: Tensor, children: Tensor, forest: TreeBatch, tests: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Try the drawn children, one after another. Returns what is left of r (B, V), unnormalised; the child that is kept
    (B,), 0 for none; the chance with which it, or the first, was to be kept."""
    assert forest.q is not None
    rows = torch.arange(len(node), device=node.device)
    q = forest.q[rows, node.clamp(max=forest.q.shape[1] - 1)]
    kept, chance = torch.zeros_like(node), torch.full_like(r[:, 0], torch.nan)
    for turn in range(forest.draws):
        asked, place = _first(children & (forest.turns == turn))
        asked &= kept == 0
        token = forest.tokens.gather(1, place.unsqueeze(1))
        likely, proposed = r.gather(1, token).squeeze(1), q.gather(1, token).squeeze(1)
        passed = asked & (tests[:, turn] * proposed < likely)
        kept = torch.where(passed, place + 1, kept)
        ratio = (likely / proposed).clamp(max=1.0).to(chance.dtype)
        chance = torch.where(passed | (asked & (turn == 0)), ratio, chance)
        left = (r - q).clamp_(min=0)
        refused = asked & ~passed & (left.sum(-1) > 0)  # p = q up to rounding leaves nothing: then r itself
        r = torch.where(refused.unsqueeze(1), left, r)
        if turn + 1 < forest.draws:
            r, q = _norm(r), _norm(torch.where(asked.unsqueeze(1), q.scatter(1, token, 0.0), q))
    return r, kept, chance


def _norm(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def _first(which: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether each line of (B, N) bool has a true one (B,), and the index of the first (B,)."""
    there, place = which.max(1)
    return there, place
