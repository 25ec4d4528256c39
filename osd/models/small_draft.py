"""Cuts a small draft out of a target: some of its layers with its embeddings, last norm and output layer.

The layers are evenly spaced, the first and the last among them; a single one is the first. What the configuration says
of single layers goes with them, and every weight of the draft is one of the target's. A draft so cut guesses badly: it
is where learning begins.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from osd.models.encoder_decoder import STACKS
from osd.models.limits import named
from osd.models.twin import DENSE, INDICES, OWN, take_apart
from osd.models.weights import LOAD_ERRORS, LOAD_LOCK
from storage.errors import PairError

SHARE = 12
"""Layers of the target for each one of a draft whose number of layers is not given."""


class CannotCut(PairError):
    """No small draft can be cut from {model}: {reason}"""


def cut(module: PreTrainedModel, name: str, layers: int | None = None) -> tuple[PreTrainedModel, list[int]]:
    """Return a model of so many of the module's layers, in the module's type of number, and their numbers.

    ``layers`` None: a twelfth of them, at least one. Raises CannotCut.
    """
    config: Any = module.config
    if config.is_encoder_decoder and not config.get_text_config().is_decoder:
        raise CannotCut(model=name, reason="its decoder reads what an encoder made of the prompt.")
    if named(config, "quantization_config"):
        raise CannotCut(model=name, reason="its weights are quantised. Cut it from the checkpoint before that.")
    prefix, count = _stack(module, name)
    own = count - (named(config.get_text_config(), "num_kv_shared_layers") or 0)
    wanted = max(1, count // SHARE) if layers is None else layers
    if not 1 <= wanted <= own:
        raise CannotCut(model=name, reason=f"{wanted} layers were asked for, and it has {own} to choose from.")
    kept = spaced(own, wanted)
    try:
        return _with_weights(module, _fewer(config, kept), prefix, kept), kept
    except LOAD_ERRORS as error:
        numbers, why = ", ".join(map(str, kept)), shorten(" ".join(str(error).splitlines()[-1:]), 200)
        reason = f"layers {numbers} alone do not make a {type(module).__name__} ({why})."
        raise CannotCut(model=name, reason=reason) from None


def spaced(count: int, wanted: int) -> list[int]:
    """Return ``wanted`` of the numbers below ``count``, evenly spaced from the first to the last."""
    return [round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted)]


def _stack(module: PreTrainedModel, name: str) -> tuple[str, int]:
    """Return where the layers of text stand in the module, and how many they are. Raises CannotCut."""
    count = named(module.config.get_text_config(), "num_hidden_layers")
    found = {path: each for path, each in module.named_modules() if isinstance(each, nn.ModuleList)}
    stacks = {path: sum(map(torch.numel, each.parameters())) for path, each in found.items() if len(each) == count}
    text: Any = module.get_decoder()  # type: ignore[no-untyped-call]
    of_text = {id(part) for part in text.modules()}
    # of a model that also sees, the layers of text; a few models take something else for their decoder
    stacks = {path: size for path, size in stacks.items() if id(found[path]) in of_text} or stacks
    if not stacks:
        raise CannotCut(model=name, reason=f"no stack of {count} layers was found in it.")
    return max(stacks, key=stacks.__getitem__), int(count)


def _fewer(config: PreTrainedConfig, kept: Sequence[int]) -> PreTrainedConfig:
    """Return the configuration of a model with these layers alone."""
    small = copy.deepcopy(config)
    keep_layers(small.get_text_config(), kept)
    return small


def keep_layers(config: Any, kept: Sequence[int]) -> None:
    """Let a configuration of text be that of these layers alone, in this order."""
    take_apart(config)
    count = named(config, "num_hidden_layers")
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and INDICES.search(name):
            setattr(config, name, [new for new, old in enumerate(kept) if old in value])
        elif isinstance(value, list) and len(value) == count:
            setattr(config, name, [value[old] for old in kept])
        elif name in DENSE and value:
            setattr(config, name, sum(old < value for old in kept))
        elif name in STACKS:
            setattr(config, name, len(kept))
    for name, fewer in _of_single_models(config, kept):
        if vars(config).get(name):
            setattr(config, name, fewer)
    config.num_hidden_layers = len(kept)
    if own := vars(config).pop(OWN, None):
        config.per_layer_config = {new: own[old] for new, old in enumerate(kept) if old in own}


def _of_single_models(config: Any, kept: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Yield what single models say of their layers: Gemma's that share keys (none of which is kept), GPT-Neo's kinds,
    ERNIE's last one with experts, and MiniCPM's weight of each, which it divides by the root of their number."""
    yield "num_kv_shared_layers", 0
    yield "attention_types", [[[kind], 1] for kind in vars(config).get("attention_layers", ())]
    last = vars(config).get("moe_layer_end_index", 0)
    yield "moe_layer_end_index", sum(old <= last for old in kept) - 1
    yield "scale_depth", vars(config).get("scale_depth", 0) * (len(kept) / named(config, "num_hidden_layers")) ** 0.5


def _with_weights(
    module: PreTrainedModel, config: PreTrainedConfig, prefix: str, kept: Sequence[int]
) -> PreTrainedModel:
    """Return a model of the configuration with the module's weights. Raises RuntimeError for one that has others."""
    dtype = next(module.parameters()).dtype
    with LOAD_LOCK:
        made: Any = type(module)(config)
    small: PreTrainedModel = made.to(dtype).eval().requires_grad_(False)
    small.generation_config = module.generation_config
    places = {old: new for new, old in enumerate(kept)}
    layer = re.compile(re.escape(prefix) + r"\.(\d+)(\..*)")
    weights, shapes = {}, {name: weight.shape for name, weight in small.state_dict().items()}
    for name, weight in module.state_dict().items():
        at = layer.fullmatch(name)
        if at is None:
            weights[name] = _blocks(weight, shapes.get(name), kept)
        elif int(at[1]) in places:
            weights[f"{prefix}.{places[int(at[1])]}{at[2]}"] = weight
    small.load_state_dict(weights)
    return small


def _blocks(weight: Tensor, shape: torch.Size | None, kept: Sequence[int]) -> Tensor:
    """Return a weight that all layers share; where it has a block for each layer along a dimension, those of the kept
    ones."""
    if shape is None or len(shape) != weight.dim():
        return weight
    for dim, (wide, narrow) in enumerate(zip(weight.shape, shape, strict=True)):
        if wide != narrow and narrow % len(kept) == 0 and wide % (narrow // len(kept)) == 0:
            blocks = torch.split(weight, narrow // len(kept), dim)
            weight = torch.cat([blocks[old] for old in kept], dim)
    return weight
