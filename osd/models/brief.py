"""Brief passes: a small model over a few tokens, compiled, where the lean pass would spend its time between operations.

A draft of a million numbers takes PyTorch some 220 µs a token, of which products are a quarter; compiled, and still in
float32, it took 60 (docs/bench-log.md). Draft models are small and draft token by token, so this is the pass that
drafting is made of. Its matrices are rounded to eight bits, which changes a guess now and then and never what is
emitted: q is what this pass says, and it is q that is judged. It is compiled in the background once an engine has
drafted for some rounds; until then, on a GPU, for larger models and over adapters the lean pass goes on, over the same
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from osd.kernels.compile_background import InBackground
from osd.kernels.compile_subprocess import apart
from osd.kernels.matrix import Array, Matrix, eight_bits
from osd.models.compiled_inputs import of_rows
from osd.models.kv_cache import RaggedCache

MOST_LINES, MOST_READ = 24, 48
"""Tokens of a pass with logits, and of one that only reads them."""
FEW_THREADS, MOST_WEIGHTS = 2, 160 << 20
"""PyTorch's threads up to which a pass on one core was timed against its own, over models of up to so many numbers in
products: two to four times as fast, for it reads a quarter of the bytes."""
MOST_SHARED, MOST_WORK = 4 << 20, 32 << 20
"""Such numbers, and those times tokens, where PyTorch's products have more cores than that."""
WORTH_COMPILING = 128
"""Rounds after the first one that drafted, when the compiler is asked for: loading it takes a second of a core."""

Acceptance = tuple[Matrix, Array, Array]
"""An acceptance head: matrices (L, D, D), biases (L, D), and the D weights and the bias of its output."""
_NONE = np.empty(0, np.float32)
NO_ACCEPTANCE: Acceptance = (eight_bits(np.empty((0, 1, 1), np.float32)), np.empty((0, 1), np.float32), _NONE)


class ReadOff(NamedTuple):
    """What a brief pass brings beside its logits, of each line of them."""

    choices: Tensor
    """(n,) int64: its likeliest token, the first of several."""
    peaks: list[float]
    """That token's probability."""
    chances: list[float] | None
    """What the acceptance head says of the token that was read; None where there is no head."""


def compile_passes() -> Any:
    """Import :mod:`osd.kernels.llama` and run it over a model of one layer and two numbers."""
    from osd.kernels import llama

    apart(llama.run_top, "osd.models.brief:compile_passes")
    square, line, sight = eight_bits(np.ones((2, 2), np.float32)), np.ones(2, np.float32), of_rows(0, [0], [1], 1)
    kept, hidden, turns = np.ones((1, 1, 2), np.float32), np.ones((1, 2), np.float32), np.ones((2, 2), np.float32)
    mixing, down = eight_bits(np.ones((6, 2), np.float32)), eight_bits(turns[:, :1])
    weights = (mixing, _NONE, square, _NONE, square, down, line, line)
    numbers = np.float32(1), np.float32(1)
    llama.run_layer(hidden, sight, (turns, turns), weights, (_NONE, _NONE), *numbers, kept, kept.copy())
    read = hidden.copy(), hidden.copy(), np.zeros(1, np.int64), line[:1].copy(), line[:1].copy()
    llama.run_top(hidden, line, numbers[0], square, _NONE, NO_ACCEPTANCE, *read)
    return llama


PASSES = InBackground(
    compile_passes, "osd-compile-passes", "drafts' passes are not compiled: drafting a token takes a few times as long"
)


