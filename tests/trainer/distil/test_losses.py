"""Losses on top-k plus outside mass, against a plain full-vocabulary reference, in values and gradients."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from trainer.distil.losses import LEAST_OUTSIDE, distance, draft_log_probs, jsd, target_log_probs, total_variation

NAMES = ["forward_kl", "reverse_kl", "jsd", "total_variation"]
BETA = 0.3


def plain(name: str, p: Tensor, q: Tensor) -> Tensor:
    """Eq. 3 on probabilities, written as in the paper. (m, c) each, float64."""

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a > 0, a * (a / b).log(), 0.0).sum(1)

    mixture = BETA * p + (1 - BETA) * q
    return {
        "forward_kl": lambda: kl(p, q),
        "reverse_kl": lambda: kl(q, p),
        "jsd": lambda: BETA * kl(p, mixture) + (1 - BETA) * kl(q, mixture),
        "total_variation": lambda: 1 - torch.minimum(p, q).sum(1),
    }[name]()


def coarsen(probs: Tensor, ids: Tensor) -> Tensor:
    """(m, v) probabilities to (m, k + 1) by a plain loop over tokens."""
    rows = []
    for row, kept in zip(probs, ids, strict=True):
        inside = set(kept.tolist())
        others = sum((row[v] for v in range(len(row)) if v not in inside), torch.zeros((), dtype=row.dtype))
        rows.append(torch.stack([*(row[v] for v in kept.tolist()), torch.as_tensor(others)]))
    return torch.stack(rows)


def keep(p_logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the store would hold: ids, log-probabilities, mass outside."""
    log_p = p_logits.log_softmax(1)
    logprobs, ids = log_p.topk(k, dim=1)
    outside = log_p.scatter(1, ids, -math.inf).logsumexp(1).exp()
    return ids, logprobs, outside


def ours(name: str, q_logits: Tensor, kept: tuple[Tensor, Tensor, Tensor], tau: float = 1.0) -> Tensor:
    ids, logprobs, outside = kept
    log_p = target_log_probs(logprobs, outside, q_logits.shape[1], tau)
    return distance(name, BETA)(log_p, draft_log_probs(q_logits, ids, tau))


def logits(m: int = 5, v: int = 12, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p, q = (scale * torch.randn(m, v, generator=generator, dtype=torch.float64) for _ in range(2))
    return p, q.requires_grad_()


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", NAMES)
def test_full_vocabulary_kept_is_the_plain_loss(name: str, tau: float) -> None:
    p_logits, q_logits = logits()
    got = ours(name, q_logits, keep(p_logits, 12), tau)
    want = plain(name, (p_logits / tau).softmax(1), (q_logits / tau).softmax(1))
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), q_logits, retain_graph=True)[0] for x in (got, want)))


@pytest.mark.parametrize("k", [1, 4, 11])
@pytest.mark.parametrize("name", NAMES)
def test_topk_is_the_plain_loss_of_the_coarsened_distributions(name: str, k: int) -> None:
    p_logits, q_logits = logits()
    kept = keep(p_logits, k)
    got = ours(name, q_logits, kept)
    want = plain(name, coarsen(p_logits.softmax(1), kept[0]), coarsen(q_logits.softmax(1), kept[0]))
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), q_logits, retain_graph=True)[0] for x in (got, want)))


@pytest.mark.parametrize("name", NAMES)
def test_coarsening_only_lowers_the_loss(name: str) -> None:
    p_logits, q_logits = logits(m=40, v=30)
    losses = [ours(name, q_logits, keep(p_logits, k)) for k in (1, 5, 20, 30)]
    for fewer, more in pairwise(losses):
        assert (fewer <= more + 1e-12).all()


