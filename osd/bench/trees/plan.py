"""What ``osd bench trees`` measures, and in which order.

A :class:`Unit` is one set of prompts under one condition. In it all methods decode the same prompt, one after another
in a random order, then all of them the next: machines change their speed from second to second, and a method compares
with others at the same prompt. No method sees a prompt twice, or what it has learned would be the answer. Every unit
begins with fresh tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from osd.bench.contenders import Tokens
from osd.bench.trees.methods import ALONE, BY_NAME, FROZEN, GREEDY, MCTS, METHODS, Method
from storage.records import Sampling

TEMPERATURES, TOP_PS = (0.0, 0.25, 0.5, 0.75, 1.0), (0.25, 0.5, 0.75, 0.9)
SHARES = (0.0, 0.01, 0.1, 0.3, 1.0)

Part = Literal["shape", "speed", "sampling", "corpus"]


@dataclass(frozen=True, slots=True)
class Unit:
    """One set under one condition."""

    part: Part
    data_set: str
    methods: tuple[str, ...]
    temperature: float = 0.0
    top_p: float | None = None
    share: float = 1.0
    """Of the corpus that is known beforehand."""

    @property
    def paced(self) -> bool:
        """Whether the controller of the settings chooses depths; otherwise all trees are as deep as they may be."""
        return self.part == "speed"

    @property
    def chosen(self) -> list[Method]:
        """The methods."""
        return [BY_NAME[name] for name in self.methods]

    def sampling(self, seed: int) -> Sampling:
        """How a text is drawn."""
        return Sampling(self.temperature, top_p=self.top_p, seed=seed)

    def __str__(self) -> str:
        words = {"sampling": f"T={self.temperature:g} top-p {self.top_p or 1:g}", "corpus": f"corpus × {self.share:g}"}
        return f"{self.data_set} {words.get(self.part, self.part)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All of it."""

    data_sets: Mapping[str, list[Tokens]]
    new_tokens: int
    nodes: int
    depth: int
    gamma: str
    sensitivity: bool
    facts: Mapping[str, Any]
    """What else makes figures what they are: the pair, the corpus."""

    def units(self) -> Iterator[Unit]:
        """In the order of measuring."""
        every = tuple(method.name for method in METHODS)
        for part in ("shape", "speed"):
            yield from (Unit(part, name, every) for name in self.data_sets)
        if self.sensitivity:
            some = (ALONE.name, GREEDY.name, MCTS.name, FROZEN.name)
            points: list[tuple[float, float | None]] = [(t, None) for t in TEMPERATURES] + [(1.0, p) for p in TOP_PS]
            for name in self.data_sets:
                yield from (Unit("sampling", name, some[1:], t, p) for t, p in points)
                yield from (Unit("corpus", name, some, share=share) for share in SHARES)

    def as_json(self) -> dict[str, Any]:
        """For the file beside the figures: a run goes on only where all of this is the same."""
        return {**asdict(self), "data_sets": {name: len(prompts) for name, prompts in self.data_sets.items()}}
