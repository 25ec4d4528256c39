"""What keeping k of V costs is never above the bound, whatever the distributions are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.topk_error import bound, ends_outside, measure, smallest_k
from trainer.distil.losses import draft_log_probs, forward_kl, target_log_probs

ROUNDING = 1e-9
TEMPERATURES = (0.5, 0.8, 1.0, 1.3, 2.0, 4.0)
SHAPES = ("flat", "peaked", "heavy", "near", "cliff")


def draw(shape: str, seed: int, m: int = 40, v: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """(m, v) p and q of some kind of draft."""
    rng = np.random.default_rng(seed)
    if shape == "flat":
        p, q = rng.dirichlet(np.full(v, 5.0), m), rng.dirichlet(np.full(v, 5.0), m)
    elif shape == "peaked":
        p, q = rng.dirichlet(np.full(v, 0.05), m), rng.dirichlet(np.full(v, 0.05), m)
    elif shape == "heavy":
        p = rng.permuted(np.arange(1, v + 1) ** -rng.uniform(0.5, 2, (m, 1)), axis=1)
        q = rng.permuted(np.arange(1, v + 1) ** -rng.uniform(0.5, 2, (m, 1)), axis=1)
    elif shape == "near":
        p = rng.dirichlet(np.full(v, 0.3), m)
        q = p * rng.lognormal(0, 0.3, (m, v))
    else:  # every token outside as likely as the last kept, or not at all
        p = np.where(rng.random((m, v)) < 0.5, 1.0, 1e-12)
        q = rng.dirichlet(np.full(v, 0.5), m)
    p, q = p + 1e-14, q + 1e-14
    return p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_measured_is_at_most_the_bound(shape: str, temperature: float) -> None:
    for seed in range(6):
        p, q = draw(shape, seed)
        for k in (1, 2, 8, 32, 59, 60):
            ids = np.argsort(-p, axis=1, kind="stable")[:, :k]
            kept = np.take_along_axis(p, ids, 1)
            outside = np.sort(p, axis=1)[:, : p.shape[1] - k].sum(1)
            most, found = bound(kept, outside, q, ids, temperature), measure(p, q, k, temperature)
            for name in ("overlap", "kl", "gradient"):
                over = getattr(found, name) - getattr(most, name)
                assert over.max() <= ROUNDING, (name, k, seed, over.max())


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_measure_is_that_of_what_trains(temperature: float) -> None:
    """The coarsened KL and its gradient by the logits are those of trainer.distil.losses."""
    p, _ = draw("heavy", 3)
    logits = torch.from_numpy(np.random.default_rng(1).normal(0, 2, p.shape)).requires_grad_()
    k = 8
    ids = torch.from_numpy(np.argsort(-p, axis=1, kind="stable")[:, :k].copy())
    kept = torch.from_numpy(p).gather(1, ids)
    log_p = target_log_probs(kept.log(), 1 - kept.sum(1), p.shape[1], temperature)
    loss = forward_kl(log_p, draft_log_probs(logits, ids, temperature))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    soft = torch.from_numpy(p).log().div(temperature).softmax(1)
    full = torch.autograd.functional.jacobian(
        lambda z: (soft * (soft.log() - z.div(temperature).log_softmax(1))).sum(), logits
    )
    q = logits.detach().div(temperature).softmax(1)
    found = measure(p, q.numpy(), k, temperature)
    exact = (soft * (soft.log() - q.log())).sum(1)
    np.testing.assert_allclose(found.kl, (exact - loss).abs().detach().numpy(), atol=1e-9)
    np.testing.assert_allclose(found.gradient, (full - gradient).abs().sum(1).numpy(), atol=1e-9)


def test_with_all_kept_there_is_no_error() -> None:
    p, q = draw("heavy", 0)
    found = measure(p, q, p.shape[1], 2.0)
    assert max(found.overlap.max(), found.kl.max(), found.gradient.max()) < 1e-9


def test_the_ends_are_reached() -> None:
    """Evenly spread is one end; as few tokens as possible, each as likely as the last kept, is the other."""
    kept, outside = np.array([[0.5, 0.1]]), np.array([0.4])
    for temperature in (0.5, 2.0):
        ends = ends_outside(kept, outside, 10, temperature)
        inside = (kept ** (1 / temperature)).sum()
        reached = sorted((n * (0.4 / n) ** (1 / temperature)) for n in (4, 8))
        np.testing.assert_allclose([ends.low[0], ends.high[0]], [r / (inside + r) for r in reached])


def test_k_for_an_asked_error() -> None:
    kept = np.array([[0.5, 0.3, 0.1], [0.9, 0.06, 0.02]])
    outside = 1 - kept.sum(1)
    assert smallest_k(kept, outside, 0.3) == 1
    assert smallest_k(kept, outside, 0.13) == 2
    assert smallest_k(kept, outside, 0.061) == 3
    assert smallest_k(kept, outside, 0.01) is None
