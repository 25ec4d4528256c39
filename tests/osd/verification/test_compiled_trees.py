"""Compiled verdicts on trees are those of the plain rule, and what comes out is distributed as the target's tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from osd.verification import compiled_sampling
from osd.verification.rejection_sampling_trees import TreeBatch, TreeVerifyResult, accept_tree_sampled
from osd.verification.warping import Warp
from storage.sampling import Sampling
from tests.osd.verification.test_rejection_sampling_trees import random_tree, tables, two_tokens_follow
from tests.support.plain_trees import forest

pytestmark = pytest.mark.usefixtures("compiled")

CPU = torch.device("cpu")


def of_float32(trees: TreeBatch) -> TreeBatch:
    q = None if trees.q is None else trees.q.float()
    return TreeBatch(trees.tokens, trees.parents, trees.turns, q, trees.draws, trees.height)


@pytest.mark.parametrize("way", [Sampling(1.0), Sampling(0.6, top_k=4, top_p=0.95), Sampling(0.0)])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("drawn", [0, 1, 2, 3])
def test_rows_walk_as_the_plain_rule_has_it(drawn: int, holes: bool, way: Sampling) -> None:
    """A hundred batches of three trees; children are drawn from q, whatever the target's distribution is."""
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        p, q = tables(generator, 2, 3, 9, holes=holes)
        trees = of_float32(forest([random_tree(generator, q[i], n, drawn) for i, n in enumerate((8, 3, seed % 3))], q))
        logits, warp = p.log().float(), Warp([way, Sampling(1.0), way], p.shape[-1], CPU)
        logits = logits[:, : trees.tokens.shape[1] + 1].contiguous()
        tests = torch.rand(3, trees.height + 1, max(1, trees.draws), generator=generator, dtype=torch.double)
        draws = torch.rand(3, trees.height + 1, generator=generator, dtype=torch.double)
        ours = compiled_sampling.judge_trees(logits, trees, tests, draws, warp)
        warped, rows = warp(logits), torch.arange(3)
        plain = accept_tree_sampled(lambda node, at=warped, who=rows: at[who, node], trees, tests, draws)
        assert ours.path.tolist() == plain.path.tolist()
        assert ours.follows.tolist() == plain.follows.tolist()
        torch.testing.assert_close(ours.chances, plain.chances, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("drawn", "certain"), [(1, 2), (2, 0), (2, 1)])
def test_texts_of_two_tokens_follow_p(drawn: int, certain: int) -> None:
    """As of the plain rule: 60,000 trees, at level 1e-4; with these three cases a false alarm has odds of at most 1 in
    3,300 for fresh seeds."""

    def compiled(p: Tensor, trees: TreeBatch, tests: Tensor, draws: Tensor) -> TreeVerifyResult:
        warp = Warp([Sampling(1.0)] * len(p), p.shape[-1], CPU)
        return compiled_sampling.judge_trees(p.log().float(), of_float32(trees), tests, draws, warp)

    two_tokens_follow(drawn, certain, compiled)
