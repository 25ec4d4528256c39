"""Reads a Hugging Face module's hidden states while it runs.

Hidden state i is the input of layer i, and the number of layers is what the output layer reads: as transformers numbers
them, for the models whose last one is after the final norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from storage.errors import PairError


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


@contextmanager
def hidden_states_noted(
    module: PreTrainedModel, layers: Sequence[int], note: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Give ``note`` each of the hidden states (B, T, H) with these numbers, in passes during the block."""
    stack = layer_stack(module)
    output: Any = module.get_output_embeddings()  # type: ignore[no-untyped-call]

    def keep(number: int, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        note(number, args[0] if args else kwargs["hidden_states"])

    with ExitStack() as hooks:
        for number in layers:
            part = output if number == len(stack) else stack[number]
            handle = part.register_forward_pre_hook(partial(keep, number), with_kwargs=True)
            hooks.callback(handle.remove)
        yield
