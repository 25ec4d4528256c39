"""A forward pass with little between the matrix products, for Llama-type models.

At the sizes where drafts live most of a step is spent in Python and in many small operations. This
pass computes what the Hugging Face module computes (RMSNorm, rotary positions, grouped-query attention,
SwiGLU; query/key norms and biases where the model has them) with one product for q, k and v, one for
gate and up, rotary tables computed once, and weights packed for the CPU where PyTorch can. Elsewhere the fused weights
take the place of the module's, which become views of them. It is used only where its logits agree with the module's
(checked at load).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, count, takewhile
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from osd.models import products
from osd.models.forward import CompiledForward
from osd.models.kv_cache import RaggedCache
from osd.models.llama_forward_captured import captured_llama, compiler
from osd.models.llama_forward_compiled import CompiledPass
from osd.models.lora.adapter import Adapter, LowRank, Site, Sizes
from osd.models.lora.bank import AdapterBatch
from osd.models.products import Packed, Product, ReleasedLinear, stacked
from osd.models.ragged_attention import attend

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
PRODUCTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""A layer's matrix products, and the modules whose work each does."""


def llama_forward(module: PreTrainedModel) -> LlamaForward | None:
    """Return a fused pass over this module's weights, or None where the module's own pass must do."""
    config = module.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if config.model_type not in MODEL_TYPES or rope not in ROPE_TYPES or config.hidden_act != "silu":
        return None
    if getattr(config, "mlp_bias", False) or hasattr(module, "peft_config") or not _plain(module):
        return None
    return LlamaForward(module)


def _plain(module: PreTrainedModel) -> bool:
    """Return whether the weights are numbers of one type on one device, and no quantised ones."""
    kinds = {(weight.device, weight.dtype) for weight in module.parameters()}
    products = (part for name, part in module.named_modules() if name.endswith(("_proj", "lm_head")))
    return len(kinds) == 1 and all(type(part) in (nn.Linear, ReleasedLinear) for part in products)


class LlamaForward:
    """The fused pass: tokens (B, T) and an aimed cache in, logits (B, T, V) or (B, 1, V) out.

    A packed pass computes N of the B · T tokens as one line, and only their logits, (1, N, V); only attention sees
    rows.
    """

    packs, alone, encode = True, False, None

    def __init__(self, module: PreTrainedModel) -> None:
        model: Any = module.model
        self.embedding = model.embed_tokens.weight
        self.layers, self.head = _fused(module)
        self.norm, self.eps = model.norm.weight, model.norm.variance_epsilon
        self.extend_rotary = RotaryTables(model.rotary_emb, self.embedding.new_empty(0))
        self.compiled = _compiled(self, module)
        """The same over few tokens, compiled."""

    def __call__(self, tokens: Tensor, cache: RaggedCache, last: Tensor | None) -> Tensor:
        mix = cache.mix
        hidden, cos, sin = self._climb(tokens, cache)
        top = len(self.layers) - 1
        hidden = hidden + self.layers[top].attend(hidden, top, cache, cos, sin)
        hidden = self._note_last(hidden + self.layers[top].transform(hidden, mix), cache)
        if last is not None:
            hidden = hidden.gather(1, last.view(-1, 1, 1).expand(-1, 1, hidden.shape[2]))
        cache.embedding = F.rms_norm(hidden, (hidden.shape[2],), self.norm, self.eps)
        logits = self.head(cache.embedding)
        if mix is not None:
            logits = mix.add("head", cache.embedding, logits)
        return logits

    @property
    def products(self) -> Iterator[Product]:
        """All its matrix products."""
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)
        yield self.head

    def fill(self, tokens: Tensor, cache: RaggedCache) -> None:
        """Fill the cache only: the last layer writes keys and values, and computes nothing else, unless its output is
        kept, too."""
        hidden, cos, sin = self._climb(tokens, cache)
        top = len(self.layers) - 1
        if not {top + 1, top + 2} & cache.features.keys():
            self.layers[top].remember(hidden, top, cache, cos, sin)
            return
        hidden = hidden + self.layers[top].attend(hidden, top, cache, cos, sin)
        self._note_last(hidden + self.layers[top].transform(hidden, cache.mix), cache)

    def _note_last(self, hidden: Tensor, cache: RaggedCache) -> Tensor:
        """Let the cache keep the last layer's output and what the output layer would read of it, where wanted."""
        cache.note(len(self.layers) + 1, hidden)
        if len(self.layers) in cache.features:
            cache.note(len(self.layers), F.rms_norm(hidden, (hidden.shape[2],), self.norm, self.eps))
        return hidden

    def _climb(self, tokens: Tensor, cache: RaggedCache) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the input of the last layer, (B, T, D) or (1, N, D), and the rotary tables at those positions."""
        packed, positions = cache.feed.packed, cache.feed.positions
        if packed is not None:
            tokens, positions = (each.reshape(1, -1)[:, packed] for each in (tokens, positions))
        cos, sin = (table[positions].unsqueeze(2) for table in self.extend_rotary(cache.length))
        mix, hidden = cache.mix, F.embedding(tokens, self.embedding)
        if mix is not None:
            hidden = mix.embed("embed", tokens, hidden)
        for index, layer in enumerate(self.layers[:-1]):
            cache.note(index, hidden)
            hidden = hidden + layer.attend(hidden, index, cache, cos, sin)
            hidden = hidden + layer.transform(hidden, mix)
        cache.note(len(self.layers) - 1, hidden)
        return hidden, cos, sin


class RotaryTables:
    """A model's rotary tables, as long as they were asked for. They are apart from the pass, and refer to nothing of
    it: on a CPU weights that a swap replaces are freed at once."""

    def __init__(self, rotary: Any, like: Tensor) -> None:
        """``like``: any numbers of the model's type, on its device."""
        self._rotary, self._like = rotary, like
        self._cos = self._sin = like.new_empty(0)

    def __call__(self, length: int) -> tuple[Tensor, Tensor]:
        """Return tables (length or more, head_dim), cosine and sine; the sine's first half is negated, so that a roll
        does the rotation."""
        if len(self._cos) < length:
            positions = torch.arange(length, device=self._like.device).unsqueeze(0)
            self._cos, self._sin = rotary_tables(self._rotary, self._like, positions)
        return self._cos, self._sin


