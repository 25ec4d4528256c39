"""Nothing is unpickled, from a disk or from a wire: what is read is JSON, safetensors, Parquet or plain arrays."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("storage", "router", "osd", "trainer", "migrations")
READERS = {
    "torch.load", "pickle.load", "pickle.loads", "pickle.Unpickler", "joblib.load", "dill.load", "dill.loads",
    "marshal.load", "marshal.loads", "shelve.open",
}  # fmt: skip


def calls(source: str) -> Iterator[str]:
    """Yield what is called as MODULE.NAME, and how numpy's load is told to unpickle."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
            for word in node.keywords:
                if word.arg == "allow_pickle" and ast.unparse(word.value) != "False":
                    yield "pickle.load"


def test_nothing_is_unpickled() -> None:
    found = [
        (path.relative_to(ROOT).as_posix(), name)
        for room in ROOMS for path in (ROOT / room).rglob("*.py") for name in calls(path.read_text("utf-8"))
        if name in READERS
    ]  # fmt: skip
    assert found == []


@pytest.mark.parametrize("source", ["torch.load(p, weights_only=False)", "np.load(p, allow_pickle=True)"])
def test_that_test_would_see_it(source: str) -> None:
    assert READERS & set(calls(source))
