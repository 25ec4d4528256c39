"""The head's losses against loops written out, in values and gradients."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.heads.fit import binary_kl, calibration_error, weighted_bce

CASES = [(0.0, 0.0), (1.0, 0.0), (0.3, -1.2), (0.9, 2.5), (0.5, 0.1)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("weight", [1.0, 6.0])
def test_weighted_bce_is_the_papers(weight: float) -> None:
    chances, logits = (torch.tensor(column, dtype=torch.double) for column in zip(*CASES, strict=True))
    logits.requires_grad_(True)
    loss = weighted_bce(logits, chances, weight)
    expected, slopes = [], []
    for p, x in CASES:
        guess = sigmoid(x)
        expected.append(-p * math.log(guess) - weight * (1 - p) * math.log(1 - guess))
        slopes.append(-p * (1 - guess) + weight * (1 - p) * guess)
    assert loss.tolist() == pytest.approx(expected)
    assert torch.autograd.grad(loss.sum(), logits)[0].tolist() == pytest.approx(slopes)


def test_it_is_finite_however_sure_a_head_is() -> None:
    loss = weighted_bce(torch.tensor([200.0, -200.0]), torch.tensor([0.0, 1.0]), 6.0)
    assert loss.tolist() == pytest.approx([1200.0, 200.0])


def test_the_weighted_loss_is_least_where_its_weight_says() -> None:
    """P̂ = P ÷ (P + w (1 − P)): what AcceptanceHead.estimate undoes."""
    x = torch.zeros(1, dtype=torch.double, requires_grad=True)
    for _ in range(400):
        (slope,) = torch.autograd.grad(weighted_bce(x, torch.tensor([0.9], dtype=torch.double), 6.0).sum(), x)
        x = (x.detach() - 0.5 * slope).requires_grad_(True)
    x = x.detach()
    assert float(x.sigmoid()) == pytest.approx(0.9 / (0.9 + 6 * 0.1))
    assert float((x + math.log(6)).sigmoid()) == pytest.approx(0.9)


def test_binary_kl_is_the_papers() -> None:
    chances, logits = (torch.tensor(column, dtype=torch.double) for column in zip(*CASES, strict=True))
    expected = []
    for p, x in CASES:
        guess = sigmoid(x)
        kept = p * math.log(p / guess) if p else 0.0
        refused = (1 - p) * math.log((1 - p) / (1 - guess)) if p < 1 else 0.0
        expected.append(kept + refused)
    assert binary_kl(chances, logits).tolist() == pytest.approx(expected)
    assert binary_kl(torch.tensor([0.25]), torch.tensor([0.25]).logit()).item() == pytest.approx(0.0, abs=1e-7)


def test_calibration_error_by_hand() -> None:
    """Two bins: [0, ½) holds 0.2, 0.4 against 0, 1: gap |0.5 − 0.3|; [½, 1] holds 0.9, 1.0 against 1, 0.5: 0.2."""
    estimates, chances = torch.tensor([0.2, 0.4, 0.9, 1.0]), torch.tensor([0.0, 1.0, 1.0, 0.5])
    assert calibration_error(chances, estimates, bins=2) == pytest.approx(0.5 * 0.2 + 0.5 * 0.2)


def test_calibration_error_is_none_for_one_who_knows_only_the_mean_and_large_for_one_who_is_sure_and_wrong() -> None:
    chances = torch.tensor([1.0, 0.0] * 50)
    assert calibration_error(chances, torch.full((100,), 0.5)) == pytest.approx(0.0)
    assert calibration_error(chances, 1 - chances) == pytest.approx(1.0)
