"""Views for monitoring in SQL (docs/monitoring-sql.md). Their columns stay; a later revision may add some at their end.

A revision that rebuilds a table under them drops the views first and makes them anew.
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

COUNTS = (
    "requests", "rounds", "drafted", "accepted", "rejections", "emitted", "prompt_tokens", "draft_ms", "verify_ms",
)  # fmt: skip
ENGINE = "CASE WHEN controller IN ('vllm', 'sglang') THEN worker ELSE 'osd' END"
SPANS = {"minute": 60, "hour": 3600, "day": 86400}
WEEK = 604800
"""Sums of weeks hold all that was served, in the fewest rows."""
MEASURES = {
    "alpha": ("accepted", "accepted + rejections"),
    "draft_acceptance_rate": ("accepted", "drafted"),
    "mean_acceptance_length": ("emitted", "rounds"),
    "discard_rate": ("drafted - accepted", "emitted"),
    "verification_rate": ("rounds", "emitted"),
}
"""The measures that `osd stats acceptance` gives, as ratios of sums."""
GATE = {"acceptance_before": "before", "acceptance_after": "after", "gain": "difference"}
"""What the gate's evidence is called here."""


def upgrade() -> None:
    for name, query in views(op.get_bind().dialect.name == "sqlite").items():
        op.execute(f"CREATE VIEW {name} AS {query}")


def downgrade() -> None:
    for name in views(False):
        op.execute(f"DROP VIEW {name}")


def views(sqlite: bool) -> dict[str, str]:
    """Return each view's query."""
    found = {f"v_acceptance_by_{name}": by_time(name, span, sqlite) for name, span in SPANS.items()}
    found["v_acceptance_by_route"] = in_all("route", {"route": "route"})
    found["v_acceptance_by_version"] = in_all("version", {"draft": "v.draft", "version": "draft_version"})
    found["v_acceptance_by_engine"] = in_all("engine", {"engine": ENGINE})
    found["v_acceptance_by_position"] = (
        "SELECT route, draft_version AS version, position, SUM(drafted) AS drafted, SUM(accepted) AS accepted, "
        f"SUM(refused) AS refused FROM position_counters WHERE span = {WEEK} GROUP BY route, draft_version, position"
    )
    found["v_tokens_saved"] = (
        f"SELECT start AS day, {at('start', sqlite)} AS time, route, v.draft AS draft, draft_version AS version, "
        "emitted, rounds, emitted - rounds AS saved, (draft_ms + verify_ms) / 1000.0 AS decode_seconds "
        f"FROM {COUNTED} WHERE span = {SPANS['day']}"
    )
    found["v_runs"] = runs(sqlite)
    found["v_versions"] = versions(sqlite)
    return found


COUNTED = "outcome_counters LEFT JOIN draft_versions v ON v.id = draft_version"


def by_time(name: str, span: int, sqlite: bool) -> str:
    """Return a row for each span of time, route, version, gamma rule, tenant and server."""
    keys = f"route, v.draft AS draft, draft_version AS version, controller, tenant, worker, {ENGINE} AS engine"
    when = f"start AS {name}, {at('start', sqlite)} AS time"
    return f"SELECT {when}, {keys}, {', '.join(COUNTS)}, {ratios()} FROM {COUNTED} WHERE span = {span}"


def in_all(name: str, keys: dict[str, str]) -> str:
    """Return a row for each group, over all that was served."""
    sums = ", ".join(f"SUM({count}) AS {count}" for count in COUNTS)
    grouped = f"SELECT {', '.join(f'{key} AS {name}' for name, key in keys.items())}, {sums} FROM {COUNTED}"
    inner = f"{grouped} WHERE span = {WEEK} GROUP BY {', '.join(keys.values())}"
    return f"SELECT {', '.join((*keys, *COUNTS))}, {ratios()} FROM ({inner}) AS by_{name}"


def ratios() -> str:
    """Return the measures' columns."""
    quotient = "CAST({} AS DOUBLE PRECISION) / NULLIF({}, 0) AS {}".format
    return ", ".join(quotient(*parts, measure) for measure, parts in MEASURES.items())


def at(seconds: str, sqlite: bool) -> str:
    """Return a moment as the database shows it, in UTC."""
    return f"datetime({seconds}, 'unixepoch')" if sqlite else f"to_timestamp({seconds})"


def number(column: str, path: str, sqlite: bool) -> str:
    """Return a number in a column of JSON."""
    found = f"json_extract({column}, '$.{path}')" if sqlite else f"{column} #>> '{{{path.replace('.', ',')}}}'"
    return f"CAST({found} AS DOUBLE PRECISION)"


def runs(sqlite: bool) -> str:
    """Return a row for each training run; an acceptance head's belong to the draft NAME.head."""
    facts = {name: name for name in ("positions", "steps", "loss_first", "loss_last")} | {"training_seconds": "seconds"}
    facts |= {name: f"evidence.{path}" for name, path in GATE.items()}
    found = ", ".join(f"{number('result', path, sqlite)} AS {name}" for name, path in facts.items())
    return (
        f"SELECT id AS run, draft, state, started_at, {at('started_at', sqlite)} AS time, parent, version, "
        f"finished_at - started_at AS seconds, json_array_length(request_ids) AS requests, {found} FROM training_runs"
    )


def versions(sqlite: bool) -> str:
    """Return a row for each version; ``began``: the first minute in which it served."""
    found = ", ".join(f"{number('evidence', path, sqlite)} AS {name}" for name, path in GATE.items())
    began = "(SELECT MIN(start) FROM outcome_counters WHERE draft_version = v.id AND span = 60)"
    return (
        "SELECT v.id AS version, v.draft AS draft, v.number AS number, v.kind AS kind, v.state AS state, "
        f"v.parent AS parent, v.run_id AS run, v.created_at AS created_at, {at('v.created_at', sqlite)} AS time, "
        f"CASE WHEN d.current_version = v.id THEN 1 ELSE 0 END AS is_current, {began} AS began, {found} "
        "FROM draft_versions v JOIN drafts d ON d.name = v.draft"
    )
