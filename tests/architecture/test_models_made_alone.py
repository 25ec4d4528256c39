"""Wherever transformers or PEFT makes a model, `LOAD_LOCK` is held: in a process they make one at a time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALONE = ("osd/bench/", "trainer/distil/rank_files.py")
"""What runs in a process of its own, which makes one model."""
MAKES = re.compile(
    r"(AutoModel\w*|PeftModel|made|models)\.(from_pretrained|_?from_config)|get_peft_model|type\(module\)"
)


def made_without(source: str) -> Iterator[str]:
    """Yield the calls that make a model where the lock is not held."""
    tree = ast.parse(source)
    held = {
        id(inner) for block in ast.walk(tree) if isinstance(block, ast.With)
        if any(ast.unparse(one.context_expr) == "LOAD_LOCK" for one in block.items) for inner in ast.walk(block)
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and MAKES.fullmatch(ast.unparse(node.func)) and id(node) not in held:
            yield ast.unparse(node)


def test_the_lock_is_held() -> None:
    found = [
        (path.relative_to(ROOT).as_posix(), call)
        for room in ("osd", "trainer") for path in sorted((ROOT / room).rglob("*.py"))
        if not path.relative_to(ROOT).as_posix().startswith(ALONE)
        for call in made_without(path.read_text("utf-8"))
    ]  # fmt: skip
    assert found == []


@pytest.mark.parametrize(
    "source", ["AutoModelForCausalLM.from_pretrained(p)", "with quiet(): PeftModel.from_pretrained(b, p)"]
)
def test_that_test_would_see_it(source: str) -> None:
    assert list(made_without(source))
