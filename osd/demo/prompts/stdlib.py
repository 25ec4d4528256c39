"""Python functions to complete: signatures and docstrings from the running Python's standard library.

Nothing of the library ships with osd; its source is read when prompts are generated.
"""

from __future__ import annotations

import ast
import random
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
SHORTEST, LONGEST = 60, 600
"""Minimum and maximum length of a prompt in characters."""
PER_FILE, FILES_MIXED = 6, 60
"""Maximum functions taken from one file, and the number of files whose functions are shuffled together."""


def several(rng: random.Random) -> Iterator[str]:
    """Yield prompts in random order until the library is exhausted."""
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
