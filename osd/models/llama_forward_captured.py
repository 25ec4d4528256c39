"""The fused pass as it is captured: what stands between two attentions is two functions, which PyTorch compiles.

Attention and the cache stay outside of what is compiled: compiled, a write to the cache may become a copy of it. Both
functions take weights as arguments, so that one layer is compiled for all, once for each number of tokens, in the
background; whatever the compiler cannot do is captured as it is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from osd.models.captured_pass import Capture, CapturedPass
from osd.models.kv_cache import RaggedCache
from osd.models.ragged_attention import attend

log = logging.getLogger(__name__)

SHAPES = 256
"""Numbers of tokens for which one function may be compiled."""
REASON = 200
"""Most letters of the compiler's reason in the log."""


class Sizes(NamedTuple):
    """What a layer's functions are compiled for, beside the number of tokens."""

    queries: int
    keys: int
    width: int
    """Width of a head."""
    eps: float


def look(
    hidden: Tensor, norm: Tensor, weight: Tensor, bias: Tensor | None, head_norms: tuple[Tensor, Tensor] | None,
    cos: Tensor, sin: Tensor, sizes: Sizes,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute a layer's queries, keys and values (N, heads, head_dim) from its input (N, D); cos and sin are
    (N, 1, head_dim), the sine's first half negated."""
    normed = F.rms_norm(hidden, (hidden.shape[1],), norm, sizes.eps)
    heads = F.linear(normed, weight, bias).view(len(hidden), -1, sizes.width)
    query, key, value = torch.split(heads, [sizes.queries, sizes.keys, sizes.keys], dim=1)
    if head_norms is not None:
        query, key = (
            F.rms_norm(part, (sizes.width,), own, sizes.eps) for part, own in zip((query, key), head_norms, strict=True)
        )
    query, key = (part * cos + part.roll(sizes.width // 2, -1) * sin for part in (query, key))
    return query, key, value


def think(
    hidden: Tensor, seen: Tensor, out: Tensor, bias: Tensor | None, norm: Tensor, gate_up: Tensor, down: Tensor,
    sizes: Sizes,
) -> Tensor:  # fmt: skip
    """Compute a layer's output (N, D) from its input and what its queries have seen, (N, heads · head_dim)."""
    hidden = hidden + F.linear(seen, out, bias)
    gate, up = F.linear(F.rms_norm(hidden, (hidden.shape[1],), norm, sizes.eps), gate_up).chunk(2, dim=-1)
    return hidden + F.linear(F.silu(gate) * up, down)


PLAIN: tuple[Callable[..., Any], Callable[..., Any]] = look, think


class CapturedLlama:
    """The fused pass over rows that attend together, without adapters; see :data:`osd.models.fixed_pass.Body`."""

    def __init__(self, fused: Any, rotary: Callable[[int], tuple[Tensor, Tensor]], compiler: Any = None) -> None:
        """``fused``: an :class:`osd.models.llama_forward.LlamaForward` whose weights are not packed. ``rotary``: gives
        tables of at least so many positions. ``compiler``: compiles a function; None: as it is."""
        self._fused, self._rotary, self._compiler = fused, rotary, compiler
        self._ready: dict[int, bool] = {}
        """Numbers of tokens that are compiled (True), or are being so."""
        self._parts = PLAIN if compiler is None else (compiler(look), compiler(think))

    def __call__(self, tokens: Tensor, cache: RaggedCache, last: Tensor | None) -> Tensor:
        feed, fused = cache.feed, self._fused
        ready = self._ready.get(tokens.numel(), False)
        first, second = self._parts if ready else PLAIN
        cos, sin = (table[feed.positions.flatten()].unsqueeze(1) for table in self._rotary(cache.length))
        hidden = F.embedding(tokens.flatten(), fused.embedding)
        for index, layer in enumerate(fused.layers):
            sizes = _sizes(layer)
            cache.note(index, hidden)
            query, key, value = first(hidden, *_before(layer), cos, sin, sizes)
            cache.ragged[index].write(key, value)
            group = feed.within(layer.window)[0]
            keys, values = cache.ragged[index].window(group.rows, group.span)
            seen = attend(query, keys, values, group, layer.scale)
            hidden = second(hidden, seen, *_after(layer), sizes)
        cache.note(len(fused.layers) + 1, hidden)
        if len(fused.layers) in cache.features:
            cache.note(len(fused.layers), F.rms_norm(hidden, (hidden.shape[1],), fused.norm, fused.eps))
        hidden = hidden.view(*tokens.shape, -1)
        if last is not None:
            hidden = hidden[torch.arange(len(hidden), device=hidden.device), last].unsqueeze(1)
        cache.embedding = F.rms_norm(hidden, (hidden.shape[2],), fused.norm, fused.eps)
        logits: Tensor = fused.head(cache.embedding)
        return logits

    def ready(self, tokens: int) -> bool:
        """Return whether the functions are compiled for so many tokens; begins it, in the background, where not."""
        if self._compiler is None:
            return True
        if tokens not in self._ready:
            self._ready[tokens] = False
            work = partial(self._compile, tokens, torch.get_num_threads())
            threading.Thread(target=work, name="osd-compile-pass", daemon=True).start()
        return self._ready[tokens]

    @torch.inference_mode()
    def _compile(self, tokens: int, threads: int) -> None:
        """Compile the functions by calling them with one layer's weights."""
        torch.set_num_threads(threads)  # of this thread; what is compiled is for so many
        layer, embedding = self._fused.layers[0], self._fused.embedding
        hidden, (cos, sin) = embedding.new_zeros(tokens, embedding.shape[1]), self._rotary(1)
        turn = (table[:1].expand(tokens, -1).unsqueeze(1).contiguous() for table in (cos, sin))
        seen = embedding.new_zeros(tokens, layer.queries * layer.width)
        try:
            with torch._dynamo.config.patch(recompile_limit=SHAPES):
                self._parts[0](hidden, *_before(layer), *turn, _sizes(layer))
                self._parts[1](hidden, seen, *_after(layer), _sizes(layer))
        except Exception as error:  # whatever is wrong with the compiler on this machine, the plain functions work
            said = " ".join((str(error).strip() or type(error).__name__).split())[:REASON]
            log.warning("passes are captured uncompiled: %s", said, extra={"action": "compile_failed"})
            self._parts, self._compiler = PLAIN, None
        self._ready[tokens] = True


def _sizes(layer: Any) -> Sizes:
    return Sizes(layer.queries, layer.keys, layer.width, layer.eps)


def _before(layer: Any) -> tuple[Any, ...]:
    norms = None if layer.query_norm is None else (layer.query_norm, layer.key_norm)
    return layer.before, layer.qkv.weight, layer.qkv.bias, norms


def _after(layer: Any) -> tuple[Any, ...]:
    return layer.out.weight, layer.out.bias, layer.after, layer.gate_up.weight, layer.down.weight


def compiler(backend: str = "inductor") -> Callable[[Any], Any]:
    """Return what compiles a function for one number of tokens after another, whole or not at all."""
    return partial(torch.compile, fullgraph=True, dynamic=False, backend=backend)


def captured_llama(
    fused: Any, rotary: Callable[[int], tuple[Tensor, Tensor]], weights: Sequence[Tensor],
    capture: Capture | None = None, compile_with: Any = None,
) -> CapturedPass:  # fmt: skip
    """Return the captured passes of a fused pass whose weights are not packed. ``weights``: the module's, which are
    the same memory."""
    body = CapturedLlama(fused, rotary, compile_with)
    return CapturedPass(body, weights, capture, body.ready)
