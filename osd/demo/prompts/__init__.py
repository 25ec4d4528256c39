"""The demo's prompts: four domains, written by this project or read from the user's own Python.

- sql: a table's columns and a question about them
- arithmetic: word problems of two to four steps
- python: signature and docstring of a function in the standard library
- finnish: questions and small tasks in Finnish

The words are in a .toml file beside this one for each domain but python.
"""

from __future__ import annotations

import ast
import random
import sysconfig
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from storage.errors import BadSetting

Draw = Callable[[random.Random], Iterator[str]]
Columns = list[dict[str, Any]]
PATIENCE = 20
"""Draws for each prompt wanted, after which a domain counts as exhausted."""
LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
SHORTEST, LONGEST = 60, 600
"""Minimum and maximum length of a prompt in characters."""
PER_FILE, FILES_MIXED = 6, 60
"""Maximum functions taken from one file, and the number of files whose functions are shuffled together."""


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


@cache
def words_of(domain: str) -> dict[str, Any]:
    """Return the contents of ``<domain>.toml``."""
    return tomllib.loads((Path(__file__).parent / f"{domain}.toml").read_text(encoding="utf-8"))


def sql(rng: random.Random) -> str:
    """Return a table's columns in one line, then a question about them."""
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


def arithmetic(rng: random.Random) -> str:
    """Return a word problem of two to four steps."""
    kept = words_of("arithmetic")
    fillings = {
        "kin": "relatives", "goods": "goods", "box": "boxes", "place": "places", "beasts": "beasts", "day": "days",
        "share": "shares", "times": "times",
    }  # fmt: skip
    drawn = {key: rng.choice(kept[words]) for key, words in fillings.items()}
    people = dict(zip("pqr", rng.sample(kept["people"], 3), strict=True))
    return str(rng.choice(kept["stories"]).format(**drawn, **people, **_numbers(rng)))


def _numbers(rng: random.Random) -> dict[str, int]:
    return {
        "a": rng.randint(24, 96),
        "b": rng.randint(3, 22),
        "b0": rng.choice((20, 25, 40, 50)),
        "c": rng.randint(6, 30),
        "s": rng.randint(3, 12),
        "n": rng.randint(2, 6),
        "d": rng.randint(2, 9),
        "pc": rng.choice((5, 10, 20, 25, 50)),
        "big": rng.randint(20, 60) * 10,
    }


def finnish(rng: random.Random) -> str:
    """Return a question or a small task in Finnish."""
    kept = words_of("finnish")
    it, about = rng.choice(list(kept["topics"].items()))
    fillings = {"reader": rng.choice(kept["readers"]), "form": rng.choice(kept["forms"])}
    return str(rng.choice(kept["questions"]).format(it=it, about=about, **fillings))


def python(rng: random.Random) -> Iterator[str]:
    """Yield signatures and docstrings of the running Python's standard library, in random order, until it is exhausted.

    Nothing of the library ships with osd; its source is read when prompts are generated.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(root.rglob("*.py")) if not LEFT_OUT.intersection(path.relative_to(root).parts)]
    rng.shuffle(files)
    for start in range(0, len(files), FILES_MIXED):
        heads = [head for path in files[start : start + FILES_MIXED] for head in _some(list(functions(path)), rng)]
        yield from rng.sample(heads, len(heads))


def _some(heads: list[str], rng: random.Random) -> list[str]:
    return rng.sample(heads, min(PER_FILE, len(heads)))


def functions(path: Path) -> Iterator[str]:
    """Yield signature and docstring of every documented function in a file, dedented; nothing if it cannot be
    parsed."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, UnicodeDecodeError, SyntaxError):
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and len(node.body) > 1 and ast.get_docstring(node):
            head = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.body[0].end_lineno])) + "\n"
            if SHORTEST <= len(head) <= LONGEST:
                yield head


def _again_and_again(one: Callable[[random.Random], str]) -> Draw:
    def draw(rng: random.Random) -> Iterator[str]:
        while True:
            yield one(rng)

    return draw


DOMAINS: dict[str, Draw] = {
    "sql": _again_and_again(sql),
    "arithmetic": _again_and_again(arithmetic),
    "python": python,
    "finnish": _again_and_again(finnish),
}
