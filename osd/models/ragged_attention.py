"""Attention in a ragged pass: which rows attend together, and the attention itself.

Rows that share a call are all padded to the longest of them and to the most queries that one of them has; the padding
is masked, but it takes its time. A call of its own costs a little, too. So neighbouring rows share one where that is
cheaper than two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from osd.logits import spread

ALIGNED = 16
"""Number of elements that GPU kernels want the strides of a mask's lines to be a multiple of. Where they are not,
PyTorch copies the mask in every layer; where only the first line's offset is not, the kernel fails (misaligned
address)."""
CALL = 50_000
"""Fixed cost of an attention call, as the number of key elements that one query reads meanwhile on one core."""
PLANNING = 3
"""Cost of working out the groups, in calls."""
BLOCK = 128
"""Queries that attend together: in a long pass, the earlier ones are spared the keys that come after them."""


class AttentionGroup(NamedTuple):
    """Neighbouring rows that share an attention call."""

    rows: slice
    """Their indices among the pass's rows."""
    tokens: slice
    """Their indices among the pass's tokens, row after row."""
    width: int
    """Queries of each row."""
    start: int
    """The furthest position at which one of the rows begins."""
    span: int
    """Positions that are read."""
    mask: Tensor
    """(rows, 1, width, span) additive."""
    places: Tensor | None
    """(n,) int64: which of the rows · width queries are tokens of the pass; None for all of them."""


class Share(NamedTuple):
    """Candidate group of ``rows`` rows from ``first`` on, which feed ``tokens`` tokens in all."""

    first: int
    rows: int
    tokens: int
    width: int
    start: int
    span: int

    def beside(self, other: Share) -> Share:
        """Return the group that both make together."""
        return Share(
            self.first, self.rows + other.rows, self.tokens + other.tokens, max(self.width, other.width),
            max(self.start, other.start), max(self.span, other.span),
        )  # fmt: skip

    @property
    def reads(self) -> float:
        """Cost of reading the keys, in positions: queries of one row share some of it."""
        return self.rows * self.span * effort(self.width)


def effort(width: int) -> float:
    """Return what ``width`` queries of a row cost, relative to one."""
    return 1.0 if width == 1 else 1.3 + 0.25 * width


def share_out(starts: Sequence[int], counts: Sequence[int], size: int, layers: int) -> list[Share]:
    """Split rows that feed ``counts[i]`` tokens from ``starts[i]`` on into groups. ``size``: elements of one position's
    keys, 0 where all rows are to share one call."""
    alone = [Share(i, 1, n, n, begin, begin + n) for i, (begin, n) in enumerate(zip(starts, counts, strict=True))]
    if len(alone) == 1:
        return alone
    most, call = alone[0], CALL * torch.get_num_threads()
    for row in alone[1:]:
        most = most.beside(row)
    saved = (most.reads - sum(row.reads for row in alone)) * size
    if saved * layers <= call * (layers + PLANNING):
        return [most]
    groups: list[Share] = []
    for row in alone:
        groups.append(row)
        while len(groups) > 1:
            both = groups[-2].beside(groups[-1])
            if (both.reads - groups[-2].reads - groups[-1].reads) * size > call:
                break
            groups[-2:] = [both]
    return groups


def group(
    shares: Sequence[Share], counts: Sequence[int], mask: Tensor, packed: Tensor | None = None
) -> list[AttentionGroup]:
    """Return the groups of a pass over ``counts[i]`` tokens of each row, with its mask (B, 1, T, span) and, where not
    all of the B · T tokens are fed, which of them are."""
    groups, begin = [], 0
    for share in shares:
        rows, end = slice(share.first, share.first + share.rows), begin + share.tokens
        whole = packed is not None and (share.rows, share.width) == (len(counts), mask.shape[2])
        groups.append(AttentionGroup(
            rows, slice(begin, end), share.width, share.start, share.span,
            mask[rows, :, : share.width, : share.span],
            packed if whole else _places(counts[rows], share.width, mask.device),
        ))  # fmt: skip
        begin = end
    return groups


def _places(counts: Sequence[int], width: int, device: torch.device) -> Tensor | None:
    if min(counts) == width:
        return None
    return torch.tensor([i * width + j for i, n in enumerate(counts) for j in range(n)], device=device)


def attend(query: Tensor, keys: Tensor, values: Tensor, group: AttentionGroup, scale: float) -> Tensor:
    """Compute a group's attention: queries (n, heads, head_dim) over its rows' keys and values (rows, heads, span,
    head_dim) → (n, heads · head_dim)."""
    rows, shape = len(keys), query.shape[1:]
    if group.places is None:
        lines = query.view(rows, group.width, *shape)
    else:
        lines = spread(query, group.places, rows, group.width)
    seen = _in_blocks(lines.transpose(1, 2), keys, values, group, scale).transpose(1, 2).reshape(rows * group.width, -1)
    return seen if group.places is None else seen[group.places]


def _in_blocks(query: Tensor, keys: Tensor, values: Tensor, group: AttentionGroup, scale: float) -> Tensor:
    """Compute attention (rows, heads, width, head_dim) in blocks of queries, sparing each block the keys after it."""
    if group.width <= BLOCK:
        return sdpa(query, keys, values, group.mask, scale)
    blocks = []
    for begin in range(0, group.width, BLOCK):
        end = min(begin + BLOCK, group.width)
        until = min(group.span, group.start + end)
        mask = group.mask[:, :, begin:end, :until]
        blocks.append(sdpa(query[:, :, begin:end], keys[:, :, :until], values[:, :, :until], mask, scale))
    return torch.cat(blocks, dim=2)


def sdpa(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Compute attention by PyTorch's scaled_dot_product_attention."""
    shared = query.shape[1] != keys.shape[1]
    if shared and query.device.type != "cpu":
        return sdpa_folded(query, keys, values, mask, scale)
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale, enable_gqa=shared)


def sdpa_folded(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Compute attention in which the heads that share keys are further queries of one head.

    With a mask none of PyTorch's fused kernels for GPUs takes fewer heads of keys than of queries: it would copy the
    keys for each.
    """
    share, span = query.shape[1] // keys.shape[1], mask.shape[3]
    lines = query.reshape(len(query), keys.shape[1], -1, query.shape[3])
    wide = F.pad(mask, (0, -span % ALIGNED)).repeat(1, 1, share, 1)[..., :span]
    return F.scaled_dot_product_attention(lines, keys, values, attn_mask=wide, scale=scale).reshape(query.shape)
