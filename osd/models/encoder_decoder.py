"""Encoder-decoder models (T5, BART): the module's own passes, over one ragged cache for both kinds of attention.

A row's text is what its encoder reads, then the decoder's start token, then the output. The row's first positions in
the cache, those of the encoder's text, hold the keys and values of cross-attention, made once by the encoder's pass;
from there on stand those of self-attention. Masks keep the two apart, so that a row grows, moves and is rolled back as
any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from osd.models.hf_forward import HuggingFaceForward, adapted
from osd.models.kv_cache import RaggedCache
from osd.models.kv_cache_layers import RaggedLayer
from osd.models.limits import named
from storage.errors import DecoderOnly, ModelNotLoaded

STACKS = ("decoder_layers", "num_decoder_layers")
"""Names of the number of a decoder's layers beside the usual one, which is the encoder's."""


def has_encoder(model: Any) -> bool:
    """Return whether a module, or what stands for one, is an encoder-decoder model."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def require_decoder_only(module: Any, what: str, name: str) -> None:
    """Raise DecoderOnly for an encoder-decoder model."""
    if has_encoder(module):
        raise DecoderOnly(what=what, model=name)


def layers_of(config: PreTrainedConfig) -> int:
    """Return the number of layers that keep keys and values: those of the decoder."""
    text: Any = config.get_text_config()
    names = (*STACKS, "num_hidden_layers") if config.is_encoder_decoder else ("num_hidden_layers",)
    return next(int(count) for name in names if (count := named(text, name)))


def start_of(module: PreTrainedModel, name: str) -> tuple[int, ...]:
    """Return the token that a decoder's text begins with, as ``generate`` finds it; none without an encoder. Raises
    ModelNotLoaded where no single one is named."""
    if not has_encoder(module):
        return ()
    places = (getattr(module, "generation_config", None), module.config)
    found = [getattr(place, "decoder_start_token_id", None) for place in places]
    start = next((token for token in found if token is not None), getattr(places[0], "bos_token_id", None))
    if not isinstance(start, int):
        raise ModelNotLoaded(path=name, reason="Its configuration names no single decoder_start_token_id.")
    return (start,)


def decoder_inputs(module: Any, tokens: Tensor, encoded: int) -> dict[str, Tensor]:
    """Return the arguments of a plain pass over texts (B, T): all of them to a decoder, or the first ``encoded`` tokens
    to an encoder and the rest to its decoder."""
    if not has_encoder(module):
        return {"input_ids": tokens}
    return {"input_ids": tokens[:, :encoded], "decoder_input_ids": tokens[:, encoded:]}


class CrossLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers' own base is untyped
    """Cross-attention's keys and values of one layer, which stand in the rows of the ragged cache."""

    def __init__(self, layer: RaggedLayer, rows: int = 0) -> None:
        """View those of the pass's rows; without ``rows`` take new ones in."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.layer, self.span = layer, layer.cache.feed.span if rows else 0
        if rows:
            self.keys, self.values = layer.window(slice(0, rows), self.span)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate nothing: the ragged layer does."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write what the decoder made of one encoder pass, (1, heads, T, head_dim), into the ragged layer."""
        self.layer.write(*(new[0].transpose(0, 1) for new in (key_states, value_states)))
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.span, 0

    def get_seq_length(self) -> int:
        return self.span

    def get_max_length(self) -> int:
        return self.layer.cache.length

    get_max_cache_shape = get_max_length  # its name in the first versions of transformers 5


