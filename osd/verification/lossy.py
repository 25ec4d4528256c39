"""Lossy acceptance: more drafted tokens are taken than the target's distribution allows. Off without ``serve.lossy``.

typical   Medusa (Cai et al., 2024, section 2.3.1): a drafted token x is taken where
              p(x) > min(ε, δ exp(−H(p))),
          H the entropy of p there: what is not unlikely is good enough. The longest path of which all tokens are taken
          wins, and after it comes the target's likeliest token, which is always taken.
adaptix   Adaptix (Liu et al., 2024, "Draft Construction and Verification") above temperature 0: along every path a
          token is drawn from p at each position and compared with the drafted one; the longest path that was drawn
          wins, and the token after it is drawn anew. Paths do not share their draws, as in the published code of REST,
          on which Adaptix builds: so the best of several tries is kept, and a drafted token comes more often than p
          says.

At temperature 0 both are exact: p has all mass on one token. Rules are the target's p after warping against the draft's
tokens; q plays no part. What is recorded stays the target's own: its logits, and min(1, p/q) of each drafted token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from osd.draft import Draft
from osd.draft_tree import Tree, chain
from osd.logits import RaggedLogits
from osd.sequence import SequenceState
from osd.verification.result import VerifyResult
from osd.verification.warping import Warp, draw
from storage.settings import ServeSettings

MODES = TYPICAL, ADAPTIX = "typical", "adaptix"


@dataclass(frozen=True, slots=True)
class LossyRule:
    """How tokens are taken."""

    mode: str
    """typical or adaptix."""
    epsilon: float
    """ε of typical acceptance: a probability that is always enough."""
    delta: float
    """δ: the share of exp(−H) that is enough."""

    @classmethod
    def of(cls, serve: ServeSettings) -> LossyRule | None:
        """Return the rule that the settings ask for; None for none."""
        return cls(serve.lossy, serve.typical_epsilon, serve.typical_delta) if serve.lossy else None

    def bars(self, p: Tensor) -> Tensor:
        """Return min(ε, δ exp(−H)) for distributions p (…, V): (…)."""
        entropy: Tensor = torch.special.entr(p).sum(-1)
        return (self.delta * (-entropy).exp()).clamp(max=self.epsilon)


class _Judged(NamedTuple):
    """Nodes of B trees, on the host."""

    likely: list[list[float]]
    """(B, N) p of each drafted token after its parent."""
    bars: list[list[float]]
    """(B, N + 1) at each node, what typical acceptance asks of its children."""


def judge_lossy(
    rule: LossyRule, rows: Sequence[SequenceState], scored: RaggedLogits, draft: Draft, warp: Warp, chance: Tensor, *,
    keep_chances: bool,
) -> VerifyResult:  # fmt: skip
    """Accept drafts, chains or trees, by a lossy rule, from the target's logits after each row's last token and after
    each drafted one; ``chance`` (B, 2 G + 1 or more) as :func:`osd.verification.result.uniforms` lays them out."""
    p = warp(scored.table(draft.size + 1))
    trees = draft.trees or _as_trees(draft)
    judged = _judged(rule, p, draft, trees)
    paths = [_longest(rule, row, tree, judged, i) for i, (row, tree) in enumerate(zip(rows, trees, strict=True))]
    ends = p[torch.arange(len(rows), device=p.device), torch.tensor([path[-1] for path in paths], device=p.device)]
    follows = ends.argmax(-1) if rule.mode == TYPICAL else draw(ends, chance[:, -1])
    chances = _chances(p, draft, trees, paths) if keep_chances and draft.size else None
    drafted = draft.tokens.tolist() if draft.trees is None else [t.follow(w) for t, w in zip(trees, paths, strict=True)]
    return VerifyResult(
        [len(path) - 1 for path in paths], drafted, follows.tolist(),
        [tree.reach(path[-1]) for tree, path in zip(trees, paths, strict=True)], chances,
        paths=None if draft.trees is None else paths,
    )  # fmt: skip


def _as_trees(draft: Draft) -> list[Tree]:
    tokens = draft.tokens.tolist()
    return [chain(own[:length], drawn=True) for own, length in zip(tokens, draft.lengths, strict=True)]


def _judged(rule: LossyRule, p: Tensor, draft: Draft, trees: Sequence[Tree]) -> _Judged:
    bars = rule.bars(p).tolist()
    if not draft.size:
        return _Judged([[] for _ in trees], bars)
    rows, parents, tokens = _places(draft, trees)
    return _Judged(p[rows, parents, tokens].tolist(), bars)


def _places(draft: Draft, trees: Sequence[Tree]) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows (B, 1), parents (B, N) and tokens (B, N) of all drafted tokens; padding follows the root."""
    padded = [[*tree.parents, *[0] * (draft.size - len(tree))] for tree in trees]
    device = draft.tokens.device
    return torch.arange(len(trees), device=device)[:, None], torch.tensor(padded, device=device), draft.tokens


def _longest(rule: LossyRule, row: SequenceState, tree: Tree, judged: _Judged, index: int) -> list[int]:
    """Return the nodes, the root first, of the longest path whose tokens were all taken, the first of several."""
    likely, bars = judged.likely[index], judged.bars[index]
    best = [0]
    for path in paths_of(tree):
        if rule.mode == TYPICAL:
            taken = [likely[node - 1] > bars[tree.parents[node - 1]] for node in path[1:]]
        else:
            taken = [own < likely[node - 1] for own, node in zip(row.chances(len(path) - 1), path[1:], strict=True)]
        kept = next((place for place, good in enumerate(taken) if not good), len(taken))
        if kept >= len(best):
            best = path[: kept + 1]
    return best


def paths_of(tree: Tree) -> list[list[int]]:
    """Return the nodes of every path from the root, node 0, to a leaf, in the leaves' order."""
    inner = set(tree.parents)
    found = []
    for leaf in range(1, len(tree) + 1):
        if leaf in inner:
            continue
        path = [leaf]
        while path[-1]:
            path.append(tree.parents[path[-1] - 1])
        found.append(path[::-1])
    return found


def _chances(p: Tensor, draft: Draft, trees: Sequence[Tree], paths: Sequence[Sequence[int]]) -> Tensor:
    """Return what exact rejection sampling would have accepted with, where exact verification keeps it: min(1, p/q) of
    a drawn token, p of a certain one. Of chains by token, (B, G); of trees by the node before it, (B, N), along the
    path taken."""
    rows, parents, tokens = _places(draft, trees)
    likely = p[rows, parents, tokens]
    if draft.q is not None:
        drawn = torch.tensor([[tree.drawn] for tree in trees], device=p.device)
        place = torch.arange(draft.size, device=p.device)
        q = draft.q[rows, parents.clamp(max=draft.q.shape[1] - 1), tokens]
        likely = torch.where(place < drawn, (likely / q).clamp(max=1.0), likely)
    if draft.trees is None:
        return likely
    found = torch.full_like(likely, torch.nan)
    for row, (tree, path) in enumerate(zip(trees, paths, strict=True)):
        for at, child in zip(path, [*path[1:], _first_child(tree, path[-1])], strict=True):
            if child and at < draft.size:
                found[row, at] = likely[row, child - 1]
    return found


def _first_child(tree: Tree, node: int) -> int:
    return next((child for child, parent in enumerate(tree.parents, 1) if parent == node), 0)
