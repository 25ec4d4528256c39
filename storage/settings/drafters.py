"""Who proposes the tokens: ``[drafters]``."""

from __future__ import annotations

from pydantic import Field, field_validator

from storage.settings.section import OpenSection

LOOKUP = "suffix matching over kept requests left serving, look-up in a request's own text drafts more: use lookup"


class DrafterSettings(OpenSection):
    kind: str = "causal"
    """Who drafts: causal, the draft, in chains; tree, the draft, in trees where it reads the target's hidden states
    (Medusa, EAGLE, EAGLE-3); blended, the draft and a table of n-grams that learns from what is served, where
    that is more often right; trigram, that table alone; lookup, in a request's own text; mixed, the draft with branches
    of one of these two; universal, a draft with a vocabulary of its own, which does not learn; or a drafter that an
    installed package brings."""
    branches: str = "trigram"
    """Whose branches mixed takes: trigram, lookup, or a drafter that an installed package brings."""
    tree_nodes: int = Field(default=24, ge=1, le=1024)
    """Drafted tokens of a row at most where drafts are trees; a chain that mixed has drawn is never cut for it."""

    @field_validator("kind", "branches")
    @classmethod
    def _refuse_suffix(cls, value: str) -> str:
        if value == "suffix":
            raise ValueError(LOOKUP)
        return value
