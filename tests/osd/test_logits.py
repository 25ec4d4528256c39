"""Logits one line after another are those of a table of rows."""

from __future__ import annotations

import pytest
import torch

from osd.logits import RaggedLogits

VOCABULARY = 7


@pytest.mark.parametrize("counts", [[3], [1, 4, 2], [2, 1], [5, 5, 1, 3], [1, 1]])
def test_lines_of_rows_of_different_length_are_those_of_a_padded_table(counts: list[int]) -> None:
    width = max(counts) + 1
    table = torch.randn(len(counts), width, VOCABULARY)
    for row, count in enumerate(counts):
        table[row, count:] = 0.0
    packed = RaggedLogits.packed(torch.cat([own[:count] for own, count in zip(table, counts, strict=True)]), counts)
    for scored in (packed, RaggedLogits.of(table)):
        assert torch.equal(scored.table(width), table)
        for row, count in enumerate(counts):
            places = [*range(count)][::-1]
            assert torch.equal(scored.at(row, places), table[row, places])
            assert torch.equal(scored.first(row, count), table[row, :count])
    assert RaggedLogits.of(table).table(width).data_ptr() == table.data_ptr(), "nothing is copied"
