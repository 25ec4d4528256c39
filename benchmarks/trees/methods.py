"""The ways to draft that ``python -m benchmarks trees`` compares, and the conditions under which they decode.

A :class:`TreesUnit` is one set of prompts under one condition. In it all methods decode the same prompt, one after
another in a random order, then all of them the next: machines change their speed from second to second, and a method
compares with others at the same prompt. No method sees a prompt twice, or what it has learned would be the answer.
Every unit begins with fresh tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from storage.sampling import Sampling

SEARCHES = (10, 50, 150, 300)
USUAL = 150
"""Searches where nothing else is said: the paper's number."""
TEMPERATURES, TOP_PS = (0.0, 0.25, 0.5, 0.75, 1.0), (0.25, 0.5, 0.75, 0.9)
SHARES = (0.0, 0.01, 0.1, 0.3, 1.0)


@dataclass(frozen=True, slots=True)
class DraftMethod:
    """One way to draft."""

    name: str
    kind: Literal["alone", "transformers", "lookup", "suffix", "trigram", "draft"]
    order: int = 3
    """n of the table's n-grams."""
    searches: int = USUAL
    """Searches of the tree; 0 is greedy search."""
    adaptive: bool = True
    """Whether the table, and the request's own, learn what the target says. A frozen one does not read the prompt."""
    matrix: bool = False
    """Whether only the longest context is asked, as in the paper."""


ALONE = DraftMethod("target_alone", "alone")
LOOKUP, THEIRS = DraftMethod("prompt_lookup", "lookup"), DraftMethod("transformers_prompt_lookup", "transformers")
GREEDY, MCTS = DraftMethod("trigram_greedy", "trigram", searches=0), DraftMethod(f"trigram_mcts_{USUAL}", "trigram")
FROZEN = DraftMethod("trigram_frozen", "trigram", adaptive=False)
DRAFT = DraftMethod("draft", "draft")
GRAMS = {2: "bi_gram", 3: "tri_gram", 4: "four_gram"}
"""The paper's matrix of one order alone; with shorter contexts behind it (``_backoff``) order 3 is MCTS itself."""
METHODS = (
    ALONE, THEIRS, LOOKUP, DraftMethod("suffix", "suffix"), GREEDY,
    *(DraftMethod(f"trigram_mcts_{count}", "trigram", searches=count) for count in SEARCHES),
    FROZEN, DraftMethod("trigram_greedy_frozen", "trigram", searches=0, adaptive=False),
    *(DraftMethod(name, "trigram", order=n, matrix=True) for n, name in GRAMS.items()),
    *(DraftMethod(f"{GRAMS[n]}_backoff", "trigram", order=n) for n in (2, 4)), DRAFT,
)  # fmt: skip
BY_NAME = {method.name: method for method in METHODS}


@dataclass(frozen=True, slots=True)
class TreesUnit:
    """One set under one condition."""

    part: Literal["shape", "speed", "sampling", "corpus"]
    """In the speed part the controller of the settings chooses depths; else all trees are as deep as they may be."""
    data_set: str
    methods: tuple[str, ...]
    temperature: float = 0.0
    top_p: float | None = None
    share: float = 1.0
    """The part of the corpus that is known beforehand."""

    def sampling(self, seed: int) -> Sampling:
        """Return how a text is drawn."""
        return Sampling(self.temperature, top_p=self.top_p, seed=seed)

    def __str__(self) -> str:
        words = {"sampling": f"T={self.temperature:g} top-p {self.top_p or 1:g}", "corpus": f"corpus × {self.share:g}"}
        return f"{self.data_set} {words.get(self.part, self.part)}"


def units_of(data_sets: Iterable[str], sensitivity: bool) -> Iterator[TreesUnit]:
    """Yield all units in the order of measuring; ``sensitivity``: also by temperature, top-p and share of the
    corpus."""
    names = list(data_sets)
    yield from (TreesUnit("shape", name, tuple(BY_NAME)) for name in names)
    yield from (TreesUnit("speed", name, tuple(BY_NAME)) for name in names)
    some = (ALONE.name, GREEDY.name, MCTS.name, FROZEN.name)
    points: list[tuple[float, float | None]] = [(t, None) for t in TEMPERATURES] + [(1.0, p) for p in TOP_PS]
    for name in names if sensitivity else ():
        yield from (TreesUnit("sampling", name, some[1:], t, p) for t, p in points)
        yield from (TreesUnit("corpus", name, some, share=share) for share in SHARES)
