"""Text-to-SQL: a table's columns in one line, then a question about them."""

from __future__ import annotations

import random
from typing import Any

from osd.demo.prompts.words import words_of

Columns = list[dict[str, Any]]


def one(rng: random.Random) -> str:
    """Return one prompt."""
    table = rng.choice(words_of("sql")["tables"])
    question = rng.choice(words_of("sql")["questions"]).format(
        one=table["one"], many=table["many"], **_fillings(table, rng)
    )
    return f"{_schema(table, rng)}\n{question}"


def _schema(table: dict[str, Any], rng: random.Random) -> str:
    """Format the table as people paste it above a question, its columns in random order."""
    columns = [column["column"] for column in (*table["words"], *table["numbers"])]
    rng.shuffle(columns)
    return f"{table['name']}({table['name'].lower()}_id, {', '.join(columns)})"


def _fillings(table: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    words: Columns = rng.sample(table["words"], 3)
    n, m = rng.sample(table["numbers"], 2)
    fillings: dict[str, Any] = {"n": n["phrase"], "m": m["phrase"]}
    for letter, column in zip("abc", words, strict=True):
        fillings |= {letter: column["phrase"], f"v{letter}": rng.choice(column["values"])}
    x, step = rng.randint(n["low"], n["high"]), max(2, (n["high"] - n["low"]) // 3)
    return fillings | {"x": x, "z": x + rng.randint(1, step), "y": rng.randint(m["low"], m["high"])}
