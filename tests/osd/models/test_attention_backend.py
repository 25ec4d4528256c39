"""Attention agrees with plain softmax, also where the heads that share keys are further queries of one head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from osd.models.ragged_attention import sdpa, sdpa_folded

SHAPES = [(2, 3, 21, 4, 2), (3, 1, 40, 4, 4), (1, 5, 70, 6, 2)]
"""Rows, queries of each, positions, heads of queries and of keys."""


def inputs(rows: int, width: int, span: int, heads: int, kept: int) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """Keys and values are views of a cache, and each query sees some keys, itself among them."""
    torch.manual_seed(span)
    query, mask = torch.randn(rows, heads, width, 16), torch.rand(rows, 1, width, span) < 0.4
    keys, values = (part[:, :, :span].transpose(0, 1) for part in torch.randn(2, kept, rows, span + 9, 16))
    mask[..., span - width :] |= torch.eye(width, dtype=torch.bool)
    return query, keys, values, torch.where(mask, 0.0, torch.finfo(torch.float32).min), 0.3


def plain(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The plain reference: softmax over the scores, heads of keys repeated."""
    share = query.shape[1] // keys.shape[1]
    keys, values = (part.repeat_interleave(share, 1) for part in (keys, values))
    return ((query @ keys.transpose(2, 3)) * scale + mask).softmax(-1) @ values


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("attend", [sdpa, sdpa_folded])
def test_both_compute_attention(attend: Any, shape: tuple[int, ...]) -> None:
    given = inputs(*shape)
    torch.testing.assert_close(attend(*given), plain(*given), rtol=1e-4, atol=1e-5)
