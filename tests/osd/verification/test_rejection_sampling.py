"""The acceptance rule against a plain reference and against exact enumeration."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from osd.verification.rejection_sampling import accept_greedy, accept_sampled, expected_acceptance


def plain_rule(p: Tensor, q: Tensor, drafted: list[int], chance: list[float]) -> int:
    """One row, as Appendix A.1 of the paper says it."""
    for i, token in enumerate(drafted):
        if not chance[i] * float(q[i, token]) < float(p[i, token]):
            return i
    return len(drafted)


def plain_after(p: Tensor, q: Tensor, accepted: int, drafted: int) -> Tensor:
    """Eq. 5, normalised."""
    if accepted == drafted:
        return p[accepted]
    residual = (p[accepted] - q[accepted]).clamp(min=0)
    return residual / residual.sum()


def random_case(seed: int, rows: int = 4, gamma: int = 3, vocabulary: int = 6) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    p = torch.randn(rows, gamma + 1, vocabulary, generator=g).mul(2).softmax(-1)
    q = torch.randn(rows, gamma, vocabulary, generator=g).mul(2).softmax(-1)
    drafted = torch.multinomial(q.flatten(0, 1), 1, generator=g).view(rows, gamma)
    lengths = torch.randint(0, gamma + 1, (rows,), generator=g)
    return p, q, drafted, lengths, torch.rand(rows, gamma, generator=g), torch.rand(rows, generator=g)


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_rows_accept_as_the_plain_rule_does(seed: int) -> None:
    p, q, drafted, lengths, chance, last = random_case(seed)
    accepted, follows = accept_sampled(p, q, drafted, lengths, chance, last)
    for i, length in enumerate(lengths.tolist()):
        expected = plain_rule(p[i], q[i], drafted[i, :length].tolist(), chance[i].tolist())
        assert accepted[i] == expected
        after = plain_after(p[i], q[i], expected, length).double().cumsum(0)
        assert follows[i] == int((after <= last[i] * after[-1]).sum())


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_greedy_keeps_the_leading_agreement(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    choices, drafted = torch.randint(0, 2, (5, 4), generator=g), torch.randint(0, 2, (5, 3), generator=g)
    for i, length in enumerate(torch.randint(0, 4, (5,), generator=g).tolist()):
        agree = [bool(c == d) for c, d in zip(choices[i, :-1], drafted[i, :length], strict=False)]
        expected = len(list(itertools.takewhile(bool, agree)))
        found = accept_greedy(choices[i].tolist(), drafted[i].tolist(), length)
        assert found == (expected, int(choices[i, expected]))


def test_the_first_token_out_is_distributed_exactly_as_p() -> None:
    """Summed over every drafted token and integrated over the chances, without sampling."""
    p, q, *_ = random_case(1, rows=1, gamma=1, vocabulary=5)
    out = torch.zeros(5, dtype=torch.double)
    for token in range(5):
        keep = min(1.0, float(p[0, 0, token] / q[0, 0, token]))
        out[token] += q[0, 0, token] * keep
        drafted, none = torch.tensor([[token]]), torch.tensor([1])
        # the rule keeps the token exactly on [0, keep): just inside and just outside
        for chance, kept in ((keep - 1e-4, 1), (min(keep + 1e-4, 1.0), 0 if keep < 1 else 1)):
            assert accept_sampled(p, q, drafted, none, torch.tensor([[chance]]), torch.tensor([0.5]))[0] == kept
        out += float(q[0, 0, token]) * (1 - keep) * plain_after(p[0], q[0], 0, 1).double()
    assert torch.allclose(out, p[0, 0].double(), atol=1e-6)


def test_equal_distributions_accept_everything_and_disjoint_ones_nothing() -> None:
    p = torch.tensor([[[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]])
    ones = torch.tensor([1])
    same = accept_sampled(p, p[:, :1], torch.tensor([[1]]), ones, torch.tensor([[0.999]]), torch.tensor([0.1]))
    assert same[0] == 1 and same[1] == 0
    other = torch.tensor([[[0.0, 0.0, 0.5, 0.5]]])
    refused = accept_sampled(p, other, torch.tensor([[2]]), ones, torch.tensor([[0.0]]), torch.tensor([0.6]))
    assert refused[0] == 0 and refused[1] == 1
    assert expected_acceptance(p[0, 0], other[0, 0]) == 0 and expected_acceptance(p[0, 0], p[0, 0]) == 1
