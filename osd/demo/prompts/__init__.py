"""The demo's prompts: four domains, written by this project or read from the user's own Python.

- sql: a table's columns and a question about them
- arithmetic: word problems of two to four steps
- python: signature and docstring of a function in the standard library
- finnish: questions and small tasks in Finnish
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from osd.demo.prompts import arithmetic, finnish, sql, stdlib
from storage.errors import BadSetting

Draw = Callable[[random.Random], Iterator[str]]


def _again_and_again(one: Callable[[random.Random], str]) -> Draw:
    def draw(rng: random.Random) -> Iterator[str]:
        while True:
            yield one(rng)

    return draw


DOMAINS: dict[str, Draw] = {
    "sql": _again_and_again(sql.one),
    "arithmetic": _again_and_again(arithmetic.one),
    "python": stdlib.several,
    "finnish": _again_and_again(finnish.one),
}
PATIENCE = 20
"""Draws for each prompt wanted, after which a domain counts as exhausted."""


def prompts(domain: str, count: int, seed: int = 0) -> list[str]:
    """Return ``count`` different prompts of a domain, fewer when it is exhausted.

    The same seed (and, for ``python``, the same Python) returns the same prompts. Raises BadSetting for an unknown
    domain.
    """
    if domain not in DOMAINS:
        raise BadSetting(source="demo", key="domain", reason=f"there is no {domain!r}; known: {', '.join(DOMAINS)}")
    found: dict[str, None] = {}
    draws = DOMAINS[domain](random.Random(f"{seed} {domain}"))
    for _, prompt in zip(range(count * PATIENCE), draws, strict=False):
        found[prompt] = None
        if len(found) == count:
            break
    return list(found)
