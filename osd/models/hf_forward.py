"""A Hugging Face model's own forward pass, for those that the fused one does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from osd.models.attention_metadata import AttentionMetadata
from osd.models.kv_cache import RaggedCache
from osd.models.lora.bank import AdapterBatch


class HuggingFaceForward:
    """The model's own forward pass over a ragged cache; see :class:`osd.models.forward.ForwardPass`."""

    packs, compiled = False, None

    def __init__(self, module: PreTrainedModel) -> None:
        self._module = module

    def __call__(self, tokens: torch.Tensor, cache: RaggedCache, last: torch.Tensor | None) -> torch.Tensor:
        """Compute the logits; see :class:`osd.models.forward.ForwardPass`."""
        feed: AttentionMetadata = cache.feed
        with ExitStack() as hooks:
            if cache.wants_embedding:
                hooks.enter_context(_embedding_kept(self._module, cache))
            if cache.mix is not None:
                hooks.enter_context(_adapted(self._module, cache.mix))
            logits: torch.Tensor = self._module(
                input_ids=tokens,
                attention_mask=feed.mask,
                position_ids=feed.positions,
                past_key_values=cache,
                use_cache=True,
            ).logits
        if last is None:
            return logits
        if cache.wants_embedding and cache.embedding is not None:
            cache.embedding = _pick(cache.embedding, last)
        return _pick(logits, last)

    def fill(self, tokens: torch.Tensor, cache: RaggedCache) -> None:
        """Fill the cache: the module computes its logits in any case, those of one token a row."""
        self(tokens, cache, torch.zeros(len(tokens), dtype=torch.long, device=tokens.device))


def _pick(columns: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Select each row's column ``last``: (B, T, …) and (B,) → (B, 1, …)."""
    return columns.gather(1, last.view(-1, 1, 1).expand(-1, 1, columns.shape[-1]))


@contextmanager
def _embedding_kept(module: PreTrainedModel, cache: RaggedCache) -> Iterator[None]:
    """Store the output layer's input in the cache during the block."""
    head: Any = module.get_output_embeddings()  # type: ignore[no-untyped-call]

    def keep(_: object, args: tuple[torch.Tensor, ...]) -> None:
        cache.embedding = args[0]

    handle = head.register_forward_pre_hook(keep)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _adapted(module: PreTrainedModel, mix: AdapterBatch) -> Iterator[None]:
    """Add the adapters' output to that of the adapted modules during the block."""

    def hook(site: str) -> Callable[[torch.nn.Module, tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor]:
        def add(part: torch.nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            if isinstance(part, torch.nn.Embedding):
                scale: torch.Tensor | None = getattr(part, "embed_scale", None)
                if scale is None:
                    return mix.embed(site, args[0], output)
                return output + scale * mix.embed(site, args[0], torch.zeros_like(output))  # as Gemma scales its own
            return mix.add(site, args[0], output)

        return add

    handles = [module.get_submodule(site).register_forward_hook(hook(site)) for site in mix.sites]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
