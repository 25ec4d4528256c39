"""A Hugging Face model's own forward pass, for those that the fused one does not know.

The module itself says what each of its layers may see: it asks transformers for a mask of full, sliding or chunked
attention by a function of two positions. During our passes that function is asked about the positions of a ragged
batch, so that no window has to be known here by its name.

It also reads the module's hidden states while it runs. Hidden state i is the input of layer i, and the number of layers
is what the output layer reads: as transformers numbers them, for the models whose last one is after the final norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, eager_mask, sdpa_mask

from osd.models.attention_metadata import AttentionMetadata
from osd.models.captured_pass import CapturedPass
from osd.models.forward import CompiledForward, Encode
from osd.models.kv_cache import RaggedCache
from osd.models.lora.bank import AdapterBatch
from storage.errors import PairError

_FEED: ContextVar[AttentionMetadata | None] = ContextVar("feed", default=None)
"""Where the pass that is running reads and writes; None outside of ours."""
WINDOWS: ContextVar[set[int | None]] = ContextVar("windows")
"""The windows that plain passes asked for; None for a layer that sees all. Unset where nobody wants to know."""
MaskFunction = Callable[[Any, Any, Any, Any], Any]
"""transformers' own: row, head, the query's position and the key's → whether that one is seen."""


def _mask(plain: Callable[..., Any], mask_function: MaskFunction = causal_mask_function, **kwargs: Any) -> Any:
    """Return the mask of a layer: in our passes that of the ragged batch, otherwise transformers' own."""
    feed = _FEED.get()
    if feed is None:
        if (asked := WINDOWS.get(None)) is not None:
            asked.add(kwargs.get("local_size"))
        return plain(mask_function=mask_function, **kwargs)
    if mask_function is causal_mask_function:
        return feed.mask
    rows = torch.arange(len(feed.queries), device=feed.queries.device).view(-1, 1, 1)
    return feed.narrow(lambda query, key: mask_function(rows, 0, query, key))


AttentionMaskInterface.register("sdpa", partial(_mask, sdpa_mask))
AttentionMaskInterface.register("eager", partial(_mask, eager_mask))


class HuggingFaceForward:
    """The model's own forward pass over a ragged cache; see :class:`osd.models.forward.ForwardPass`."""

    packs, alone, captures = False, False, True
    encode: Encode | None = None

    def __init__(self, module: PreTrainedModel) -> None:
        self._module = module
        weights = list(module.parameters())
        captured = self.captures and len({each.device for each in weights}) == 1 and weights[0].is_cuda
        self.compiled: CompiledForward | None = CapturedPass(self, weights) if captured else None
        """The same, captured."""

    def __call__(self, tokens: torch.Tensor, cache: RaggedCache, last: torch.Tensor | None) -> torch.Tensor:
        """Compute the logits; see :class:`osd.models.forward.ForwardPass`."""
        with ExitStack() as hooks:
            if cache.features:
                hooks.enter_context(hidden_states_noted(self._module, tuple(cache.features), cache.note))
            if cache.wants_embedding:
                hooks.enter_context(_embedding_kept(self._module, cache))
            if cache.mix is not None:
                hooks.enter_context(adapted(self._module, cache.mix))
            hooks.callback(_FEED.reset, _FEED.set(cache.feed))
            logits = self._compute(tokens, cache)
        if last is None:
            return logits
        if cache.wants_embedding and cache.embedding is not None:
            cache.embedding = _pick(cache.embedding, last)
        return _pick(logits, last)

    def _compute(self, tokens: torch.Tensor, cache: RaggedCache) -> torch.Tensor:
        """Run the module over tokens (B, T) and return its logits (B, T, V)."""
        feed: AttentionMetadata = cache.feed
        logits: torch.Tensor = self._module(
            input_ids=tokens, position_ids=feed.positions, past_key_values=cache, use_cache=True
        ).logits
        return logits

    def fill(self, tokens: torch.Tensor, cache: RaggedCache) -> None:
        """Fill the cache: the module computes its logits in any case, those of one token a row."""
        self(tokens, cache, torch.zeros(len(tokens), dtype=torch.long, device=tokens.device))


class RowForward(HuggingFaceForward):
    """The same, a row at a time: for models whose attention goes by the length of what it reads."""

    alone, captures = True, False


def _pick(columns: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Select each row's column ``last``: (B, T, …) and (B,) → (B, 1, …)."""
    return columns.gather(1, last.view(-1, 1, 1).expand(-1, 1, columns.shape[-1]))


@contextmanager
def _embedding_kept(module: PreTrainedModel, cache: RaggedCache) -> Iterator[None]:
    """Store the output layer's input in the cache during the block."""
    head: Any = module.get_output_embeddings()  # type: ignore[no-untyped-call]

    def keep(_: object, args: tuple[torch.Tensor, ...]) -> None:
        cache.embedding = args[0]

    with head.register_forward_pre_hook(keep):
        yield


@contextmanager
def adapted(module: PreTrainedModel, mix: AdapterBatch) -> Iterator[None]:
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

    with ExitStack() as hooks:
        for site in mix.sites:
            hooks.enter_context(module.get_submodule(site).register_forward_hook(hook(site)))
        yield


class NoLayerStack(PairError):
    """No stack of {count} layers was found in {model}, whose hidden states a draft could read. Choose a draft of
    another kind for this target: `osd drafts new NAME --kind small`."""


def layer_stack(module: PreTrainedModel) -> nn.ModuleList:
    """Return a model's decoder layers. Raises NoLayerStack."""
    count = module.config.get_text_config().num_hidden_layers
    text: Any = module.get_decoder()  # type: ignore[no-untyped-call]
    stacks = [part for part in text.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    if not stacks:
        raise NoLayerStack(count=count, model=type(module).__name__)
    return max(stacks, key=lambda stack: sum(weight.numel() for weight in stack.parameters()))


def drop_layers(module: PreTrainedModel) -> None:
    """Let a model's decoder layers go; embeddings, final norm and output layer stay. Raises NoLayerStack."""
    stack = layer_stack(module)
    for number in range(len(stack)):
        stack[number] = nn.Identity()


@contextmanager
def hidden_states_noted(
    module: PreTrainedModel, layers: Sequence[int], note: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Give ``note`` each of the hidden states (B, T, H) with these numbers, in passes during the block: i is the input
    of layer i, the number of layers what the output layer reads, one more the last layer's output."""
    stack = layer_stack(module)
    output: Any = module.get_output_embeddings()  # type: ignore[no-untyped-call]

    def keep(number: int, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        note(number, args[0] if args else kwargs["hidden_states"])

    def keep_output(_: object, __: object, made: Any) -> None:
        note(len(stack) + 1, made[0] if isinstance(made, tuple) else made)

    with ExitStack() as hooks:
        for number in layers:
            if number > len(stack):
                hooks.enter_context(stack[-1].register_forward_hook(keep_output))
                continue
            part = output if number == len(stack) else stack[number]
            hooks.enter_context(part.register_forward_pre_hook(partial(keep, number), with_kwargs=True))
        yield
