"""The prompts that the benches of servers ask with."""

from __future__ import annotations

from collections.abc import Sequence

from osd.bench.harness.prompts import Tokens, tokens_by_set
from osd.models.pair import Pair, row_limit
from storage.settings import ServeSettings

PROMPTS = 256
"""Prompts taken from each file; they come again and again."""


def prompts_that_fit(pair: Pair, serve: ServeSettings, files: Sequence[str] | None, max_tokens: int) -> list[Tokens]:
    """Return the prompts of all files that a row holds together with their answers. Raises BadInput where a file has
    none."""
    sets = tokens_by_set(pair.tokenizer, files, PROMPTS, row_limit(pair, serve) - max_tokens)
    return [prompt for prompts in sets.values() for prompt in prompts]