class EncoderDecoderForward(HuggingFaceForward):
    """The decoder's own pass over a ragged cache, and the encoder's; see :class:`osd.models.forward.ForwardPass`."""

    captures = False

    def __init__(self, module: PreTrainedModel) -> None:
        super().__init__(module)
        decoder: Any = module.get_decoder()  # type: ignore[no-untyped-call]
        parts = dict(decoder.named_modules())
        self._biased = [part for part in parts.values() if getattr(part, "has_relative_attention_bias", False)]
        self._placed = [part for name, part in parts.items() if name == "embed_positions"]

    def __call__(self, tokens: Tensor, cache: RaggedCache, last: Tensor | None) -> Tensor:
        """Compute the logits; see :class:`osd.models.forward.ForwardPass`. A cache that no encoder has written to yet,
        as where passes are timed, gets its memory first."""
        if not cache.kept:
            feed = cache.feed
            cache.aim(feed.first, [0], 1, [1])
            self.encode(tokens[:1, :1], cache)
            cache.feed = feed
        return super().__call__(tokens, cache, last)

    def encode(self, tokens: Tensor, cache: RaggedCache) -> None:
        """Let the encoder read tokens (1, T) and fill the aimed cache with the decoder's keys and values of them; see
        :data:`osd.models.forward.Encode`. The module computes them on a decoder's first token, whatever that is."""
        crosses = Cache(layers=[CrossLayer(layer) for layer in cache.ragged])
        with ExitStack() as hooks:
            if cache.mix is not None:
                hooks.enter_context(adapted(self._module, cache.mix))
            self._module(
                input_ids=tokens, decoder_input_ids=tokens[:, :1], use_cache=True,
                past_key_values=EncoderDecoderCache(DynamicCache(), crosses),
            )  # fmt: skip

    def _compute(self, tokens: Tensor, cache: RaggedCache) -> Tensor:
        feed, rows = cache.feed, len(tokens)
        encoded = torch.tensor(cache.encoded[feed.first : feed.first + rows], device=tokens.device).view(-1, 1)
        behind = (torch.arange(feed.span, device=tokens.device) >= encoded).view(rows, 1, 1, -1)
        hidden = torch.finfo(feed.mask.dtype).min
        crosses = Cache(layers=[CrossLayer(layer, rows) for layer in cache.ragged])
        unread = feed.mask.new_zeros(rows, 1, 1)  # in place of the encoder's states, whose keys are in the cache
        places = (feed.queries - encoded).clamp(0, cache.limit - 1)
        with _placed(self._placed, places), _biased(self._biased, feed.queries, feed.span):
            logits: Tensor = self._module(
                encoder_outputs=BaseModelOutput(last_hidden_state=unread), decoder_input_ids=tokens, use_cache=True,
                attention_mask=torch.zeros_like(feed.mask).masked_fill(behind, hidden),
                decoder_attention_mask=feed.mask.masked_fill(~behind, hidden),
                past_key_values=EncoderDecoderCache(cache, crosses),
            ).logits  # fmt: skip
        return logits


def own_forward(module: PreTrainedModel) -> HuggingFaceForward:
    """Return a module's own passes over a ragged cache, which hold no copy of its weights."""
    return EncoderDecoderForward(module) if has_encoder(module) else HuggingFaceForward(module)


@contextmanager
def _placed(parts: list[nn.Module], places: Tensor) -> Iterator[None]:
    """Have embeddings of positions embed ``places`` (B, T) during the block, for BART and the like."""

    def put(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return args, {**kwargs, "position_ids": places.flatten()}

    def shape(_: nn.Module, args: tuple[Any, ...], embedded: Tensor) -> Tensor:
        return embedded.view(*places.shape, -1)

    with ExitStack() as hooks:
        for part in parts:
            hooks.enter_context(part.register_forward_pre_hook(put, with_kwargs=True))
            hooks.enter_context(part.register_forward_hook(shape))
        yield


@contextmanager
def _biased(parts: list[nn.Module], queries: Tensor, span: int) -> Iterator[None]:
    """Give self-attention its relative position bias for queries at ``queries`` (B, T) and keys at 0 … ``span`` − 1
    during the block, for T5 and the like."""
    away = torch.arange(span, device=queries.device) - queries.unsqueeze(2)

    def put(part: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        buckets = part._relative_position_bucket(
            away, bidirectional=False, num_buckets=part.relative_attention_num_buckets,
            max_distance=part.relative_attention_max_distance,
        )  # fmt: skip
        return args, {**kwargs, "position_bias": part.relative_attention_bias(buckets).permute(0, 3, 1, 2)}

    with ExitStack() as hooks:
        for part in parts:
            hooks.enter_context(part.register_forward_pre_hook(put, with_kwargs=True))
        yield
