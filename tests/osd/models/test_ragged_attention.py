"""Rows that attend together: what comes out is what each row would get alone, however they are shared out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from osd.models import ragged_attention
from osd.models.ragged_attention import BLOCK, Share, attend, group, share_out

HEADS, WIDTH = 2, 4
RAGGED = [
    ([5, 5, 5], [1, 1, 1]),
    ([3, 90, 4, 7], [1, 1, 1, 1]),
    ([40, 2, 2, 60, 1], [1, 6, 2, 3, 1]),
    ([200, 0, 17], [1, BLOCK + 30, 2 * BLOCK + 1]),
]


def plain(query: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """One row as the book has it: queries (T, heads, head_dim) at ``start`` … over (heads, length, head_dim)."""
    own = []
    for i, one in enumerate(query):
        seen = slice(0, start + i + 1)
        weights = torch.softmax(torch.einsum("hd,hsd->hs", one, keys[:, seen]) / WIDTH**0.5, -1)
        own.append(torch.einsum("hs,hsd->hd", weights, values[:, seen]))
    return torch.stack(own).flatten(1)


@pytest.mark.parametrize("call", [0, 300, 10**9])
@pytest.mark.parametrize(("starts", "counts"), RAGGED)
def test_every_row_gets_what_it_would_get_alone(
    starts: Sequence[int], counts: Sequence[int], call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ragged_attention, "CALL", call)
    torch.manual_seed(0)
    rows, span, width = len(starts), max(starts) + max(counts), max(counts)
    query = torch.randn(sum(counts), HEADS, WIDTH)
    keys, values = torch.randn(2, rows, HEADS, span, WIDTH).unbind()
    positions = torch.tensor(starts).unsqueeze(1) + torch.arange(width)
    mask = torch.where(torch.arange(span) <= positions.unsqueeze(-1), 0.0, torch.finfo().min).unsqueeze(1)
    shares = share_out(starts, counts, HEADS * WIDTH, 100)
    kinds = len(set(zip(starts, counts, strict=True)))
    assert len(shares) == {0: kinds, 300: len(shares), 10**9: 1}[call] and sum(share.rows for share in shares) == rows
    out = torch.cat([
        attend(query[one.tokens], keys[one.rows, :, : one.span], values[one.rows, :, : one.span], one, WIDTH**-0.5)
        for one in group(shares, counts, mask)
    ])  # fmt: skip
    begin = 0
    for row, n in enumerate(counts):
        own = plain(query[begin : begin + n], keys[row], values[row], starts[row])
        torch.testing.assert_close(out[begin : begin + n], own)
        begin += n


def cost(shares: Sequence[Share], size: int) -> float:
    return sum(share.reads * size + ragged_attention.CALL for share in shares)


def test_a_long_row_reads_alone_and_like_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    starts, counts = [150, 90, 110, 900, 80, 140, 130, 120], [1] * 8
    shares = share_out(starts, counts, 192, 8)
    assert [share.rows for share in shares] == [3, 1, 4] and [share.span for share in shares] == [151, 901, 141]
    together, alone = share_out(starts, counts, 0, 8), [Share(i, 1, 1, 1, s, s + 1) for i, s in enumerate(starts)]
    assert [share.rows for share in together] == [8]
    assert cost(shares, 192) < min(cost(together, 192), cost(alone, 192))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)  # rows that share a call are spread over the cores
    assert [share.rows for share in share_out(starts, counts, 192, 8)] == [8]


def test_few_layers_are_not_worth_working_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    starts, counts = [10, 10, 10, 10, 330], [1] * 5  # 1,280 positions less, of 192 numbers
    assert [len(share_out(starts, counts, 192, layers)) for layers in (1, 8)] == [2, 2]
    assert [len(share_out(starts, counts, 96, layers)) for layers in (1, 8)] == [1, 2]
