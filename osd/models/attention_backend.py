"""What computes attention in osd's own passes: PyTorch's SDPA, its FlexAttention, or FlashInfer.

All of them take the same: queries (rows, heads, width, head_dim), the rows' keys and values (rows, key heads, span,
head_dim), where fewer heads of keys are shared by neighbouring heads of queries, and an additive mask (rows, 1, width,
span), which says of chains, trees, windows and padding alike what a query sees.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from storage.errors import BadSetting

AttentionBackend = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
"""Queries, keys, values, mask and the scale of the scores → (rows, heads, width, head_dim)."""
Name = Literal["auto", "sdpa", "flex_attention", "flashinfer"]
TRIED = (1, 5)
"""Queries of a row with which a back-end is tried."""
ALIGNED = 16
"""Number of elements that GPU kernels want the strides of a mask's lines to be a multiple of. Where they are not,
PyTorch copies the mask in every layer; where only the first line's offset is not, the kernel fails (misaligned
address)."""


@cache
def attention_backend(name: Name, device: torch.device) -> AttentionBackend:
    """Return the back-end that ``serve.attention_backend`` names; auto: SDPA. Raises BadSetting where it is not
    here."""
    if name == "flex_attention":
        return flex_on_gpu() if device.type == "cuda" else flex_attention
    if name == "flashinfer":
        return _flashinfer(device)
    return sdpa


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


def flex_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Compute attention by PyTorch's FlexAttention, the mask added to the scores inside; fused where this function is
    compiled."""
    from torch.nn.attention import flex_attention as flex

    def masked(score: Tensor, row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + mask[row, 0, i, j]

    shared = query.shape[1] != keys.shape[1]
    attend: Any = flex.flex_attention
    seen: Tensor = attend(query, keys, values, score_mod=masked, scale=scale, enable_gqa=shared)
    return seen


def flex_on_gpu() -> AttentionBackend:
    """Return FlexAttention, compiled into one kernel for any number of rows, tokens and positions."""
    compiled: AttentionBackend = torch.compile(flex_attention, dynamic=True, fullgraph=True)
    return compiled


def require_same(name: Name, backend: AttentionBackend, device: torch.device, dtype: torch.dtype) -> None:
    """Check that a back-end says what SDPA says on this device, of one query of a row and of several. Compiled for a
    CPU, FlexAttention of torch 2.13 does not. Raises BadSetting."""
    for width in TRIED:
        query, keys, values = (
            torch.arange(2 * heads * length * 64, device=device).sin().view(2, heads, length, 64).to(dtype)
            for heads, length in ((4, width), (2, 40), (2, 40))
        )
        seen = torch.ones(2, 1, width, 40, dtype=torch.bool, device=device).tril(40 - width)
        mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, torch.finfo(dtype).min)
        off = float((backend(query, keys, values, mask, 0.2) - sdpa(query, keys, values, mask, 0.2)).abs().max())
        if not off <= (1e-3 if dtype == torch.float32 else 3e-2):
            reason = f"{name} is off from sdpa by {off:.2g} on {device} for {width} queries of a row; set auto"
            raise BadSetting(source="settings", key="serve.attention_backend", reason=reason)


def _flashinfer(device: torch.device) -> AttentionBackend:
    """Return FlashInfer's attention, a row after another: its kernels take a mask of each row, and keys where they lie.
    Raises BadSetting."""
    try:
        import flashinfer  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        reason = "flashinfer is not installed (pip install flashinfer-python); sdpa needs nothing"
        raise BadSetting(source="settings", key="serve.attention_backend", reason=reason) from None
    if device.type != "cuda":
        reason = f"flashinfer runs on NVIDIA's GPUs, and this model is on {device.type}; set sdpa"
        raise BadSetting(source="settings", key="serve.attention_backend", reason=reason)
    prefill: Any = flashinfer.single_prefill_with_kv_cache

    def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        seen = [
            prefill(
                one.transpose(0, 1).contiguous(), k, v, custom_mask=visible[0] == 0, kv_layout="HND", sm_scale=scale
            ).transpose(0, 1)
            for one, k, v, visible in zip(query, keys, values, mask, strict=True)
        ]
        return torch.stack(seen)

    return attend
