"""Traffic of several domains in one stream, as in sections 5.3, A.6 and A.8 of the OSD paper."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from storage.errors import BadSetting

Order = Literal["mixed", "abrupt", "gradual"]
Domains = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Item:
    """A request to come. Nobody but the bench knows its domain."""

    domain: str
    prompt: str


def arrange(domains: Domains, order: str, seed: int = 0) -> list[Item]:
    """All prompts of all domains, each domain's in its own order. Raises BadSetting for an unknown order.

    mixed: request by request. abrupt: one domain after another. gradual: each domain's share falls while the next one's
    rises, so that two overlap at any time.
    """
    if order not in ORDERS:
        raise BadSetting(source="option", key="order", reason=f"{order!r} is none of {', '.join(get_args(Order))}")
    return _taken(domains, ORDERS[order](domains, random.Random(seed)))


def _mixed(domains: Domains, chance: random.Random) -> list[str]:
    names = [name for name, prompts in domains.items() for _ in prompts]
    chance.shuffle(names)
    return names


def _abrupt(domains: Domains, chance: random.Random) -> list[str]:
    return [name for name, prompts in domains.items() for _ in prompts]


def _gradual(domains: Domains, chance: random.Random) -> list[str]:
    """Every domain's requests arrive around its own place in the stream: evenly over twice the time that they would
    take alone, so that at the middle between two places both are as frequent."""
    times: list[tuple[float, str]] = []
    begin = 0
    for name, prompts in domains.items():
        middle, width = begin + len(prompts) / 2, len(prompts)
        times += [(middle + width * (chance.random() + chance.random() - 1), name) for _ in prompts]
        begin += len(prompts)
    return [name for _, name in sorted(times)]


ORDERS: dict[str, Callable[[Domains, random.Random], list[str]]] = {
    "mixed": _mixed,
    "abrupt": _abrupt,
    "gradual": _gradual,
}


def _taken(domains: Domains, names: Sequence[str]) -> list[Item]:
    left = {name: iter(prompts) for name, prompts in domains.items()}
    return [Item(name, next(left[name])) for name in names]
