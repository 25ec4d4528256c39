"""Loads checked tensors into the draft of a running vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def shared_parameters(draft: nn.Module, target: nn.Module) -> dict[str, torch.Tensor]:
    """Return the draft's parameters that are the target's, by their names: the same object, or the same memory. (Where
    a kernel has packed a weight away its parameter is empty.)"""
    objects = {id(tensor) for tensor in target.parameters()}
    places = {tensor.data_ptr() for tensor in target.parameters() if tensor.numel()}
    return {
        name: tensor.detach() for name, tensor in draft.named_parameters()
        if id(tensor) in objects or (tensor.numel() and tensor.data_ptr() in places)
    }  # fmt: skip


def put(model: nn.Module, config: Any, tensors: Mapping[str, torch.Tensor]) -> int | None:
    """Load checked tensors into a model between two steps; return how many parameters took them, None where the model
    does not say.

    vLLM's layerwise reload puts values into the storage that kernels and graphs read, repacked where a kernel wants it;
    on a CPU it leaves out the packed copy of a tied output layer, which is packed again here. It puts back the
    vocabulary of Medusa heads too, which is no parameter until weights were loaded once.
    """
    from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

    with torch.no_grad():
        initialize_layerwise_reload(model)
        loaded = model.load_weights(iter(tensors.items()))  # type: ignore[operator]
        finalize_layerwise_reload(model, config)
        vocabulary, kept = tensors.get("token_map"), getattr(model, "token_map", None)
        if vocabulary is not None and kept is not None:
            kept.copy_(vocabulary)
        head = getattr(model, "lm_head", None)
        tied = getattr(config.hf_config, "tie_word_embeddings", False)
        if tied and head is not None and head.weight.device.type == "cpu":
            head.quant_method.process_weights_after_loading(head)
    return None if loaded is None else len(loaded)