@pytest.mark.parametrize("k", [3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_by_finite_differences(name: str, k: int) -> None:
    p_logits, q_logits = logits(m=3, v=8)
    kept = keep(p_logits, k)
    assert torch.autograd.gradcheck(lambda q: ours(name, q, kept, 1.7), (q_logits,))


@pytest.mark.parametrize("name", NAMES)
def test_equal_distributions_are_at_distance_zero(name: str) -> None:
    p_logits, _ = logits()
    torch.testing.assert_close(ours(name, p_logits, keep(p_logits, 4)), torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_extreme_logits_give_finite_losses_and_gradients(name: str, dtype: torch.dtype) -> None:
    q_logits = torch.tensor([[1e4, -1e4, 0, 0, 0, 0], [0, 0, -1e4, 1e4, 0, 0], [80, 80, -80, 0, 0, 0]], dtype=dtype)
    p_logits = torch.tensor([[-300, 300, 0, 0, 0, 0], [0, 0, 0, 900, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=dtype)
    ids, logprobs, outside = keep(p_logits, 2)
    q_logits.requires_grad_()
    loss = ours(name, q_logits, (ids, logprobs.half().to(dtype), outside))
    loss.sum().backward()
    assert loss.isfinite().all() and q_logits.grad is not None and q_logits.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_no_mass_outside_pushes_the_draft_inside(name: str) -> None:
    ids, logprobs = torch.tensor([[0, 1]]), torch.tensor([[0.6, 0.4]]).log()
    q_logits = torch.zeros(1, 6, requires_grad=True)
    loss = ours(name, q_logits, (ids, logprobs, torch.zeros(1)))
    want = plain(name, torch.tensor([[0.6, 0.4, LEAST_OUTSIDE]]), torch.tensor([[1 / 6, 1 / 6, 4 / 6]]))
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-6)
    loss.backward()
    assert q_logits.grad is not None and (q_logits.grad[0, 2:] > 0).all() and q_logits.grad[0, 0] < 0


@pytest.mark.parametrize("name", NAMES)
def test_nearly_all_mass_outside(name: str) -> None:
    ids, logprobs = torch.tensor([[0, 1]]), torch.tensor([[-12.0, -13.0]])
    outside = 1 - logprobs.exp().sum(1)
    p = torch.cat([logprobs.exp(), outside[:, None]], 1)
    q_logits = torch.tensor([[3.0, 0, 0, 0, 0, 0]], requires_grad=True)
    loss = ours(name, q_logits, (ids, logprobs, outside))
    torch.testing.assert_close(loss, plain(name, p, coarsen(q_logits.softmax(1), ids)), rtol=1e-4, atol=1e-6)
    loss.backward()
    assert q_logits.grad is not None and q_logits.grad[0, 0] > 0 and (q_logits.grad[0, 2:] < 0).all()


def test_a_draft_that_leaves_almost_nothing_outside_keeps_its_precision() -> None:
    q_logits = torch.tensor([[0.0, 0, -40, -40, -40, -40]])
    log_q = draft_log_probs(q_logits, torch.tensor([[0, 1]]))
    assert log_q[0, 2].item() == pytest.approx(math.log(4) - 40 - math.log(2), rel=1e-6)


def test_tempering_spreads_the_mass_outside_evenly_and_is_exact_when_it_is_even() -> None:
    p = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1]], dtype=torch.float64)  # outside the top 2 all tokens weigh the same
    got = target_log_probs(p[:, :2].log(), torch.tensor([0.3], dtype=torch.float64), 5, temperature=2.0).exp()
    torch.testing.assert_close(got, coarsen((p.log() / 2).softmax(1), torch.tensor([[0, 1]])))


@pytest.mark.parametrize(("tau", "sign"), [(2.0, 1), (0.5, -1)])
def test_tempering_errs_on_the_stated_side(tau: float, sign: int) -> None:
    p_logits, _ = logits(v=40)
    ids, logprobs, outside = keep(p_logits, 5)
    got = target_log_probs(logprobs, outside, 40, tau).exp()[:, -1]
    exact = coarsen((p_logits.log_softmax(1) / tau).softmax(1), ids)[:, -1]
    assert (sign * (got - exact) > 0).all()


def test_temperature_one_keeps_the_mass_outside() -> None:
    p_logits, _ = logits(v=40)
    _, logprobs, outside = keep(p_logits, 5)
    torch.testing.assert_close(target_log_probs(logprobs, outside, 40).exp()[:, -1], outside)


def test_jsd_tends_to_each_kl_at_the_ends_of_beta() -> None:
    p_logits, q_logits = logits()
    log_p, log_q = p_logits.log_softmax(1), q_logits.log_softmax(1)
    forward, reverse = (distance(n)(log_p, log_q) for n in ("forward_kl", "reverse_kl"))
    torch.testing.assert_close(jsd(log_p, log_q, 1e-6) / 1e-6, forward, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(jsd(log_p, log_q, 1 - 1e-6) / 1e-6, reverse, rtol=1e-3, atol=1e-4)


def test_total_variation_is_the_chance_of_rejection() -> None:
    p, q = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.2, 0.2, 0.6]])
    torch.testing.assert_close(total_variation(p.log(), q.log()), torch.tensor([0.5]))
