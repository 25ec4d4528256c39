"""An adapter put into its base's weights, with PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel


def merged(base: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The base's own weights changed by a PEFT folder's adapter."""
    untie(base)
    return merge(PeftModel.from_pretrained(base, str(folder)))


def merge(adapted: Any) -> PreTrainedModel:
    """The model within, its weights changed. One whose embeddings are tied must be untied first, or what an adapter
    adds to the output layer would be added to the input as well."""
    return cast(PreTrainedModel, adapted.merge_and_unload())


def untie(module: Any) -> None:
    """Give the output layer weights of its own, where it shares the input's."""
    head, embedding = module.get_output_embeddings(), module.get_input_embeddings()
    if head.weight is embedding.weight:
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
        module.config.tie_word_embeddings = False