class BriefPass:
    """The pass over one model's weights, which is all that it holds: what differs from call to call is the caller's."""

    def __init__(self, module: Any, rotary: Callable[[int], tuple[Tensor, Tensor]], most: int) -> None:
        """``module``: one that :class:`osd.models.llama_forward.LeanDecoder` takes, on the CPU, in float32.
        ``rotary``: tables of at least so many positions, the sine's first half negated. ``most``: tokens that a pass
        with logits takes."""
        model = module.model
        self._rotary, self._most = rotary, most
        self._layers = [_layer(layer) for layer in model.layers]
        self._embedding = array_of(model.embed_tokens.weight)
        self._final, self._eps = array_of(model.norm.weight), np.float32(model.norm.variance_epsilon)
        self._head, self._bias = eight_bits(array_of(module.lm_head.weight)), array_of(module.lm_head.bias)

    @classmethod
    def over(cls, module: Any, rotary: Callable[[int], tuple[Tensor, Tensor]]) -> BriefPass | None:
        """None where it would not be the faster one."""
        weight, numbers, alone = module.lm_head.weight, _numbers(module), torch.get_num_threads() <= FEW_THREADS
        small = numbers <= (MOST_WEIGHTS if alone else MOST_SHARED)
        if not small or weight.device.type != "cpu" or weight.dtype != torch.float32:
            return None
        return cls(module, rotary, MOST_LINES if alone else min(MOST_LINES, MOST_WORK // numbers))

    def takes(self, lines: int, cache: RaggedCache, most: int | None = None) -> bool:
        """Whether it is there for so many tokens and this cache; asked before every pass. ``most``: of one that only
        reads."""
        fits = lines <= (self._most if most is None else most) and cache.mix is None
        return fits and PASSES.ready is not None and cache.ragged[0].is_initialized

    def read(self, tokens: Tensor, cache: RaggedCache, first: int, starts: Sequence[int]) -> Array:
        """Tokens (B, T) of the rows from ``first`` on, at positions ``starts[i]`` …, into the cache: what the layers
        make of them, (B · T, D)."""
        llama: Any = PASSES.ready
        (rows, width), length = tokens.shape, cache.length
        hidden: Array = self._embedding[tokens.numpy().reshape(-1)]
        sight = of_rows(first, starts, [width] * rows, length)
        cos, sin = self._rotary(length)
        rotary = cos.numpy(), sin.numpy()
        for (weights, norms, eps, scale), layer in zip(self._layers, cache.ragged, strict=True):
            keys, values = (kept.numpy() for kept in layer.kept)
            llama.run_layer(hidden, sight, rotary, weights, norms, eps, scale, keys, values)
        return hidden

    def __call__(
        self, tokens: Tensor, cache: RaggedCache, first: int, starts: Sequence[int], last: Tensor | None,
        acceptance: Acceptance | None = None,
    ) -> tuple[Tensor, ReadOff]:  # fmt: skip
        """The same, and logits (B, T, V), or with ``last`` (B,) those after one token of each row, (B, 1, V); and what
        they say, line by line."""
        llama: Any = PASSES.ready
        rows, width = tokens.shape
        hidden = self.read(tokens, cache, first, starts)
        if last is not None:
            hidden = hidden[last.numpy() + np.arange(0, rows * width, width)]
        embedding, logits = np.empty_like(hidden), np.empty((len(hidden), self._head[2]), np.float32)
        choices, numbers = np.empty(len(hidden), np.int64), np.empty((2, len(hidden)), np.float32)
        llama.run_top(
            hidden, self._final, self._eps, self._head, self._bias, acceptance or NO_ACCEPTANCE,
            embedding, logits, choices, *numbers,
        )  # fmt: skip
        cache.embedding = torch.from_numpy(embedding).view(rows, -1, embedding.shape[1])
        peaks, chances = numbers.tolist()
        read_off = ReadOff(torch.from_numpy(choices), peaks, chances if acceptance else None)
        return torch.from_numpy(logits).view(rows, -1, logits.shape[1]), read_off


def _numbers(module: Any) -> int:
    """In its products."""
    return int(sum(p.numel() for p in module.model.layers.parameters()) + module.lm_head.weight.numel())


def _layer(layer: Any) -> tuple[tuple[Any, ...], tuple[Array, Array], np.float32, np.float32]:
    """What :func:`osd.kernels.llama.run_layer` is given of a layer: weights, norms of queries and keys, ε, scale."""
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [array_of(p.bias) for p in projections]
    weights = (
        eight_bits(np.concatenate([array_of(p.weight) for p in projections])),
        np.concatenate(biases),
        eight_bits(array_of(attention.o_proj.weight)),
        array_of(attention.o_proj.bias),
        eight_bits(np.concatenate([array_of(mlp.gate_proj.weight), array_of(mlp.up_proj.weight)])),
        eight_bits(array_of(mlp.down_proj.weight)),
        array_of(layer.input_layernorm.weight),
        array_of(layer.post_attention_layernorm.weight),
    )
    norms = [getattr(getattr(attention, name, None), "weight", None) for name in ("q_norm", "k_norm")]
    eps = np.float32(layer.input_layernorm.variance_epsilon)
    return weights, (array_of(norms[0]), array_of(norms[1])), eps, np.float32(attention.scaling)


def array_of(weight: Tensor | None) -> Array:
    """The same numbers in float32, in order, on the host; empty for None. No copy where they are that already."""
    return _NONE if weight is None else weight.detach().float().cpu().contiguous().numpy()
