"""Every way in which text reaches the store goes through the store's own writers, which ask the redaction hook, consent
and what was forgotten. A way that is added later, and does not, is found here."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("storage", "router", "osd", "trainer")
WRITERS: dict[str, set[str]] = {
    # requests: SampleStore.add, and old ones from file to file
    "files.write": {"storage/replay/samples.py", "storage/replay/purge.py"},
    "segments.encode": {"storage/replay/segment_files.py", "storage/replay/spill.py"},
    "pq.ParquetWriter": {"storage/replay/exports.py"},
    "pq.write_table": {"storage/replay/segments.py", "storage/replay/spill.py"},
    "insert(INDEX)": {"storage/replay/samples.py"},
    "insert(SampleRow)": set(),
    "SampleRow()": set(),
    # what says that the hook has seen requests: the hook's own answer, and exports and spilled files that come back
    "Redacted()": {
        "storage/redaction.py", "storage/replay/samples.py", "storage/replay/spill.py",
        "osd/recording/writer.py",
    },
    # examples of topics: storage.routes.examples.teach
    "RouteExampleRow()": {"storage/routes/examples.py"},
    "RouteBackgroundRow()": {"storage/routes/examples.py"},
    "insert(RouteExampleRow)": set(),
    # tables of n-grams, which hold texts: TableStore.keep
    "keep_table()": {"osd/drafters/ngram/table_store.py"},
}  # fmt: skip
"""What writes text, and the files that may name it."""


def called(node: ast.Call) -> str:
    """A call as WRITERS names it: ``object.name``, ``insert(TABLE)`` or ``name()``."""
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value
        return f"{owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, 'id', '')}.{node.func.attr}"
    name = getattr(node.func, "id", "")
    if name == "insert" and node.args:
        return f"insert({getattr(node.args[0], 'id', '')})"
    return f"{name}()"


def writers_in(source: str) -> set[str]:
    made = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    calls = {called(node) for node in made}
    handed = [node.args[0] for node in made if called(node) in ("map()", "partial()")]
    calls |= {f"{arg.id}()" for arg in handed if isinstance(arg, ast.Name)}
    return {name for call in calls for name in WRITERS if name.lstrip("_") == call.lstrip("_")}


def test_only_the_stores_writers_write_text() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py")):
        for name in writers_in(path.read_text("utf-8")):
            found[name].add(str(path.relative_to(ROOT)))
    stray = {name: files - WRITERS[name] for name, files in found.items() if files - WRITERS[name]}
    assert not stray, "new text goes by SampleStore.add, ExampleStore.teach or TableStore.keep, which ask the hook"
    assert not [name for name, files in WRITERS.items() if files - found[name]], "they are written elsewhere by now"


def test_a_way_that_passes_by_is_found() -> None:
    source = """
def leak(store, batch, session):
    store.samples.files.write(Redacted(batch), index)
    session.execute(insert(RouteExampleRow), rows)
    session.add(RouteExampleRow(text=text))
    self._files.write(batch, index)
    store.samples.add(map(Redacted, batches))
"""
    assert writers_in(source) == {"files.write", "Redacted()", "insert(RouteExampleRow)", "RouteExampleRow()"}
