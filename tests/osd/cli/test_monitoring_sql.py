"""The ten questions of docs/monitoring-sql.md, on both databases: the query says what the command beneath it says."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from osd.cli.main import app
from storage.records import RunState
from storage.runs import ClaimTerms
from storage.settings import load_settings
from storage.sql import database
from storage.sql.spans import DAY, HOUR, MINUTE, floor_to
from storage.store import Store, open_store
from tests.osd.cli.conftest import model_folder, write_model
from tests.storage.conftest import new_postgres
from tests.storage.make import outcome, samples

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "monitoring-sql.md").read_text("utf-8")
QUESTIONS = re.findall(r"^### (.+?)\n+```sql\n(.*?)```\n`osd (.+?)`$", PAGE, re.MULTILINE | re.DOTALL)
PLACES = ((10, 8, 2), (8, 6, 2), (6, 5, 1))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("sql")
    if request.param == "sqlite":
        yield from filled(folder, f"sqlite:///{folder / 'osd.db'}")
        return
    with new_postgres() as url:
        yield from filled(folder, url)


def filled(folder: Path, url: str) -> Iterator[Store]:
    """Nine days of two routes, three tenants, two servers and an engine; a version in their midst; runs of all ends."""
    database.upgrade(url)
    told = load_settings(storage={"directory": folder / "data", "url": url, "holdout": 0.0})
    with open_store(told) as store:
        root = store.versions.register_root("default", model_folder(folder / "draft", 0.0))
        version = train(store, root.id)
        now = time.time()
        for n, (age, server) in enumerate((age, server) for age in range(0, 9 * DAY, 7 * HOUR) for server in "ab"):
            about = dict(
                draft_version=version if age < 2 * DAY else root.id, tenant=f"tenant {n % 3}", positions=PLACES,
                route=("default", "sql")[n % 2], accepted=19 + n % 7, rejections=5 + n % 4,
                finished_at=now - age - 10 * MINUTE,
            )  # fmt: skip
            store.outcomes.add([outcome(**about)], server)
            store.outcomes.add([outcome(**about, controller="vllm")], "gpu-1")
        yield store


def train(store: Store, root: str) -> str:
    """A run that was rejected and one that published; the version."""
    store.samples.add([samples(n, draft_version=root) for n in range(9)])
    evidence = {"before": 0.5, "after": 0.625, "difference": 0.125, "requests": 8}
    for state in (RunState.REJECTED, RunState.PUBLISHED):
        run = store.runs.claim("default", "w", ClaimTerms(1, 0, 60, max_requests=4))
        assert run is not None
        facts = {"positions": 30, "steps": 3, "seconds": 0.5, "evidence": evidence}
        if state is RunState.REJECTED:
            store.runs.finish(run, state, result=facts)
    child = store.versions.stage("default", root, "full", lambda at: write_model(at, 1.0), run_id=run.id, provenance={})
    store.versions.publish(child.id, evidence, run=run)
    store.runs.finish(run, RunState.PUBLISHED, child.id, result=facts)
    return child.id


def command(store: Store, words: str, version: str) -> list[dict[str, Any]]:
    surroundings = {"OSD_STORAGE__DIRECTORY": str(store.directory), "OSD_STORAGE__URL": secret_url(store)}
    done = CliRunner().invoke(app, [*words.replace("VERSION", version).split(), "--json"], env=surroundings)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[0])
    rows: list[dict[str, Any]] = found["drafts"] if isinstance(found, dict) else found
    return rows


def secret_url(store: Store) -> str:
    return store.db.engine.url.render_as_string(hide_password=False)


def test_there_are_ten() -> None:
    assert len(QUESTIONS) == 10 and PAGE.count("```sql") == 10


@pytest.mark.parametrize(("question", "query", "words"), QUESTIONS, ids=[one[0] for one in QUESTIONS])
def test_a_query_says_what_the_command_says(store: Store, question: str, query: str, words: str) -> None:
    version = store.versions.current("default").id
    told = {"since": floor_to(time.time() - DAY, MINUTE), "version": version}
    with store.db.engine.connect() as connection:
        given = {name: value for name, value in told.items() if f":{name}" in query}
        found = [dict(row) for row in connection.execute(text(query), given).mappings()]
    said = command(store, words, version)
    shared = [name for name in found[0] if name in said[0]]
    assert len(shared) >= 3 and set(found[0]) - set(shared) <= {"saved"}
    said = [one for one in said if one.get("route") == found[0]["route"]] if "change" in words else said
    assert len(found) == len(said) > 0
    for one, other in zip(comparable(found, shared), comparable(said, shared), strict=True):
        assert one == pytest.approx(other)
    assert all(row["saved"] == row["emitted"] - row["rounds"] > 0 for row in found if "saved" in row)


def comparable(rows: list[dict[str, Any]], names: list[str]) -> list[tuple[Any, ...]]:
    """Rows in an order of their own: words first, numbers as floats."""
    words = {name for row in rows for name in names if isinstance(row[name], str)}
    key = sorted(names, key=lambda name: name not in words)
    found = [
        tuple(row[name] if name in words or row[name] is None else float(row[name]) for name in key) for row in rows
    ]
    return sorted(found, key=str)


MACROS = {
    r"\$__unixEpochFilter\((\w+)\)": r"\1 >= 0 AND \1 <= 4000000000",
    r"\$__unixEpochGroup\((\w+), .*?\)": r"floor(\1 / 300) * 300",
    r"\$route": "'default', 'sql'",
}  # fmt: skip
"""What Grafana makes of its macros, for five minutes a point and two routes that were chosen."""


def queries() -> list[str]:
    board = json.loads((DOCS / "monitoring" / "grafana-postgresql.json").read_text("utf-8"))
    panels = [target["rawSql"] for panel in board["panels"] for target in panel["targets"]]
    return [*panels, board["annotations"]["list"][0]["rawQuery"], board["templating"]["list"][1]["query"]]


def test_every_query_of_the_dashboard_finds_rows(store: Store) -> None:
    if store.db.dialect != "postgresql":
        pytest.skip("Grafana asks PostgreSQL")
    for query in queries():
        for macro, meaning in MACROS.items():
            query = re.sub(macro, meaning, query)
        with store.db.engine.connect() as connection:
            rows = connection.execute(text(query)).mappings().all()
        assert rows and any(value is not None for row in rows for value in row.values()), query
        if " AS value" in query:
            assert {"time", "metric", "value"} == {*rows[0]} and isinstance(rows[0]["metric"], str), query


def test_the_dashboard_is_the_twin_of_the_other() -> None:
    """What Prometheus' has of routes, versions and runs; panels have places of their own."""
    board = json.loads((DOCS / "monitoring" / "grafana-postgresql.json").read_text("utf-8"))
    cells = [
        (x, y) for panel in board["panels"] for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]  # fmt: skip
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    other = json.loads((DOCS / "monitoring" / "grafana.json").read_text("utf-8"))
    shared = {panel["title"] for panel in board["panels"]} & {panel["title"] for panel in other["panels"]}
    assert len(shared) >= 3
