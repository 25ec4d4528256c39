"""The tables of n-grams that the drafters trigram, blended and mixed ask: ``[ngram]``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from storage.settings.section import Section


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
