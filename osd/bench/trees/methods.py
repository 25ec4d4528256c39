"""The ways to draft that ``osd bench trees`` compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["alone", "transformers", "lookup", "suffix", "trigram", "draft", "mixed"]
SEARCHES = (10, 50, 150, 300)
USUAL = 150
"""Searches where nothing else is said: the paper's number."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way to draft."""

    name: str
    kind: Kind
    order: int = 3
    """n of the table's n-grams."""
    searches: int = USUAL
    """Searches of the tree; 0 is greedy search."""
    adaptive: bool = True
    """Whether the table, and the request's own, learn what the target says. A frozen one does not read the prompt."""
    matrix: bool = False
    """Whether only the longest context is asked, as in the paper."""

    @property
    def has_table(self) -> bool:
        """Whether it asks a table of n-grams."""
        return self.kind in ("trigram", "mixed")


ALONE = Method("target_alone", "alone")
LOOKUP, THEIRS = Method("prompt_lookup", "lookup"), Method("transformers_prompt_lookup", "transformers")
GREEDY, MCTS = Method("trigram_greedy", "trigram", searches=0), Method(f"trigram_mcts_{USUAL}", "trigram")
FROZEN = Method("trigram_frozen", "trigram", adaptive=False)
DRAFT, MIXED = Method("draft", "draft"), Method("mixed", "mixed")
GRAMS = {2: "bi_gram", 3: "tri_gram", 4: "four_gram"}
"""The paper's matrix of one order alone; with shorter contexts behind it (``_backoff``) order 3 is MCTS itself."""
BI_BACKOFF, FOUR_BACKOFF = (Method(f"{GRAMS[n]}_backoff", "trigram", order=n) for n in (2, 4))
METHODS = (
    ALONE, THEIRS, LOOKUP, Method("suffix", "suffix"), GREEDY,
    *(Method(f"trigram_mcts_{count}", "trigram", searches=count) for count in SEARCHES),
    FROZEN, Method("trigram_greedy_frozen", "trigram", searches=0, adaptive=False),
    *(Method(name, "trigram", order=n, matrix=True) for n, name in GRAMS.items()), BI_BACKOFF, FOUR_BACKOFF,
    DRAFT, MIXED,
)  # fmt: skip
BY_NAME = {method.name: method for method in METHODS}
