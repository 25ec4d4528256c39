"""Logits to top-k log-probabilities: the compiled pass beside PyTorch's plain one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from osd.recording.topk import Reducer, TopKLogprobs, reduce_plain

WIDTHS = [(2, 1), (7, 7), (50, 6), (511, 64), (512, 64), (513, 64), (6144, 64), (6151, 1), (3000, 1000), (40_003, 64)]
"""V and k: fewer tokens than classes, exactly as many, one more, V no multiple of anything, k above what is few."""


@pytest.fixture(scope="module")
def compiled() -> Reducer:
    reducer = Reducer(64)
    assert reducer.wait()
    return reducer


def reduce_fast(reducer: Reducer, logits: Tensor, k: int) -> TopKLogprobs:
    reducer.k = k
    return reduce_some(reducer, logits, range(len(logits)))


def reduce_some(reducer: Reducer, logits: Tensor, index: Sequence[int]) -> TopKLogprobs:
    places = np.array(index, np.int64)
    return reducer([logits], np.zeros_like(places), places)


def require_same(fast: TopKLogprobs, logits: Tensor) -> None:
    """Log-probabilities and mass of a pass in double precision, and ids that have them."""
    exact = logits.double().log_softmax(-1)
    k = fast.ids.shape[1]
    expected = exact.topk(k).values
    np.testing.assert_allclose(fast.logprobs, expected.numpy(), atol=5e-6, rtol=1e-6)
    np.testing.assert_allclose(fast.outside, (1 - expected.exp().sum(-1)).clamp(min=0).numpy(), atol=5e-6)
    assert torch.equal(exact.gather(1, torch.from_numpy(fast.ids).long()), expected)  # whichever of equal ones
    assert all(len(set(ids)) == k for ids in fast.ids.tolist())
    assert fast.ids.dtype == np.int32 and fast.logprobs.dtype == fast.outside.dtype == np.float32


@pytest.mark.parametrize(("width", "k"), WIDTHS)
@pytest.mark.parametrize("spread", [0.1, 4.0, 30.0])
def test_the_compiled_pass_is_the_plain_one(compiled: Reducer, width: int, k: int, spread: float) -> None:
    logits = torch.randn(6, width, generator=torch.Generator().manual_seed(width)) * spread + 11
    fast, plain = reduce_fast(compiled, logits, k), reduce_plain(logits, k)
    require_same(fast, logits)
    np.testing.assert_allclose(fast.logprobs, plain.logprobs, atol=1e-5, rtol=1e-6)
    np.testing.assert_allclose(fast.outside, plain.outside, atol=1e-5)


def test_where_k_is_more_than_there_are_tokens_all_are_kept(compiled: Reducer) -> None:
    logits = torch.randn(3, 5)
    fast = reduce_fast(compiled, logits, 64)
    assert fast.ids.shape == (3, 5) and np.all(fast.outside < 1e-6)
    require_same(fast, logits)


@pytest.mark.parametrize("width", [100, 6144, 20_000])
def test_equal_logits_are_kept_in_any_order_but_once_each(compiled: Reducer, width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    coarse = torch.randint(-3, 4, (4, width), generator=generator).float()  # thousands share the threshold
    all_equal = torch.full((1, width), 2.5)
    one_ahead = all_equal.clone()
    one_ahead[0, width // 2] = 3
    for logits in (coarse, all_equal, one_ahead, torch.zeros(2, width)):
        require_same(reduce_fast(compiled, logits, 64), logits)
    assert reduce_fast(compiled, one_ahead, 64).ids[0, 0] == width // 2


@pytest.mark.parametrize("finite", [1, 5, 63, 64, 65, 700])
def test_tokens_that_cannot_come_weigh_nothing(compiled: Reducer, finite: int) -> None:
    generator = torch.Generator().manual_seed(finite)
    logits = torch.full((3, 6144), -torch.inf)
    for row in logits:
        row[torch.randperm(6144, generator=generator)[:finite]] = torch.randn(finite, generator=generator)
    logits[2] = logits[2].where(logits[2].isinf(), 1e30)  # far from everything, and all equal
    logits[1, logits[1].argmax()] = 1e30
    fast = reduce_fast(compiled, logits, 64)
    require_same(fast, logits)
    assert not np.isnan(fast.logprobs).any()
    assert (fast.logprobs[0] == -np.inf).sum() == max(0, 64 - finite)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("at", [0, 3000, 6150])
def test_a_row_that_is_no_distribution_is_marked_and_its_neighbours_are_not(
    compiled: Reducer, wrong: float, at: int
) -> None:
    logits = torch.randn(3, 6151)
    logits[1, at] = wrong
    for kept in (reduce_fast(compiled, logits, 64), reduce_plain(logits, 64)):
        assert np.isnan(kept.logprobs[1]).all() and np.isnan(kept.outside[1])
        assert not np.isnan(kept.logprobs[::2]).any()
    hopeless = reduce_fast(compiled, torch.full((1, 99), -torch.inf), 4)
    assert np.isnan(hopeless.logprobs).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_and_layouts_are_read_as_they_are(compiled: Reducer, dtype: torch.dtype) -> None:
    logits = (torch.randn(6, 777, generator=torch.Generator().manual_seed(3)) * 3).to(dtype)
    compiled.k = 16
    kept = reduce_some(compiled, logits, [4, 0, 5])
    require_same(kept, logits[[4, 0, 5]].float())
    turned = logits.float().transpose(0, 1)  # (777, 6): the last dimension is not the dense one
    kept = reduce_some(compiled, turned, [1])
    assert np.array_equal(kept.ids, reduce_plain(turned[[1]], 16).ids)


def test_rows_of_several_passes_are_reduced_in_one_call(compiled: Reducer) -> None:
    compiled.k = 16
    passes = [torch.randn(2 * n, 777) for n in (3, 2, 1, 4)]
    numbers, places = np.array([0, 0, 2, 3, 3, 3]), np.array([5, 0, 1, 2, 3, 7])
    rows = torch.stack([passes[i][at] for i, at in zip(numbers, places, strict=True)])
    plain = Reducer(16, compiled=False)(passes, numbers, places)
    turned = passes[0].transpose(0, 1).contiguous().transpose(0, 1)
    for first in (passes[0], turned):
        kept = compiled([first, *passes[1:]], numbers, places)
        require_same(kept, rows)
        np.testing.assert_allclose(kept.logprobs, plain.logprobs, atol=5e-6)
    halves = [logits.bfloat16() for logits in passes]
    require_same(compiled(halves, numbers, places), rows.bfloat16().float())


def test_without_a_compiler_pytorch_does_it() -> None:
    reducer = Reducer(6, compiled=False)
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(0)) * 4
    assert not reducer.wait()
    kept = reduce_some(reducer, logits, range(5))
    require_same(kept, logits)
    full = logits.double().softmax(-1)
    np.testing.assert_allclose(kept.outside, full.sort(-1).values[:, :-6].sum(-1), atol=1e-6)


def test_a_compiler_that_fails_is_named_and_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no room for the cache\nand more")

    monkeypatch.setattr("osd.kernels.topk.reduce_rows", fail)
    reducer = Reducer(6)
    assert not reducer.wait()
    assert "no room for the cache" in caplog.text and "and more" not in caplog.text
    assert reduce_some(reducer, torch.zeros(2, 9), [0, 1]).ids.shape == (2, 6)
