"""The tables of n-grams that the drafters trigram, blended and mixed ask: ``[ngram]``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from storage.settings.section import Section


class NgramSearchSettings(Section):
    """How drafts are searched for in a table."""

    method: Literal["mcts", "greedy"] = "mcts"
    """Tree search, or the likeliest token at each place."""
    searches: int = Field(default=150, ge=1, le=4096)
    """Searches for a row's draft; 150 as in the paper of Adaptix."""
    budget_us: float | None = Field(default=None, gt=0)
    """Microseconds for the rows of a round instead: as many searches as fit."""
    breadth: int = Field(default=16, ge=1, le=64)
    """Successors that are considered after each token."""
    c1: float = Field(default=1.25, ge=0)
    """C1 of Eq. 3: how much is explored."""
    c2: float = Field(default=19652.0, gt=0)
    """C2 of Eq. 3: after how many searches more is."""
    weight: float = Field(default=128.0, ge=0)
    """Weight of an n-gram of the request itself, beside one of the table."""
    kappa: float = Field(default=10.0, ge=0)
    """Weight of shorter contexts beside the longest one, in counts; 0 is the paper's Eq. 1."""
    shortest: int = Field(default=0, ge=0, le=3)
    """Tokens of the shortest context that is looked up; `ngram.order` − 1 is the paper's matrix alone."""


class NgramSettings(Section):
    corpus: Path | None = None
    """Folder of `osd corpus build` that a table starts from, where none was kept yet."""
    table: str = "ngram"
    """The draft in the store whose versions the tables are kept as; other routes' are TABLE.ROUTE."""
    order: int = Field(default=4, ge=2, le=4)
    """Tokens of the longest n-grams that are counted. A table that was kept with fewer goes on with so many."""
    memory_mb: int = Field(default=64, ge=1)
    """Memory of one table."""
    tables: int = Field(default=8, ge=1)
    """Tables in memory: one a route, one for each tenant that does not share. The one unused longest makes room."""
    keep_seconds: float = Field(default=600, gt=0)
    """How often tables that learned a tenth more are kept as a new version; they are at the end, too."""
    search: NgramSearchSettings = NgramSearchSettings()