def rotary_tables(rotary: Any, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine at positions (1, T) by a module's rotary positions, (T, head_dim) each, as
    :class:`RotaryTables` returns them."""
    cos, sin = rotary(like, positions)
    sin = sin.clone()
    sin[..., : sin.shape[-1] // 2].neg_()
    return cos[0].contiguous(), sin[0]


class FusedLayer:
    """One decoder layer's weights, fused."""

    def __init__(self, layer: Any, index: int) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.sites = [f"{index}.{site}" for site in PRODUCTS]
        self.inner: int = mlp.down_proj.in_features
        self.width: int = attention.head_dim
        self.queries, self.keys = (each.out_features // self.width for each in (attention.q_proj, attention.k_proj))
        self.qkv = _product(attention, "q_proj", "k_proj", "v_proj")
        self.out = _product(attention, "o_proj")
        self.gate_up = _product(mlp, "gate_proj", "up_proj")
        self.down = _product(mlp, "down_proj")
        self.scale: float = attention.scaling
        config = attention.config
        windowed = config.sliding_window if config.model_type == "mistral" else None  # the others say it layer by layer
        self.window: int | None = getattr(attention, "sliding_window", windowed)
        """Positions that it sees, the query's own included; None for all."""
        self.before = getattr(layer.input_layernorm, "weight", None)  # an EAGLE draft's layer has none
        self.after: Tensor = layer.post_attention_layernorm.weight
        self.eps: float = layer.post_attention_layernorm.variance_epsilon
        self.query_norm, self.key_norm = (
            getattr(getattr(attention, name, None), "weight", None) for name in ("q_norm", "k_norm")
        )

    def attend(self, hidden: Tensor, index: int, cache: RaggedCache, cos: Tensor, sin: Tensor) -> Tensor:
        """Compute attention over the pass's rows: (B, T, D) → (B, T, D), or (1, N, D) → (1, N, D) in a packed pass."""
        mix, seen = cache.mix, self.look(self.remember(hidden, index, cache, cos, sin), index, cache)
        return self.out(seen) if mix is None else mix.add(self.sites[1], seen, self.out(seen))

    def look(self, query: Tensor, index: int, cache: RaggedCache) -> Tensor:
        """Compute what queries (B, T, heads, head_dim), or (1, N, …), see: (B, T, heads · head_dim)."""
        lines = query.flatten(0, 1)
        parts = [
            attend(lines[group.tokens], *cache.ragged[index].window(group.rows, group.span), group, self.scale)
            for group in cache.feed.within(self.window)
        ]  # fmt: skip
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(*query.shape[:2], -1)

    def remember(self, hidden: Tensor, index: int, cache: RaggedCache, cos: Tensor, sin: Tensor) -> Tensor:
        """Write the tokens' keys and values; return the queries (B, T or 1, N, heads, head_dim)."""
        normed = F.rms_norm(hidden, (hidden.shape[2],), self.before, self.eps)
        return self.project(normed, index, cache, cos, sin)

    def project(self, normed: Tensor, index: int, cache: RaggedCache, cos: Tensor, sin: Tensor) -> Tensor:
        """Write keys and values, from what attention reads; return the queries, as :meth:`remember`."""
        (lines, count, _), mix = normed.shape, cache.mix
        mixed = self.qkv(normed)
        if mix is not None:
            mixed = mix.add(self.sites[0], normed, mixed)
        mixed = mixed.view(lines, count, -1, self.width)
        turned = self._normalise(mixed[:, :, : self.queries + self.keys])
        turned = turned * cos + turned.roll(self.width // 2, -1) * sin
        query, key = turned[:, :, : self.queries], turned[:, :, self.queries :]
        value = mixed[:, :, self.queries + self.keys :]
        cache.ragged[index].write(key.flatten(0, 1), value.flatten(0, 1))
        return query

    def _normalise(self, heads: Tensor) -> Tensor:
        if self.query_norm is None or self.key_norm is None:
            return heads
        query, key = heads[:, :, : self.queries], heads[:, :, self.queries :]
        parts = ((query, self.query_norm), (key, self.key_norm))
        return torch.cat([F.rms_norm(part, (self.width,), norm, self.eps) for part, norm in parts], dim=2)

    def transform(self, hidden: Tensor, mix: AdapterBatch | None = None) -> Tensor:
        """Compute the feed-forward half: (B, T, D) → (B, T, D)."""
        normed = F.rms_norm(hidden, (hidden.shape[2],), self.after, self.eps)
        both = self.gate_up(normed)
        if mix is not None:
            both = mix.add(self.sites[2], normed, both)
        gate, up = both.chunk(2, dim=-1)
        inner = F.silu(gate) * up
        return self.down(inner) if mix is None else mix.add(self.sites[3], inner, self.down(inner))


def _product(owner: Any, *names: str) -> Product:
    """Return one product for some of a module's."""
    product = stacked([getattr(owner, name) for name in names])
    products.release(product, owner, names)
    return product


def lay_out(parts: Mapping[str, LowRank], sizes: Sizes) -> Adapter:
    """Arrange an adapter of the module by this pass's products, with the parts of fused modules side by side."""
    groups = {"embed": ["model.embed_tokens"], "head": ["lm_head"]}
    for index in takewhile(lambda i: f"model.layers.{i}.self_attn.q_proj" in sizes, count()):
        for site, names in PRODUCTS.items():
            groups[f"{index}.{site}"] = [f"model.layers.{index}.{name}" for name in names]
    found = {site: _beside(names, parts, sizes) for site, names in groups.items()}
    return Adapter({site: Site.of(beside, is_table=site == "embed") for site, beside in found.items() if beside})


def _beside(names: list[str], parts: Mapping[str, LowRank], sizes: Sizes) -> list[tuple[int, LowRank]]:
    """Return the parts of those modules that have one, with the columns where the modules' outputs begin."""
    begins = accumulate((sizes[name][1] for name in names[:-1]), initial=0)
    return [(begin, parts[name]) for begin, name in zip(begins, names, strict=True) if name in parts]


def _compiled(fused: LlamaForward, module: PreTrainedModel) -> CompiledForward | None:
    """Return the pass over few tokens for these weights; None where there is none."""
    weight, model = fused.embedding, cast(Any, module)
    if weight.device.type == "cuda":
        return captured_llama(fused, fused.extend_rotary, list(module.parameters()), compile_with=compiler())
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        return CompiledPass(fused, fused.extend_rotary, model.model.layers)
    return None


Fused = tuple[Sequence[FusedLayer], Product]
"""A model's layers, and its output layer."""
_FUSED: WeakKeyDictionary[PreTrainedModel, tuple[object, Fused]] = WeakKeyDictionary()
"""What was made of each module, and of which weights: all that decode with it share it."""


def _fused(module: PreTrainedModel) -> Fused:
    """Return a module's fused weights, made once for all passes over it as long as its weights are the same."""
    model: Any = module
    found = _FUSED.get(module)
    if found is None or found[0] != _state(module, found[1]):
        with torch.inference_mode(False), torch.no_grad():  # the module's weights stay what they are
            layers = [FusedLayer(layer, index) for index, layer in enumerate(model.model.layers)]
            made: Fused = layers, products.product_of(model.lm_head.weight, model.lm_head.bias)
            if products.RELEASE.get() == "all" and model.lm_head.weight is not model.model.embed_tokens.weight:
                products.release(made[1], model, ["lm_head"])
        _FUSED[module] = found = _state(module, made), made
    return found[1]


def fused_head(module: PreTrainedModel) -> Product | None:
    """Return the product of a module's output layer that its fused passes use; None where it has none."""
    found = _FUSED.get(module)
    return None if found is None else found[1][1]


def _state(module: PreTrainedModel, fused: Fused) -> object:
    """Return where the weights are, and where a copy of them is packed, how often they were changed in place."""
    packed = isinstance(fused[1], Packed)
    return [(each.data_ptr(), _changes(each) if packed else 0) for each in module.parameters()]


def _changes(weight: Tensor) -> int:
    try:
        return weight._version
    except RuntimeError:  # made in inference mode, where this is not counted
        return -1
