"""The twin of a model: its architecture, small and random, with every length at which its pass changes scaled down.

What a pass does beyond a window of 4,096 tokens would take minutes to show on the model itself. On a twin of a few
layers whose window is 8 it takes a moment, and it is the same code that runs.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from osd.models.encoder_decoder import STACKS
from osd.models.limits import named
from osd.models.weights import LOAD_LOCK

FIRST, STEP, LENGTH = 16, 8, 48
"""The smallest switch of a twin, the step from one to the next larger one, and the least positions that it knows."""
LAYERS = 8
"""Most kinds of layers that a twin has."""
VOCABULARY, WIDTH, HEADS = 160, 64, 4
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_target_positions", "seq_length")
SWITCHES = re.compile(
    r"window(?!.*(layers|pattern))|chunk(?!.*feed)|local_att|original_max|floor|extent|index_topk|index_block|max_distance|mem_len|block_size"
)
"""Names of numbers of tokens at which something changes."""
WIDTHS = re.compile(r"intermediate|ffn_dim|ffn_hidden|n_inner|dim_ff|d_ff|feed_forward")
INDICES = re.compile(r"moe_layers|mlp_only_layers|layers_block|_idx|_indices")
"""Names of lists of layers' numbers."""
DENSE = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
"""Layers before the first that has experts."""

OWN = "layers_of_their_own"
"""Under which what single layers have of their own, by their numbers, is set aside."""

Place = tuple[Any, str, int]
"""A number in a configuration: the object or dictionary that it stands in, its name there, and itself."""


@torch.inference_mode(False)  # what is made in that mode stays of it: no weight could become a view of another
@torch.no_grad()
def twin_of(module: PreTrainedModel) -> PreTrainedModel:
    """Return a small random model of the module's class, in float32 on the CPU, as it attends."""
    config = shrunken(module.config)
    config._attn_implementation = module.config._attn_implementation
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with LOAD_LOCK:
            small: Any = type(module)(config)
        twin: PreTrainedModel = small.float().eval().requires_grad_(False)
        for name, weight in twin.named_parameters():
            spread = 1.0 if "embed" in name or weight.dim() < 2 else 1.5 * weight[0].numel() ** -0.5
            torch.nn.init.normal_(weight, std=spread) if weight.dim() > 1 else weight.add_(torch.randn_like(weight) / 8)
    return twin


def shrunken(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the twin's configuration: few and narrow layers of every kind, and small switches in the same order."""
    small = copy.deepcopy(config)
    parts = list(_parts(small))
    for part in parts:
        take_apart(part)
    for part in parts:
        _thin(part)
        _cut(part)
        _forget_tokens(part)
    _scale(small)
    for part in parts:
        if own := vars(part).pop(OWN, None):
            part.per_layer_config = own
    return small


def switches(config: PreTrainedConfig) -> dict[str, int]:
    """Return the numbers of tokens at which the pass may change, by their names."""
    return {name: value for _, name, value in _numbers(config) if SWITCHES.search(name)}


def take_apart(config: Any) -> None:
    """Set aside what single layers have of their own, where transformers would not let the rest be read."""
    if spec := vars(config).get("_heterogeneity_spec"):
        own = copy.deepcopy(spec.per_layer_overrides)
        config.per_layer_config = None
        vars(config)[OWN] = own


def _parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for value in vars(config).values():
        if isinstance(value, PreTrainedConfig):
            yield from _parts(value)


def _numbers(config: Any) -> Iterator[Place]:
    """Yield every whole number of a configuration, wherever it stands."""
    items = config.items() if isinstance(config, dict) else vars(config).items()
    for name, value in list(items):
        if isinstance(value, int) and not isinstance(value, bool):
            yield config, name, value
        elif isinstance(value, dict | PreTrainedConfig):
            yield from _numbers(value)


def _set(place: Any, name: str, value: Any) -> None:
    if isinstance(place, dict):
        place[name] = value
    else:
        setattr(place, name, value)


def _thin(config: Any) -> None:
    """Leave the width of a head as it is, for rotary positions depend on it, and have few heads."""
    heads, hidden = named(config, "num_attention_heads"), named(config, "hidden_size")
    if not isinstance(heads, int) or not isinstance(hidden, int):
        return
    head_names, key_names = (
        {name, config.attribute_map.get(name, name)} for name in ("num_attention_heads", "num_key_value_heads")
    )
    head_names.add("decoder_attention_heads")
    width = HEADS * (named(config, "head_dim") or hidden // heads)
    for place, name, value in _numbers(config):
        if name in head_names:
            _set(place, name, HEADS)
        elif name in key_names:
            _set(place, name, HEADS if value == heads else min(value, HEADS // 2))
        elif WIDTHS.search(name):
            _set(place, name, min(value, WIDTH))
        elif name == "relative_attention_num_buckets":
            _set(place, name, min(value, FIRST // 2))  # half are for single distances, the rest reach a switch
        elif "vocab_size" in name:
            _set(place, name, min(value, VOCABULARY))
        elif value == hidden and name not in POSITIONS and not SWITCHES.search(name):
            _set(place, name, width)


def _cut(config: Any) -> None:
    """Keep one layer of every kind, and at least two; two of each where later layers share keys of earlier ones."""
    layers = named(config, "num_hidden_layers")
    if not isinstance(layers, int):
        return
    lists = {name: value for name, value in vars(config).items() if isinstance(value, list) and len(value) == layers}
    own = vars(config).get(OWN, {})
    kinds = [repr([own.get(i), *(value[i] for value in lists.values())]) for i in range(layers)]
    kept = sorted(kinds.index(kind) for kind in set(kinds))[:LAYERS]
    kept = kept if len(kept) > 1 else [*range(min(2, layers))]
    if named(config, "num_kv_shared_layers"):
        config.num_kv_shared_layers, kept = len(kept), [*kept, *kept]
    for name, value in lists.items():
        setattr(config, name, [value[i] for i in kept])
    for name, value in vars(config).items():
        if isinstance(value, list) and name not in lists and INDICES.search(name):
            setattr(config, name, [i for i in value if isinstance(i, int) and i < len(kept)])
    for name in (*DENSE, *STACKS):
        if vars(config).get(name):
            setattr(config, name, 1 if name in DENSE else len(kept))
    config.num_hidden_layers = len(kept)
    if own:
        vars(config)[OWN] = {new: own[old] for new, old in enumerate(kept) if old in own}


def _forget_tokens(config: Any) -> None:
    """Have no special tokens beyond the small vocabulary."""
    for place, name, value in _numbers(config):
        if re.search(r"token_id|token_index", name) and value >= VOCABULARY:
            _set(place, name, VOCABULARY - 1)
    if isinstance(named(config, "eos_token_id"), list):
        config.eos_token_id = config.eos_token_id[0] % VOCABULARY


def _scale(config: PreTrainedConfig) -> None:
    """Map the switches that can be reached to FIRST, FIRST + STEP …, and the positions to a little more than those."""
    numbers = list(_numbers(config))
    most = max((value for _, name, value in numbers if name in POSITIONS), default=1 << 30)
    found = [place for place in numbers if SWITCHES.search(place[1]) and place[2] > 1]
    reached = sorted({value for _, _, value in found if value < most})
    scaled = dict(zip(reached, range(FIRST, FIRST + STEP * len(reached), STEP), strict=True))
    length = max(LENGTH, FIRST + STEP * (len(reached) + 1))
    ends = [place for place in numbers if place[1] in POSITIONS]
    for place, name, value in found:
        _set(place, name, scaled.get(value, value))
    for place, name, _ in ends:
        _set(place, name, length)
