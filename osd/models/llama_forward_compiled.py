"""Passes over a few tokens: the lean pass's products, with all between them compiled.

A small model's pass over a few tokens is spent between its products: in a dozen operations a layer on a few numbers, a
mask for every row, and attention that reads as far as the longest of them. Compiled, each token looks back at just its
own row; a pass took 0.6 of what it did (docs/bench-log.md). It is compiled in the background once a process has made
some passes, and believed once a pass said what the lean one says. Until then, on a GPU, in half precision and over
adapters the lean pass goes on, over the same cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from osd.kernels.compile_background import InBackground
from osd.kernels.compile_subprocess import apart
from osd.logits import RaggedLogits
from osd.models.brief import WORTH_COMPILING, array_of
from osd.models.compiled_inputs import CompiledInputs, PassInput, of_rows
from osd.models.kv_cache import RaggedCache

log = logging.getLogger(__name__)

MOST_TOKENS = 48
"""Of a pass; of more, those of a row had better look back together."""
MOST_READ = 1 << 20
"""Numbers of keys that a layer's heads read, for all tokens: beyond that PyTorch's attention gains what the rest of its
pass loses. With several threads, which share its work, so much less."""
TOLERANCE = 2e-3
"""Of the largest logit, by which the first pass may differ from the lean one."""


def compile_parts() -> Any:
    """Import :mod:`osd.kernels.llama` and run its parts over a token of two numbers."""
    from osd.kernels import llama as parts

    apart(parts.gate, "osd.models.llama_forward_compiled:compile_parts")
    line, mixed, weight = np.ones((1, 2), np.float32), np.ones((1, 6), np.float32), np.ones(2, np.float32)
    number, none, kept = np.float32(1), array_of(None), np.ones((1, 1, 2), np.float32)
    sight, numbers = of_rows(0, [0], [1], 1), (number, number)
    parts.look_back(mixed, sight, (line, line), (none, none), *numbers, kept, kept.copy(), line.copy())
    parts.add_and_norm(line.copy(), line, weight, number, line.copy())
    parts.gate(np.ones((1, 4), np.float32), line.copy())
    return parts


PARTS = InBackground(
    compile_parts, "osd-compile-parts", "passes over few tokens are not compiled: small models take up to twice as long"
)


class FewTokens:
    """The pass over one lean pass's layers."""

    def __init__(self, lean: Any, rotary: Callable[[int], tuple[Tensor, Tensor]]) -> None:
        """``lean``: an :class:`osd.models.llama_forward.LeanDecoder` whose weights are on the CPU, in float32.
        ``rotary``: tables of at least so many positions, the sine's first half negated."""
        self._rotary, self._embedding, self._head = rotary, lean.embedding, lean.head
        self._layers = [_Between(layer) for layer in lean.layers]
        self._final, self._eps = array_of(lean.norm), np.float32(lean.eps)
        self._asked = 0
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
            return False
        read = sum(n * (start + n) for start, n in zip(fed.starts, fed.counts, strict=True)) * self._layers[0].seen
        return read * torch.get_num_threads() <= MOST_READ

    def __call__(self, tokens: Tensor, cache: RaggedCache, fed: PassInput, last: Tensor | None) -> Tensor:
        """Tokens (B, T): logits (B, T, V), or (1, N, V) where not all of them are fed, or with ``last`` (B,) those
        after one token of each row, (B, 1, V)."""
        rows, width = tokens.shape
        line, packed = tokens.reshape(-1), sum(fed.counts) < rows * width
        if packed:
            line = line[[row * width + i for row, n in enumerate(fed.counts) for i in range(n)]]
        embedding = self._climb(line, cache, fed.sight(cache.length))
        if last is not None:
            embedding = embedding[last + torch.arange(0, rows * width, width)].unsqueeze(1)
        else:
            embedding = embedding.unsqueeze(0) if packed else embedding.view(rows, width, -1)
        cache.embedding = embedding
        logits: Tensor = self._head(embedding)
        return logits

    def _climb(self, tokens: Tensor, cache: RaggedCache, sight: CompiledInputs) -> Tensor:
        """Tokens (N,): what the output layer is given, (N, D)."""
        parts: Any = PARTS.ready
        cos, sin = self._rotary(cache.length)
        rotary = cos.numpy(), sin.numpy()
        hidden = F.embedding(tokens, self._embedding).numpy()
        normed, seen, inner = (
            torch.empty(len(hidden), size) for size in (hidden.shape[1], self._layers[0].seen, self._layers[0].inner)
        )
        part = np.zeros_like(hidden)
        for layer, ragged in zip(self._layers, cache.ragged, strict=True):
            keys, values = (kept.numpy() for kept in ragged.kept)
            parts.add_and_norm(hidden, part, layer.before, layer.eps, normed.numpy())
            mixed = layer.qkv(normed).numpy()
            parts.look_back(mixed, sight, rotary, layer.norms, layer.eps, layer.scale, keys, values, seen.numpy())
            parts.add_and_norm(hidden, layer.out(seen).numpy(), layer.after, layer.eps, normed.numpy())
            parts.gate(layer.gate_up(normed).numpy(), inner.numpy())
            part = layer.down(inner).numpy()
        parts.add_and_norm(hidden, part, self._final, self._eps, normed.numpy())
        return normed

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
    """What is known of a layer between its products, and the products."""

    def __init__(self, layer: Any) -> None:
        self.qkv, self.out, self.gate_up, self.down = layer.qkv, layer.out, layer.gate_up, layer.down
        self.before, self.after, self.eps = array_of(layer.before), array_of(layer.after), np.float32(layer.eps)
        self.norms = tuple(array_of(getattr(norm, "weight", None)) for norm in (layer.query_norm, layer.key_norm))
        self.scale = np.float32(layer.scale)
        self.seen: int = layer.queries * layer.width
        """Numbers that a token's heads see."""
        self.inner: int = layer.inner
        """Width of the feed-forward half."""
