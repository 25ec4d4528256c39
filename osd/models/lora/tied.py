"""Factors of an adapter that the embeddings and the output layer share, as they share their weights in the base.

    E' = E + s Aᵀ Bᵀ        (V, D), read by the embeddings and, as the output layer's weights, by the logits

PEFT (``ensure_weight_tying``) gives the output layer parameters that view the embeddings' memory, but gradients
and moments of their own. Here each pair is one parameter: the embeddings' leads, and learns from both uses.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel
from torch import nn

Tie = tuple[nn.Parameter, nn.Parameter]
"""A parameter that leads, and one that is always its transpose."""


def ties(model: nn.Module) -> list[Tie]:
    """Return the pairs of an adapter's factors that are one; none for a model without them."""
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
