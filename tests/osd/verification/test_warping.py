"""Warping against Hugging Face's own processors, and drawing against the distribution asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from osd.verification.warping import Warp, draw
from storage.sampling import LEAST_TEMPERATURE, Sampling


def reference(scores: torch.Tensor, s: Sampling) -> torch.Tensor:
    if s.temperature == 0:
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).float()
    steps = [TemperatureLogitsWarper(s.temperature)]
    steps += [TopKLogitsWarper(s.top_k)] if s.top_k else []
    steps += [TopPLogitsWarper(s.top_p)] if s.top_p and s.top_p < 1 else []
    return LogitsProcessorList(steps)(None, scores).softmax(-1)


MIXES = [
    [Sampling(0.7), Sampling(1.0), Sampling(0.0)],
    [Sampling(1.0, top_k=3), Sampling(0.5, top_k=500), Sampling(1.3)],
    [Sampling(1.0, top_p=0.6), Sampling(0.8, top_p=1.0), Sampling(0.0, top_p=0.2)],
    [Sampling(1.2, top_k=5, top_p=0.7), Sampling(1.0, top_k=1), Sampling(2.0, top_p=0.01)],
]


@pytest.mark.parametrize("mix", MIXES)
def test_rows_are_warped_as_hugging_face_does(mix: list[Sampling]) -> None:
    logits = torch.randn(3, 4, 40, generator=torch.Generator().manual_seed(0)) * 3
    warp = Warp.of(mix, 40, torch.device("cpu"))
    assert warp is not None
    ours = warp(logits)
    for i, sampling in enumerate(mix):
        assert torch.allclose(ours[i], reference(logits[i], sampling), atol=1e-6)


@given(st.integers(0, 10_000), st.floats(0, 1e-3), st.sampled_from([1.0, 100.0, 1e4, 1e30]))
@example(0, 5e-324, 1.0)
@example(0, 1e-300, 1.0)
@example(0, 1e-45, 1.0)
@example(0, LEAST_TEMPERATURE, 1e30)
def test_the_smallest_temperatures_take_the_likeliest(seed: int, temperature: float, size: float) -> None:
    """As in float64, where no quotient of these overflows or the row is greedy."""
    logits = torch.randn(1, 2, 20, generator=torch.Generator().manual_seed(seed)) * size
    sampling = Sampling(temperature)
    warp = Warp.of([sampling, Sampling(1.0)], 20, torch.device("cpu"))
    assert warp is not None and sampling.greedy == (np.float32(temperature) < LEAST_TEMPERATURE)
    over = (logits.double() - logits.amax(-1, keepdim=True)) / max(temperature, LEAST_TEMPERATURE)
    torch.testing.assert_close(warp.take([0])(logits), over.softmax(-1).float(), rtol=1e-3, atol=1e-6)


def test_a_batch_that_is_all_greedy_needs_no_probabilities() -> None:
    assert Warp.of([Sampling(), Sampling(top_k=3)], 10, torch.device("cpu")) is None


def test_drawing_walks_the_cumulative_distribution() -> None:
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0]).expand(5, 6)
    chance = torch.tensor([0.0, 0.2499, 0.25, 0.7501, 1 - 2**-53], dtype=torch.float64)
    assert draw(p, chance).tolist() == [1, 1, 3, 4, 4]
    assert draw(p * 7, chance).tolist() == [1, 1, 3, 4, 4]  # need not sum to 1
