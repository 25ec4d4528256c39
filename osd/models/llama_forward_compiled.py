"""The compiled pass of draft and target over a few tokens: PyTorch's products with all between them compiled by Numba,
and layers that are little work for these tokens compiled whole.

PyTorch takes some 10 µs to begin a product and 3 to 10 for each of a dozen operations around it, and its attention
reads as far as the longest row. Compiled, each token looks back at just its own row. The pass is compiled in the
background once a model has made some passes, and trusted once its logits were the fused pass's. Until then, on a
GPU, in half precision and over adapters the fused pass goes on, over the same cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osd.kernels.code_cache import BackgroundCompile, apart
from osd.logits import RaggedLogits
from osd.models.fixed_pass import PassInput, of_rows
from osd.models.kv_cache import RaggedCache
from osd.models.kv_cache_layers import RaggedLayer

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Acceptance = tuple[Array, Array, Array]
"""An acceptance head, float32: matrices (L, D, D), biases (L, D), and the D weights and the bias of its output."""

MOST_TOKENS = 48
"""Tokens of a pass; the tokens of a row had better attend together where there are more."""
MOST_READ = 1 << 21
"""Numbers of keys that a layer's heads read, for all tokens, times PyTorch's threads: beyond that PyTorch's attention,
which reads in blocks and by all threads, gains more than the rest of its pass loses."""
MOST_ALONE = 5 << 19
"""Multiplications of a layer's products up to which the layer is one call on one core: 50 µs, which is what PyTorch
takes to begin four products and to make them on two threads."""
TOLERANCE = 2e-3
"""Share of the largest logit by which the first pass may differ from the fused one."""
WORTH_COMPILING = 128
"""Passes of a model after which the compiler is asked for: loading it takes a second of a core."""


def compile_parts() -> Any:
    """Import :mod:`osd.kernels.llama` and call its functions over a token of eight numbers."""
    from osd.kernels import llama

    parts: Any = llama
    apart(parts.run_layer, "osd.models.llama_forward_compiled:compile_parts")
    number, none, norm = np.float32(1), np.empty(0, np.float32), np.ones(8, np.float32)
    token, mixed, both = (np.ones((1, size), np.float32) for size in (8, 24, 16))
    square, qkv, gate_up = (np.ones((8, size), np.float32) for size in (8, 24, 16))
    kept = np.ones((2, 1, 1, 8), np.float32)
    attention = of_rows(0, [0], [1], 1), (token, token), (none, none), number, number, *kept
    parts.look_back(mixed, *attention, token.copy())
    parts.add_and_norm(token.copy(), token, norm, number, token.copy())
    parts.gate(both, token.copy())
    weights = qkv, none, square, none, gate_up, square
    parts.run_layer(token.copy(), token.copy(), weights, norm, norm, *attention)
    return parts


PARTS = BackgroundCompile(
    compile_parts, "osd-compile-parts", "passes over few tokens are not compiled: small models take a few times as long"
)


class CompiledPass:
    """The compiled pass over one fused pass's layers."""

    drafts = False

    def __init__(self, fused: Any, rotary: Callable[[int], tuple[Tensor, Tensor]], layers: Sequence[Any]) -> None:
        """``fused``: an :class:`osd.models.llama_forward.LlamaForward` whose weights are on the CPU, in float32.
        ``rotary``: gives tables of at least so many positions, the sine's first half negated. ``layers``: the module's
        own."""
        self._rotary, self._embedding, self._head = rotary, array_of(fused.embedding), fused.head
        self._layers = [_CompiledLayer(ours, layer) for ours, layer in zip(fused.layers, layers, strict=True)]
        self._final, self._eps = array_of(fused.norm), np.float32(fused.eps)
        self._window: int | None = min((ours.window for ours in fused.layers if ours.window), default=None)
        """Positions up to which every layer sees all; None where they always do."""
        self._asked = 0
        self.waited = False
        """Whether passes that it would have taken went the other way, before it was compiled."""
        self.trusted: bool | None = None
        """Whether its logits are the fused pass's; None until they were compared."""

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights that it has once more, for layers that are one call."""
        return sum(array.nbytes for layer in self._layers for array in layer.weights or ())

    def takes(self, fed: PassInput, cache: RaggedCache) -> bool:
        """Return whether this pass takes what is fed. Called before every pass; after some calls it has itself
        compiled."""
        refused = self.trusted is False or cache.mix is not None or not cache.ragged[0].is_initialized
        if refused or cache.layout.paged or sum(fed.counts) > MOST_TOKENS:
            return False
        self._asked += 1
        if self._asked == WORTH_COMPILING:
            PARTS.start()
        if PARTS.ready is None:
            self.waited = True
            return False
        if self._window and max(map(sum, zip(fed.starts, fed.counts, strict=True))) > self._window:
            return False
        read = sum(n * (start + n) for start, n in zip(fed.starts, fed.counts, strict=True)) * self._layers[0].seen
        return read * torch.get_num_threads() <= MOST_READ

    def __call__(self, tokens: Tensor, cache: RaggedCache, fed: PassInput, last: Tensor | None) -> Tensor:
        """Feed tokens (B, T) and return logits (B, T, V), or (1, N, V) where not all of them are fed, or with ``last``
        (B,) those after one token of each row, (B, 1, V)."""
        parts: Any = PARTS.ready
        (rows, width), top = tokens.shape, self._layers[-1]
        packed = sum(fed.counts) < rows * width
        hidden, part, seen = self._climb(tokens, cache, fed)
        part = top(hidden, part, *seen, cache.ragged[-1])
        places = None if last is None else last.numpy() + np.arange(0, rows * width, width)
        self._note(len(self._layers) + 1, hidden, part, seen, cache)
        if places is not None and len(self._layers) not in cache.features:
            hidden, part, places = hidden[places], part[places], None
        embedding = _floats(*hidden.shape)
        parts.add_and_norm(hidden, part, self._final, self._eps, embedding.numpy())
        cache.note(len(self._layers), embedding, _slots(seen))
        if places is not None:
            embedding = embedding[torch.from_numpy(places)]
        cache.embedding = embedding.view(1 if packed else rows, -1, hidden.shape[1])
        logits: Tensor = self._head(cache.embedding)
        return logits

    def fill(self, tokens: Tensor, cache: RaggedCache, fed: PassInput) -> None:
        """Fill the cache without logits: of the last layer keys and values are made, and nothing else, unless its
        output is kept, too."""
        hidden, part, seen = self._climb(tokens, cache, fed)
        if not {len(self._layers), len(self._layers) + 1} & cache.features.keys():
            self._layers[-1].look_back(hidden, part, *seen, cache.ragged[-1])
            return
        parts: Any = PARTS.ready
        part, embedding = self._layers[-1](hidden, part, *seen, cache.ragged[-1]), _floats(*hidden.shape)
        self._note(len(self._layers) + 1, hidden, part, seen, cache)
        parts.add_and_norm(hidden, part, self._final, self._eps, embedding.numpy())
        cache.note(len(self._layers), embedding, _slots(seen))

    def _climb(self, tokens: Tensor, cache: RaggedCache, fed: PassInput) -> tuple[Array, Array, tuple[Any, Any]]:
        """Run all layers but the last. Returns what that one is given: its residual stream (N, D), what this grows by
        first (N, D), and where each token looks and stands."""
        line = tokens.numpy().reshape(-1)
        if sum(fed.counts) < len(line):
            line = line[(np.arange(tokens.shape[1]) < np.array(fed.counts)[:, None]).reshape(-1)]
        cos, sin = self._rotary(cache.length)
        hidden, seen = self._embedding[line], (fed.sight(cache.stride), (cos.numpy(), sin.numpy()))
        part = np.zeros_like(hidden)
        for number, (layer, kept) in enumerate(zip(self._layers[:-1], cache.ragged, strict=False)):
            self._note(number, hidden, part, seen, cache)
            part = layer(hidden, part, *seen, kept)
        self._note(len(self._layers) - 1, hidden, part, seen, cache)
        return hidden, part, seen

    def _note(self, number: int, hidden: Array, part: Array, seen: tuple[Any, Any], cache: RaggedCache) -> None:
        """Let the cache keep a hidden state, where that is wanted."""
        if number in cache.features:
            cache.note(number, torch.from_numpy(hidden + part), _slots(seen))

    def prepare(self) -> bool:
        """Do nothing: it is compiled in the background."""
        return False

    def draft(self, *_: object) -> None:
        """Draft nothing: a pass costs little to begin here."""

    def adopt(self, other: object) -> bool:
        """Refuse: weights are packed, and exchanged by reference."""
        return False

    def compare(self, said: RaggedLogits, expected: RaggedLogits, counts: Sequence[int]) -> bool:
        """Trust it from now on, or never, by two logits of the same pass, of which the first ``counts[i]`` of a row
        mean anything. Returns which."""
        pairs = [(said.first(i, n), expected.first(i, n)) for i, n in enumerate(counts)]
        off = max(float((ours - theirs).abs().max()) for ours, theirs in pairs)
        largest = max(1.0, max(float(theirs.abs().max()) for _, theirs in pairs))
        self.trusted = off <= TOLERANCE * largest
        if not self.trusted:
            log.warning("a compiled pass is not used: its logits are off by %.2g", off, extra={"action": "few_refused"})
        return self.trusted


class _CompiledLayer:
    """A decoder layer in two forms: PyTorch's products with what stands between them compiled, and all in one call."""

    def __init__(self, fused: Any, layer: Any) -> None:
        self.qkv, self.out, self.gate_up, self.down = fused.qkv, fused.out, fused.gate_up, fused.down
        self.before, self.after, self.eps = array_of(fused.before), array_of(fused.after), np.float32(fused.eps)
        self.norms = tuple(array_of(norm) for norm in (fused.query_norm, fused.key_norm))
        self.scale = np.float32(fused.scale)
        self.seen: int = fused.queries * fused.width
        """Numbers that a token's heads see."""
        self.inner: int = fused.inner
        """Width of the feed-forward half."""
        self.work = len(self.before) * (fused.width * (fused.queries + 2 * fused.keys) + self.seen + 3 * self.inner)
        """Multiplications a token."""
        in_eights = not any(size % 8 for size in (len(self.before), self.seen, self.inner))
        self.weights = _weights(layer) if in_eights and self.work <= MOST_ALONE else None
        """What the one call takes; None where it is never made."""

    def __call__(self, hidden: Array, part: Array, sight: Any, rotary: Any, kept: RaggedLayer) -> Array:
        """Let ``hidden`` (N, D) grow by ``part`` (N, D); returns what it is to grow by next, (N, D)."""
        parts: Any = PARTS.ready
        if self.weights and len(hidden) * self.work <= MOST_ALONE:
            attention = self._attention(sight, rotary, kept)
            parts.run_layer(hidden, part, self.weights, self.before, self.after, *attention)
            return part
        part = self.out(self.look_back(hidden, part, sight, rotary, kept)).numpy()
        normed, inner = _floats(*hidden.shape), _floats(len(hidden), self.inner)
        parts.add_and_norm(hidden, part, self.after, self.eps, normed.numpy())
        parts.gate(self.gate_up(normed).numpy(), inner.numpy())
        down: Array = self.down(inner).numpy()
        return down

    def look_back(self, hidden: Array, part: Array, sight: Any, rotary: Any, kept: RaggedLayer) -> Tensor:
        """Run the layer up to what the queries see, (N, H · W)."""
        parts: Any = PARTS.ready
        normed, seen = _floats(*hidden.shape), _floats(len(hidden), self.seen)
        parts.add_and_norm(hidden, part, self.before, self.eps, normed.numpy())
        parts.look_back(self.qkv(normed).numpy(), *self._attention(sight, rotary, kept), seen.numpy())
        return seen

    def _attention(self, sight: Any, rotary: Any, kept: RaggedLayer) -> tuple[Any, ...]:
        keys, values = kept.kept
        return sight, rotary, self.norms, self.eps, self.scale, keys.numpy(), values.numpy()


