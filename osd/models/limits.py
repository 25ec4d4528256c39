"""Up to which length a model's pass is one and the same, by its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedConfig

ENDLESS = 1 << 30
"""The limit of a model that names none."""
LENGTHS = ("max_position_embeddings", "max_seq_len", "model_max_length")
SWITCHING = ("dynamic", "longrope")
"""Rotary positions that are other ones, of all tokens, once a text is longer than the model was first trained for."""


def position_limit(config: PreTrainedConfig) -> int:
    """Return the positions that the model can attend over exactly: those that it knows, but no more than its rotary
    positions stay the same for."""
    text: Any = config.get_text_config()
    named = (getattr(text, name, None) for name in LENGTHS)
    limit = min((int(value) for value in named if value), default=ENDLESS)
    return min(limit, rotary_switch(config) or limit)


def rotary_switch(config: PreTrainedConfig) -> int | None:
    """Return the length beyond which all of a text's rotary positions are other ones; None where there is none."""
    text: Any = config.get_text_config()
    usual: Any = getattr(text, "original_max_position_embeddings", None)
    usual = usual or getattr(text, "max_position_embeddings", ENDLESS)
    ropes = _ropes(getattr(text, "rope_parameters", None))
    switching = [rope for rope in ropes if any(kind in str(rope.get("rope_type")) for kind in SWITCHING)]
    found: list[Any] = [rope.get("original_max_position_embeddings") or usual for rope in switching]
    return min(map(int, found), default=None)


def _ropes(parameters: Any) -> Iterator[dict[str, Any]]:
    """Yield the rotary parameters, of the whole model or of each kind of layer."""
    if isinstance(parameters, dict):
        yield parameters
        for value in parameters.values():
            yield from _ropes(value)
