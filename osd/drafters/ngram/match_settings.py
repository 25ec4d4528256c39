"""Settings of prompt look-up and suffix matching."""

from __future__ import annotations

from dataclasses import dataclass

from osd.drafters.ngram.errors import BadTable


@dataclass(frozen=True, slots=True)
class MatchSettings:
    """How a text's end is matched, in the text itself or in a stream of others."""

    longest: int = 8
    """Length of a match, in tokens, beyond which a longer one is no better."""
    shortest: int = 2
    """Fewest tokens that have to match."""
    matches: int = 4
    """Matches whose continuations are proposed."""
    length: int = 10
    """Tokens of a continuation."""
    nodes: int = 32
    """Most tokens of the tree."""

    def __post_init__(self) -> None:
        for name in ("shortest", "matches", "length", "nodes"):
            if getattr(self, name) < 1:
                raise BadTable(name=name, reason=f"{getattr(self, name)} is below 1.")
        if self.longest < self.shortest:
            raise BadTable(name="longest", reason=f"{self.longest} is below shortest, {self.shortest}.")