def _slots(seen: tuple[Any, Any]) -> Tensor:
    """Return the slots where a pass's tokens stand, (n,)."""
    return torch.from_numpy(seen[0][0])


def _floats(*shape: int) -> Tensor:
    """Return room for float32 as the kernels fill it, whatever torch's default: loading a model beside changes it."""
    return torch.empty(shape, dtype=torch.float32)


def _weights(layer: Any) -> tuple[Array, ...]:
    """Return a module's layer as :func:`osd.kernels.llama.run_layer` takes it."""
    attention, mlp = layer.self_attn, layer.mlp
    mixing = attention.q_proj, attention.k_proj, attention.v_proj
    return (
        _across(*mixing), np.concatenate([array_of(each.bias) for each in mixing]),
        _across(attention.o_proj), array_of(attention.o_proj.bias),
        _across(mlp.gate_proj, mlp.up_proj), _across(mlp.down_proj),
    )  # fmt: skip


def _across(*products: Any) -> Array:
    """Return the weights of products of the same inputs, (inputs, outputs of them all)."""
    return np.ascontiguousarray(np.concatenate([array_of(each.weight) for each in products]).T)


def array_of(weight: Tensor | None) -> Array:
    """Return a weight's numbers in float32, contiguous, on the host; empty for None. No copy where they are that
    already."""
    return np.empty(0, np.float32) if weight is None else weight.detach().float().cpu().contiguous().numpy()
