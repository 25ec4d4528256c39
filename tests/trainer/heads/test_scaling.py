"""Platt's scaling against a search over a grid, folded into heads of any weight of rejections."""

from __future__ import annotations

import pytest
import torch

from osd.models.acceptance_head import AcceptanceHead, HeadConfig
from trainer.heads.examples import HeadExamples
from trainer.heads.fit import best_line, rescale, weighted_bce

COUNT, WIDTH = 4000, 4


def examples(slope: float, level: float, count: int = COUNT) -> HeadExamples:
    """Tokens whose chance is sigmoid(slope · the first number + level)."""
    embeddings = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))
    return HeadExamples(embeddings, (slope * embeddings[:, 0] + level).sigmoid(), torch.arange(count) // 10)


def head_of(weight: float) -> AcceptanceHead:
    """One that reads the first number, and whose estimate is 2 x."""
    head = AcceptanceHead(HeadConfig(WIDTH, 0, weight, "0", "0"))
    with torch.no_grad():
        head.out.weight[0, 0] = 2.0
        head.out.bias.fill_(-torch.tensor(weight).log())
    return head.requires_grad_(True)


@pytest.mark.parametrize("weight", [1.0, 6.0])
@pytest.mark.parametrize(("slope", "level"), [(2.0, 0.0), (0.7, -0.5), (3.0, 1.5), (0.1, 2.0)])
def test_estimates_become_the_chances(slope: float, level: float, weight: float) -> None:
    head, some = head_of(weight), examples(slope, level)
    found = rescale(head, some)
    estimates = head.estimate(some.embeddings).sigmoid()
    torch.testing.assert_close(estimates, some.chances, atol=0.02, rtol=0.0)
    assert found == pytest.approx((slope / 2, level), abs=0.1)
    assert head.config.reject_weight == weight
    assert rescale(head, some) == pytest.approx((1.0, 0.0), abs=0.1)  # as they are


def test_no_line_of_a_grid_is_better() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(500, generator=generator, dtype=torch.double)
    chances = (torch.rand(500, generator=generator) < (logits / 3 + 0.4).sigmoid()).double()

    def loss(slope: float, level: float) -> float:
        held = 8 * ((slope - 1) ** 2 + level**2)  # half of 16 tokens that say "as it is"
        return float(weighted_bce(slope * logits + level, chances, 1.0).sum()) + held

    slope, level = best_line(logits, chances)
    grid = torch.linspace(-0.2, 0.2, 9).tolist()
    assert all(loss(slope, level) <= loss(slope + a, level + b) + 1e-9 for a in grid for b in grid)


def test_few_tokens_change_little_and_a_head_that_is_wrong_way_round_is_left() -> None:
    few = examples(0.5, 1.0, count=3)
    slope, level = best_line(2 * few.embeddings[:, 0].double(), few.chances.double())
    assert abs(slope - 1) < 0.2
    assert abs(level) < 0.2
    head = head_of(6.0)
    before = [p.clone() for p in head.parameters()]
    assert rescale(head, examples(-2.0, 0.0)) == (1.0, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, head.parameters(), strict=True))
