"""The compiled pass of draft and target over a few tokens: PyTorch's products with all between them compiled by Numba,
and layers that are little work for these tokens compiled whole.

PyTorch takes some 10 µs to begin a product and 3 to 10 for each of a dozen operations around it, and its attention
reads as far as the longest row. Compiled, each token looks back at just its own row. The pass is compiled in the
background once a model has made some passes, and trusted once its logits were the lean pass's. Until then, on a GPU, in
half precision and over adapters the lean pass goes on, over the same cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osd.kernels.compile_background import InBackground
from osd.kernels.compile_subprocess import apart
from osd.logits import RaggedLogits
from osd.models.compiled_inputs import CompiledInputs, PassInput, of_rows
from osd.models.kv_cache import RaggedCache, RaggedLayer

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]

MOST_TOKENS = 48
"""Of a pass; of more, those of a row had better look back together."""
MOST_READ = 1 << 21
"""Numbers of keys that a layer's heads read, for all tokens: beyond that PyTorch's attention gains what the rest of its
pass loses. With several threads, which share its work, so much less."""
MOST_ALONE = 5 << 19
"""Multiplications of a layer's products that are made in one call, on one core: they take some 40 µs, which PyTorch
takes to begin four products."""
TOLERANCE = 2e-3
"""Of the largest logit, by which the first pass may differ from the lean one."""
WORTH_COMPILING = 128
"""Passes of a model, when the compiler is asked for: loading it takes a second of a core."""


def compile_parts() -> Any:
    """Import :mod:`osd.kernels.llama` and run its parts over a token of eight numbers."""
    from osd.kernels import llama as parts

    apart(parts.run_layer, "osd.models.llama_forward_compiled:compile_parts")
    number, none, kept = np.float32(1), array_of(None), np.ones((1, 1, 8), np.float32)
    line, norm, square = np.ones((1, 8), np.float32), np.ones(8, np.float32), np.ones((8, 8), np.float32)
    mixed, both, gates = np.ones((1, 24), np.float32), np.ones((1, 16), np.float32), np.ones((8, 16), np.float32)
    attention = of_rows(0, [0], [1], 1), (line, line), (none, none), number, number, kept, kept.copy()
    weights = np.ones((8, 24), np.float32), none, square, none, gates, square
    parts.look_back(mixed, *attention, line.copy())
    parts.add_and_norm(line.copy(), line, norm, number, line.copy())
    parts.gate(both, line.copy())
    parts.run_layer(line.copy(), line.copy(), weights, norm, norm, *attention)
    return parts


PARTS = InBackground(
    compile_parts, "osd-compile-parts", "passes over few tokens are not compiled: small models take a few times as long"
)


class FewTokens:
    """The pass over one lean pass's layers."""

    def __init__(self, lean: Any, rotary: Callable[[int], tuple[Tensor, Tensor]], layers: Sequence[Any]) -> None:
        """``lean``: an :class:`osd.models.llama_forward.LeanDecoder` whose weights are on the CPU, in float32.
        ``rotary``: tables of at least so many positions, the sine's first half negated. ``layers``: the module's
        own."""
        self._rotary, self._embedding, self._head = rotary, array_of(lean.embedding), lean.head
        self._layers = [_Between(ours, layer) for ours, layer in zip(lean.layers, layers, strict=True)]
        self._final, self._eps = array_of(lean.norm), np.float32(lean.eps)
        self._asked = 0
        self.waited = False
        """Whether passes that it would have taken went another way, before it was compiled."""
        self.trusted: bool | None = None
        """Whether it says what the lean pass says; None until it was tried."""

    def takes(self, fed: PassInput, cache: RaggedCache) -> bool:
        """Whether it is there for what is fed. Asked before every pass, and after some of them the compiler is asked
        for."""
        refused = self.trusted is False or cache.mix is not None or not cache.ragged[0].is_initialized
        if refused or sum(fed.counts) > MOST_TOKENS:
            return False
        self._asked += 1
        if self._asked == WORTH_COMPILING:
            PARTS.start()
        if PARTS.ready is None:
            self.waited = True
            return False
        read = sum(n * (start + n) for start, n in zip(fed.starts, fed.counts, strict=True)) * self._layers[0].seen
        return read * torch.get_num_threads() <= MOST_READ

    def __call__(self, tokens: Tensor, cache: RaggedCache, fed: PassInput, last: Tensor | None) -> Tensor:
        """Tokens (B, T): logits (B, T, V), or (1, N, V) where not all of them are fed, or with ``last`` (B,) those
        after one token of each row, (B, 1, V)."""
        rows, width = tokens.shape
        packed = sum(fed.counts) < rows * width
        hidden, part, attention = self._climb(tokens, cache, fed)
        part = self._layers[-1](hidden, part, *attention, cache.ragged[-1])
        if last is not None:
            places = last.numpy() + np.arange(0, rows * width, width)
            hidden, part = hidden[places], part[places]
        embedding = torch.empty(hidden.shape)
        PARTS.ready.add_and_norm(hidden, part, self._final, self._eps, embedding.numpy())
        cache.embedding = embedding.view(1 if packed else rows, -1, hidden.shape[1])
        logits: Tensor = self._head(cache.embedding)
        return logits

    def read(self, tokens: Tensor, cache: RaggedCache, fed: PassInput) -> None:
        """Only fill the cache: of the last layer that takes keys and values, and nothing else."""
        hidden, part, attention = self._climb(tokens, cache, fed)
        self._layers[-1].look_back(hidden, part, *attention, cache.ragged[-1])

    def _climb(self, tokens: Tensor, cache: RaggedCache, fed: PassInput) -> tuple[Array, Array, tuple[Any, ...]]:
        """What the last layer is given, see :class:`_Between`."""
        line, length = tokens.numpy().reshape(-1), cache.length
        if sum(fed.counts) < len(line):
            line = line[(np.arange(tokens.shape[1]) < np.array(fed.counts)[:, None]).reshape(-1)]
        cos, sin = self._rotary(length)
        hidden, attention = self._embedding[line], (fed.sight(length), (cos.numpy(), sin.numpy()))
        part = np.zeros_like(hidden)
        for layer, ragged in zip(self._layers[:-1], cache.ragged, strict=False):
            part = layer(hidden, part, *attention, ragged)
        return hidden, part, attention

    def compare(self, said: RaggedLogits, expected: RaggedLogits, counts: Sequence[int]) -> bool:
        """Whether it is trusted from now on; else never. Both are logits of the same pass, of which the first
        ``counts[i]`` of a row mean anything."""
        pairs = [(said.first(i, n), expected.first(i, n)) for i, n in enumerate(counts)]
        off = max(float((ours - theirs).abs().max()) for ours, theirs in pairs)
        largest = max(1.0, max(float(theirs.abs().max()) for _, theirs in pairs))
        self.trusted = off <= TOLERANCE * largest
        if not self.trusted:
            log.warning("a compiled pass is not used: its logits are off by %.2g", off, extra={"action": "few_refused"})
        return self.trusted


