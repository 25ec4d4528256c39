"""Few tokens of one row are fed where any others would be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from osd.models import attention_metadata
from osd.models.attention_metadata import AttentionMetadata, AttentionMetadataBuilder
from osd.models.kv_blocks import DenseRows

LENGTH, LIMIT = 40, 24


def aimed(first: int, start: int, width: int) -> AttentionMetadata:
    cpu = torch.device("cpu")
    aim = AttentionMetadataBuilder(LENGTH, LIMIT, 2, lambda: 8, cpu, torch.float32, DenseRows(4, LENGTH, cpu).find)
    return aim.rows(first, [start], width, [width])


anywhere = given(
    first=st.integers(0, 3), start=st.integers(0, LENGTH - 1), width=st.integers(1, attention_metadata.BAND + 2)
)


@anywhere
def test_few_tokens_of_one_row_go_where_any_would(first: int, start: int, width: int) -> None:
    width = min(width, LENGTH - start)
    few = aimed(first, start, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_metadata, "BAND", 0)
        any_ = aimed(first, start, width)
    for name in ("positions", "slots", "mask"):
        assert torch.equal(getattr(few, name), getattr(any_, name)), name
    assert (few.first, few.span, few.packed) == (any_.first, any_.span, None)
    (one,), (other,) = few.groups, any_.groups
    assert torch.equal(one.mask, other.mask) and one.places is other.places is None
    assert one._replace(mask=few.mask) == other._replace(mask=few.mask)


@anywhere
def test_a_gpus_masks_say_the_same_and_begin_where_its_kernels_read(first: int, start: int, width: int) -> None:
    """A mask that begins elsewhere is a misaligned address there."""
    width = min(width, LENGTH - start)
    plain = aimed(first, start, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_metadata, "alignment", lambda device: attention_metadata.ALIGNED)
        aligned = aimed(first, start, width)
    for name in ("positions", "slots", "mask", "span"):
        assert torch.equal(torch.as_tensor(getattr(aligned, name)), torch.as_tensor(getattr(plain, name))), name
    for mask in (aligned.mask, *(group.mask for group in aligned.groups)):
        assert mask.storage_offset() % attention_metadata.ALIGNED == mask.stride(2) % attention_metadata.ALIGNED == 0


def test_a_token_sees_its_row_up_to_itself() -> None:
    feed = aimed(1, 5, 3)
    assert feed.slots.tolist() == [LENGTH + 5, LENGTH + 6, LENGTH + 7]
    seen = (feed.mask[0, 0] == 0).int().tolist()
    assert seen == [[1] * 6 + [0] * 2, [1] * 7 + [0], [1] * 8]
