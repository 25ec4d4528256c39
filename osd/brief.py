"""Brief passes: a small model over a few tokens, compiled, where the lean pass would spend its time between operations.

A draft of a million numbers takes PyTorch some 220 µs a token, of which products are a quarter; compiled it takes 60
(docs/bench-log.md). Draft models are small and draft token by token, so this is the pass that drafting is made of. It
is compiled in the background once an engine has drafted for some rounds; until then, on a GPU, for larger models and
over adapters the lean pass goes on, over the same cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osd.cache import RaggedCache
from osd.compiled.background import InBackground

MOST_LINES = 8
"""Tokens of a pass; over more, PyTorch's products gain what the rest of its pass loses."""
MOST_WEIGHTS = 4 << 20
"""Numbers in the products of a pass: beyond that they are what it takes, and PyTorch's run on every core."""
WORTH_COMPILING = 128
"""Rounds after the first one that drafted, when the compiler is asked for: loading it takes a second of a core."""

Array = npt.NDArray[Any]
_NONE = np.empty(0, np.float32)


def compile_passes() -> Any:
    """Import :mod:`osd.compiled.passes` and run it over a model of one layer and two numbers."""
    from osd.compiled import passes

    square, line, index = np.ones((2, 2), np.float32), np.ones(2, np.float32), np.zeros(1, np.int64)
    kept, hidden = np.ones((1, 1, 2), np.float32), np.ones((1, 2), np.float32)
    weights = (np.ones((6, 2), np.float32), _NONE, square, _NONE, square, np.ones((2, 1), np.float32), line, line)
    numbers = np.float32(1), np.float32(1)
    passes.run_layer(hidden, index, index, (square, square), weights, (_NONE, _NONE), *numbers, kept, kept.copy())
    passes.run_head(hidden, line, numbers[0], square, _NONE, hidden.copy(), hidden.copy())
    passes.run_residual(hidden, np.stack([square]), np.stack([line]), line, numbers[0], line[:1].copy())
    passes.read_off(hidden, index.copy(), line[:1].copy())
    return passes


PASSES = InBackground(
    compile_passes, "osd-compile-passes", "drafts' passes are not compiled: drafting a token takes a few times as long"
)


class BriefPass:
    """The pass over one model's weights, which is all that it holds: what differs from call to call is the caller's."""

    def __init__(self, module: Any, rotary: Callable[[int], tuple[Tensor, Tensor]]) -> None:
        """``module``: one that :class:`osd.lean.LeanDecoder` takes, on the CPU, in float32. ``rotary``: tables of at
        least so many positions, the sine's first half negated."""
        model = module.model
        self._rotary = rotary
        self._layers = [_layer(layer) for layer in model.layers]
        self._embedding = array_of(model.embed_tokens.weight)
        self._final, self._eps = array_of(model.norm.weight), np.float32(model.norm.variance_epsilon)
        self._head, self._bias = array_of(module.lm_head.weight), array_of(module.lm_head.bias)

    @classmethod
    def over(cls, module: Any, rotary: Callable[[int], tuple[Tensor, Tensor]]) -> BriefPass | None:
        """None where it would not be the faster one."""
        weight = module.lm_head.weight
        small = sum(p.numel() for p in module.model.layers.parameters()) + weight.numel() <= MOST_WEIGHTS
        return cls(module, rotary) if small and weight.device.type == "cpu" and weight.dtype == torch.float32 else None

    def takes(self, lines: int, cache: RaggedCache) -> bool:
        """Whether it is there for so many tokens and this cache; asked before every pass."""
        few = lines <= MOST_LINES and cache.mix is None
        return few and PASSES.ready is not None and cache.ragged[0].is_initialized

    def __call__(
        self, tokens: Tensor, cache: RaggedCache, first: int, starts: Sequence[int], last: Tensor | None
    ) -> Tensor:
        """Tokens (B, T) of the rows from ``first`` on, at positions ``starts[i]`` …: logits (B, T, V), or with ``last``
        (B,) those after one token of each row, (B, 1, V)."""
        passes: Any = PASSES.ready
        (rows, width), length = tokens.shape, cache.length
        hidden = self._embedding[tokens.numpy().reshape(-1)]
        bases = np.array([(first + row) * length for row in range(rows) for _ in range(width)])
        positions = np.array([start + i for start in starts for i in range(width)])
        cos, sin = self._rotary(length)
        rotary = cos.numpy(), sin.numpy()
        for (weights, norms, eps, scale), layer in zip(self._layers, cache.ragged, strict=True):
            keys, values = (kept.numpy() for kept in layer.kept)
            passes.run_layer(hidden, bases, positions, rotary, weights, norms, eps, scale, keys, values)
        if last is not None:
            hidden = hidden[last.numpy() + np.arange(0, rows * width, width)]
        embedding, logits = np.empty_like(hidden), np.empty((len(hidden), len(self._head)), np.float32)
        passes.run_head(hidden, self._final, self._eps, self._head, self._bias, embedding, logits)
        cache.embedding = torch.from_numpy(embedding).view(rows, -1, embedding.shape[1])
        return torch.from_numpy(logits).view(rows, -1, logits.shape[1])


def read_off(logits: Tensor) -> tuple[Tensor, list[float]] | None:
    """Of logits (B, V) each row's likeliest token, the first of several, (B,) int64, and its probability, in one call;
    None where that is not compiled or not for these."""
    if PASSES.ready is None or logits.device.type != "cpu" or logits.dtype != torch.float32:
        return None
    tokens, peaks = np.empty(len(logits), np.int64), np.empty(len(logits), np.float32)
    PASSES.ready.read_off(logits.contiguous().numpy(), tokens, peaks)
    return torch.from_numpy(tokens), peaks.tolist()


def _layer(layer: Any) -> tuple[tuple[Array, ...], tuple[Array, Array], np.float32, np.float32]:
    """What :func:`osd.compiled.passes.run_layer` is given of a layer: weights, norms of queries and keys, ε, scale."""
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [array_of(p.bias) for p in projections]
    weights = (
        np.concatenate([array_of(p.weight) for p in projections]),
        np.concatenate(biases),
        array_of(attention.o_proj.weight),
        array_of(attention.o_proj.bias),
        np.concatenate([array_of(mlp.gate_proj.weight), array_of(mlp.up_proj.weight)]),
        array_of(mlp.down_proj.weight),
        array_of(layer.input_layernorm.weight),
        array_of(layer.post_attention_layernorm.weight),
    )
    norms = [getattr(getattr(attention, name, None), "weight", None) for name in ("q_norm", "k_norm")]
    eps = np.float32(layer.input_layernorm.variance_epsilon)
    return weights, (array_of(norms[0]), array_of(norms[1])), eps, np.float32(attention.scaling)


def array_of(weight: Tensor | None) -> Array:
    """The same numbers in float32, in order, on the host; empty for None. No copy where they are that already."""
    return _NONE if weight is None else weight.detach().float().cpu().contiguous().numpy()