class _Between:
    """A layer: its products by PyTorch with what stands between them compiled, or all of it compiled."""

    def __init__(self, lean: Any, layer: Any) -> None:
        self.qkv, self.out, self.gate_up, self.down = lean.qkv, lean.out, lean.gate_up, lean.down
        self.before, self.after, self.eps = array_of(lean.before), array_of(lean.after), np.float32(lean.eps)
        self.norms = tuple(array_of(getattr(norm, "weight", None)) for norm in (lean.query_norm, lean.key_norm))
        self.scale = np.float32(lean.scale)
        self.seen: int = lean.queries * lean.width
        """Numbers that a token's heads see."""
        self.inner: int = lean.inner
        """Width of the feed-forward half."""
        self.work = sum(p.numel() for p in layer.parameters())
        """Multiplications a token."""
        small = self.work <= MOST_ALONE and not (len(self.before) % 8 or self.seen % 8 or self.inner % 8)
        self._weights = _weights(layer) if small else None

    def __call__(
        self, hidden: Array, part: Array, sight: CompiledInputs, rotary: tuple[Array, Array], kept: RaggedLayer
    ) -> Array:
        """``hidden`` (N, D) grows by ``part`` (N, D); what it is to grow by next is returned."""
        parts: Any = PARTS.ready
        if self._weights and len(hidden) * self.work <= MOST_ALONE:
            attention = sight, rotary, self.norms, self.eps, self.scale, kept.keys.numpy(), kept.values.numpy()
            parts.run_layer(hidden, part, self._weights, self.before, self.after, *attention)
            return part
        seen = self.look_back(hidden, part, sight, rotary, kept)
        normed, inner = torch.empty(hidden.shape), torch.empty(len(hidden), self.inner)
        parts.add_and_norm(hidden, self.out(seen).numpy(), self.after, self.eps, normed.numpy())
        parts.gate(self.gate_up(normed).numpy(), inner.numpy())
        down: Array = self.down(inner).numpy()
        return down

    def look_back(
        self, hidden: Array, part: Array, sight: CompiledInputs, rotary: tuple[Array, Array], kept: RaggedLayer
    ) -> Tensor:
        """The half up to what the queries see, (N, H · W)."""
        parts: Any = PARTS.ready
        normed, seen = torch.empty(hidden.shape), torch.empty(len(hidden), self.seen)
        attention = sight, rotary, self.norms, self.eps, self.scale, kept.keys.numpy(), kept.values.numpy()
        parts.add_and_norm(hidden, part, self.before, self.eps, normed.numpy())
        parts.look_back(self.qkv(normed).numpy(), *attention, seen.numpy())
        return seen


def _weights(layer: Any) -> tuple[Array, ...]:
    """A module's layer as :func:`osd.kernels.llama.run_layer` takes it."""
    attention, mlp = layer.self_attn, layer.mlp
    mixing = attention.q_proj, attention.k_proj, attention.v_proj
    return (
        _across(*mixing), np.concatenate([array_of(each.bias) for each in mixing]),
        _across(attention.o_proj), array_of(attention.o_proj.bias),
        _across(mlp.gate_proj, mlp.up_proj), _across(mlp.down_proj),
    )  # fmt: skip


def _across(*products: Any) -> Array:
    """(inputs, outputs of them all)"""
    return np.ascontiguousarray(np.concatenate([array_of(each.weight) for each in products]).T)


def array_of(weight: Tensor | None) -> Array:
    """The same numbers in float32, in order, on the host; empty for None. No copy where they are that already."""
    return np.empty(0, np.float32) if weight is None else weight.detach().float().cpu().contiguous().numpy()
