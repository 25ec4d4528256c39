"""What prompt lookup and suffix matching are told."""

from __future__ import annotations

from dataclasses import dataclass

from osd.drafters.ngram.errors import BadTable


@dataclass(frozen=True, slots=True)
class MatchSettings:
    """How a text's end is looked for, in the text itself or in a stream of others."""

    longest: int = 8
    """Tokens of a match beyond which a longer one is no better."""
    shortest: int = 2
    """Tokens that have to match."""
    matches: int = 4
    """Matches whose continuations are proposed."""
    length: int = 10
    """Tokens of a continuation."""
    nodes: int = 32
    """Tokens of the tree at most."""

    def __post_init__(self) -> None:
        for name in ("shortest", "matches", "length", "nodes"):
            if getattr(self, name) < 1:
                raise BadTable(name=name, reason=f"{getattr(self, name)} is below 1.")
        if self.longest < self.shortest:
            raise BadTable(name="longest", reason=f"{self.longest} is below shortest, {self.shortest}.")
