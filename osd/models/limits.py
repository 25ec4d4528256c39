"""What a model's configuration says of lengths: how long its texts may be, and where its attention changes."""

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
    known = _known(config)
    return min(known, rotary_switch(config) or known)


def cut_short(config: PreTrainedConfig) -> str | None:
    """Return why a model is served up to fewer positions than it knows; None where it is not."""
    limit, known = position_limit(config), _known(config)
    if limit == known:
        return None
    return f"{limit} of its {known} positions are served: in a longer text all rotary positions are other ones"


def _known(config: PreTrainedConfig) -> int:
    text: Any = config.get_text_config()
    return min((int(value) for name in LENGTHS if (value := named(text, name))), default=ENDLESS)


def rotary_switch(config: PreTrainedConfig) -> int | None:
    """Return the length beyond which all of a text's rotary positions are other ones; None where there is none."""
    text: Any = config.get_text_config()
    usual = named(text, "original_max_position_embeddings") or named(text, "max_position_embeddings") or ENDLESS
    ropes = _ropes(named(text, "rope_parameters"))
    switching = [rope for rope in ropes if any(kind in str(rope.get("rope_type")) for kind in SWITCHING)]
    found: list[Any] = [rope.get("original_max_position_embeddings") or usual for rope in switching]
    return min(map(int, found), default=None)


def named(config: Any, name: str) -> Any:
    """Return what a configuration says under a name, None where it says nothing."""
    try:
        return getattr(config, name, None)
    except NotImplementedError:  # so does XLNet's say that it has none
        return None


def _ropes(parameters: Any) -> Iterator[dict[str, Any]]:
    """Yield the rotary parameters, of the whole model or of each kind of layer."""
    if isinstance(parameters, dict):
        yield parameters
        for value in parameters.values():
            yield from _ropes(value)
