"""Merges an adapter into its base's weights, with PEFT.

Where the base's embeddings and output layer share their weights, an adapter's factors are shared, too:

    E' = E + s Aᵀ Bᵀ        (V, D), read by the embeddings and, as the output layer's weights, by the logits

PEFT (``ensure_weight_tying``) gives the output layer parameters that view the embeddings' memory, but gradients
and moments of their own. Here each pair is one parameter: the embeddings' leads, and learns from both uses."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from osd.models.lora.adapter import WEIGHTS
from osd.models.weights import LOAD_LOCK

if TYPE_CHECKING:
    from peft import PeftModel


def merged(base: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge a PEFT folder's adapter into the base's own weights. Tied weights stay so if its factors are tied, or if
    it leaves them alone."""
    from peft import PeftConfig, PeftModel  # half a second, which a server without adapters does not spend

    if not PeftConfig.from_pretrained(str(folder)).ensure_weight_tying and _adapts_words(base, folder):
        untie(base)
    with LOAD_LOCK, quiet_peft():
        model = PeftModel.from_pretrained(base, str(folder))
        untwine(model)
        return cast(PreTrainedModel, model.merge_and_unload())


def adapted(base: PreTrainedModel, folder: Path) -> PeftModel:
    """Return a PEFT folder's adapter over its base, ready to be trained."""
    from peft import PeftModel

    with LOAD_LOCK, quiet_peft():
        return PeftModel.from_pretrained(base, str(folder), is_trainable=True)


def _adapts_words(base: Any, folder: Path) -> bool:
    """Return whether an adapter has weights of the embeddings or of the output layer."""
    words = base.get_input_embeddings(), base.get_output_embeddings()
    names = [name for name, part in base.named_modules() if any(part is one for one in words)]
    with safe_open(folder / WEIGHTS, "pt") as file:
        return any(f".{name}." in key for key in file.keys() for name in names)  # noqa: SIM118  (it is no dictionary)


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Silence warnings of PEFT that a worker would repeat at every turn: merging an adapter of tied weights, which
    :func:`merged` handles, the layers of GPT-2, which it recognises, and a deprecated name of transformers. Raises
    ValueError where PEFT only warns that the files lack weights of the adapter."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings.*", category=UserWarning)
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
        try:
            yield
        except UserWarning as warning:
            raise ValueError(str(warning)) from None


def untie(module: Any) -> None:
    """Give the output layer weights of its own, where it shares the input's. Else what an adapter adds to one would
    be added to the other as well."""
    head, embedding = module.get_output_embeddings(), module.get_input_embeddings()
    if head.weight is embedding.weight:
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
        module.config.update({"tie_word_embeddings": False})


Tie = tuple[nn.Parameter, nn.Parameter]
"""A parameter that leads, and one that is always its transpose."""


def ties(model: nn.Module) -> list[Tie]:
    """Return the pairs of an adapter's factors that are one; none for a model without them."""
    from peft import PeftModel

    whole: Any = model
    if not isinstance(model, PeftModel) or not whole.peft_config[model.active_adapter].ensure_weight_tying:
        return []
    name = model.active_adapter
    table, head = whole.get_input_embeddings(), whole.get_output_embeddings()
    return [
        (table.lora_embedding_A[name], head.lora_B[name].weight),
        (table.lora_embedding_B[name], head.lora_A[name].weight),
    ]


def tie(model: nn.Module) -> None:
    """Make the followers views of the leaders' memory, also after the model was moved to a device."""
    for leader, follower in ties(model):
        follower.data = leader.data.t()


def untwine(model: nn.Module) -> None:
    """Zero the followers before merging: the embeddings alone bring what both gain, for their weights are one."""
    for _, follower in ties(model):
        follower.data = torch.zeros_like(follower)


def gather(pairs: list[Tie]) -> None:
    """Add the followers' gradients to the leaders' after a backward pass."""
    for leader, follower in pairs:
        if follower.grad is not None:
            leader.grad = follower.grad.t() if leader.grad is None else leader.grad.add_(follower.grad.t())
            follower.grad = None
