"""`osd router list`, `show`, `history`, `explain`, `eval`: the routes, their changes, and how they treat prompts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.audit import print_trail
from osd.cli.context import CommandContext
from osd.cli.options import Newest
from osd.cli.out import Format, Output, columns, count, note, print_facts, print_json, print_table, share, when
from osd.cli.router import RouteArgument, app
from storage.records import DEFAULT_TENANT, Request, Route

if TYPE_CHECKING:
    from osd.prompts import Prompt
    from router.base import Decision, Router
    from storage.store import Store

Confusion = dict[str, dict[str, int]]

COLUMNS = columns(
    {"matches": Format(lambda matches: matching(matches))},
    name="route", draft="draft", candidates="candidates", matches="matches", pins="pinned", requests="requests",
    alpha="α", waiting="waiting",
)  # fmt: skip


DRAFTS = columns(draft="draft", version="current version", kind="kind", requests="requests here", alpha="α here")
ESTIMATES = columns(
    draft="draft", chosen="chosen", alpha="α", tokens_per_s="tokens/s", requests="from requests", measured="measured",
)  # fmt: skip
CONTEST = columns(route="route", holds="matches", why="why")
SCORES = columns(true="true", prompts="prompts", right="right", taken_for="else taken for", alpha="α so far")


@app.command("list")
def list_routes(here: CommandContext, output: Output) -> None:
    """List the routes: who serves what, and how well."""
    with here.store() as store:
        rows = route_rows(store, store.routes.list())
    output.rows(rows, COLUMNS)


@app.command()
def show(here: CommandContext, route: RouteArgument, output: Output) -> None:
    """Show one route: its drafts, their versions and acceptance, what is kept, its topics' examples, its history."""
    with here.store() as store:
        facts = describe(store, store.routes.get(route))
    if output.as_json:
        print_json(facts)
        return
    drafts, changes = facts.pop("drafts"), facts.pop("history")
    facts |= {"matches": matching(facts["matches"]), "created_at": facts["created_at"] and when(facts["created_at"])}
    facts["examples"] = ", ".join(f"{topic}: {number}" for topic, number in facts["examples"].items())
    print_facts({key: ", ".join(value) if isinstance(value, (list, tuple)) else value for key, value in facts.items()})
    print_table(drafts, DRAFTS, title="\nDrafts")
    print_trail(changes, as_json=False, title="Changes", empty="It was never changed.")


@dataclass(frozen=True)
class ChangeFilter:
    """The changes that are shown."""

    route: Annotated[str, typer.Argument(metavar="ROUTE")] | None = None
    """This route only, former names included."""
    limit: Newest = 50


@app.command()
def history(here: CommandContext, wanted: ChangeFilter, output: Output) -> None:
    """Show the lines of `osd audit` about routes: who changed what and when, the newest first."""
    with here.store() as store:
        lines = store.routes.history(wanted.route, wanted.limit)
    print_trail(lines, as_json=output.as_json, empty="Nothing was changed yet.")


def route_rows(store: Store, routes: list[Route]) -> list[dict[str, Any]]:
    """Return rows for the table and for JSON."""
    pins, made = store.routes.pins(), store.routes.created()
    outcomes = {row.by["route"]: row for row in store.outcomes.acceptance(by=["route"])}
    kept = {row.route: row for row in store.samples.stats()}
    rows = []
    for route in routes:
        outcome, samples = outcomes.get(route.name), kept.get(route.name)
        rows.append({
            "name": route.name, "draft": route.draft, "candidates": list(route.candidates),
            "matches": dict(route.matches), "pins": sorted(t for t, name in pins.items() if name == route.name),
            "created_at": made[route.name], "requests": outcome.requests if outcome else 0,
            "alpha": outcome.alpha if outcome else None, "samples": samples.requests if samples else 0,
            "waiting": samples.waiting if samples else 0,
        })  # fmt: skip
    return rows


def describe(store: Store, route: Route) -> dict[str, Any]:
    """Return everything known about a route."""
    aliases = store.routes.plan().aliases
    taught = store.examples.counts()
    return {
        **route_rows(store, [route])[0],
        "former_names": sorted(name for name, now in aliases.items() if now == route.name),
        "examples": {topic: taught.get(topic, 0) for topic in route.matches.get("topic", ())},
        "drafts": [draft_row(store, route, draft) for draft in route.drafts],
        "history": [asdict(line) for line in store.routes.history(route.name, 10)],
    }


def draft_row(store: Store, route: Route, draft: str) -> dict[str, Any]:
    """Return one draft of a route, with its statistics there."""
    from storage.outcomes.outcome_window import Window

    did = store.outcomes.acceptance(window=Window(route=route.name, draft=draft))
    facts = {"draft": draft, "requests": did[0].requests if did else 0, "alpha": did[0].alpha if did else None}
    if (version := store.versions.find(draft)) is None:  # the default draft before its first server
        return facts | {"version": None, "kind": None, "options": {}}
    return facts | {"version": version.id, "kind": version.kind, "options": store.versions.options(draft)}


def matching(matches: Any) -> str:
    """Format a route's conditions on one line."""
    parts = [f"{key} {' | '.join(value) if isinstance(value, list) else value}" for key, value in matches.items()]
    return ", ".join(parts)


@dataclass(frozen=True)
class AskedAs:
    """Who asks, and how."""

    tenant: str = DEFAULT_TENANT
    """As if this tenant asked."""
    model: str = ""
    """As if the request asked for this model, of an adapter's name perhaps."""
    language: str | None = None
    """As if the request carried this language tag."""
    route: str | None = None
    """As if the request named this route."""


@app.command()
def explain(
    here: CommandContext,
    prompt: Annotated[str, typer.Argument(help="A prompt, as a user would send it.", metavar="PROMPT")],
    asking: AskedAs,
    output: Output,
) -> None:
    """Show which route and draft a prompt takes, and why: language, topic, confidence, and each draft's statistics.

    α and tokens per second are those measured on the route, else anywhere. A server that chooses among a route's
    drafts by the prompt (router.kind = auto) also weighs what it learned since it started.
    """
    request = Request((), text=prompt, **asdict(asking))
    with here.store() as store:
        decision, looked = look(here, store, request)
        facts = {
            "route": decision.name, "draft": decision.draft, "confidence": decision.confidence,
            "reason": decision.reason, **looked,
            "estimates": [estimate(store, decision, draft) for draft in decision.route.drafts],
        }  # fmt: skip
    if output.as_json:
        print_json(facts)
        return
    rows, contest = facts.pop("estimates"), facts.pop("routes", [])
    print_facts({key: share(value) if isinstance(value, float) else value for key, value in facts.items()})
    if contest:
        order = ", ".join(here.settings.router.precedence)
        print_table(contest, CONTEST, title=f"\nRoutes by more conditions, then {order} (router.precedence)")
    print_table(rows, ESTIMATES, title="\nDrafts")


@app.command("eval")
def evaluate(
    here: CommandContext,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE"),
        "JSON lines, plain or .gz: `prompt`, and `route` (or `domain`), `topic`, `language`, what is known.",
    ],
    output: Output,
) -> None:
    """Route every prompt of a file and compare with what the file says is true.

    `tenant` and `tag` (a language tag that the request would carry) are used where a line has them. Nothing is decoded.
    """
    with here.store() as store:
        router = router_for(here, store)
        report = judge((prompt.fields, router.route(asked(prompt))) for prompt in readable(file))
        alphas = {row.by["route"]: row.alpha for row in store.outcomes.acceptance(by=["route"])}
        report["alpha"] = {route.name: alphas.get(route.name) for route in store.routes.list()}
    if output.as_json:
        print_json(report)
        return
    for what in ("route", "topic", "language"):
        if part := report[what]:
            title = f"{what}: {share(part['accuracy'])} of {count(part['prompts'])} right"
            print_table(score_rows(part["confusion"], alphas if what == "route" else {}), SCORES, title=title)


def router_for(here: CommandContext, store: Store) -> Router:
    """Return a server's router that detects language and topic even where no rule uses them."""
    from router.live import builder

    return builder(store, here.settings.router, guess_all=True)(store.routes.plan())


def look(here: CommandContext, store: Store, request: Request) -> tuple[Decision, dict[str, Any]]:
    """Return the decision, and the detected language and topic, whether or not they decided."""
    from router.classifier import ClassifierRouter

    router = router_for(here, store)
    decision = router.route(request)
    if not isinstance(router, ClassifierRouter):
        return decision, {}
    traits = router.traits(request)
    return decision, {
        "language": traits.language.label, "language_confidence": traits.language.confidence,
        "topic": traits.topic.label, "topic_confidence": traits.topic.confidence,
        "routes": [asdict(each) for each in router.contest(request)],
    }  # fmt: skip


def estimate(store: Store, decision: Decision, draft: str) -> dict[str, Any]:
    """Return a draft's statistics on the route, else anywhere: α, and tokens over its share of drafting and verifying
    time."""
    from storage.outcomes.outcome_window import Window

    for measured, route in (("on this route", decision.name), ("anywhere", None)):
        if did := store.outcomes.acceptance(window=Window(route=route, draft=draft)):
            row = did[0]
            spent = row.draft_ms + row.verify_ms
            return {
                "draft": draft, "chosen": draft == decision.draft, "alpha": row.alpha,
                "tokens_per_s": 1e3 * row.emitted / spent if spent else None, "requests": row.requests,
                "measured": measured,
            }  # fmt: skip
    return {"draft": draft, "chosen": draft == decision.draft, "alpha": None, "tokens_per_s": None, "requests": 0,
            "measured": "not yet"}  # fmt: skip


def readable(file: Path) -> Iterable[Prompt]:
    """Yield a file's prompts, reporting invalid lines. Raises BadPromptFile when the file cannot be read."""
    from osd.prompts import read_prompts
    from storage.errors import BadPromptFile

    found = 0
    for prompt in read_prompts(file):
        if isinstance(prompt, BadPromptFile):
            note(str(prompt))
            continue
        found += 1
        yield prompt
    if not found:
        raise BadPromptFile(path=file, reason="there is no prompt in it")


def asked(prompt: Prompt) -> Request:
    """Make a request of a line, without the labels to compare with."""
    tenant, tag = prompt.fields.get("tenant"), prompt.fields.get("tag")
    return Request((), text=prompt.text, tenant=str(tenant or DEFAULT_TENANT), language=str(tag) if tag else None)


def judge(lines: Iterable[tuple[Mapping[str, Any], Decision]]) -> dict[str, Any]:
    """Return accuracy and confusion by route, topic and language, each over the lines that have its label."""
    tables: dict[str, Confusion] = {what: defaultdict(Counter) for what in ("route", "topic", "language")}
    sures, number = 0.0, 0
    for fields, decision in lines:
        number, sures = number + 1, sures + decision.confidence
        found = {"route": decision.name, "topic": decision.topic, "language": decision.language}
        truths = {**fields, "route": fields.get("route") or fields.get("domain")}
        for what, table in tables.items():
            if truth := truths.get(what):
                table[str(truth)][str(found[what] or "–")] += 1
    report: dict[str, Any] = {"prompts": number, "confidence": sures / number}
    return report | {what: scored(table) for what, table in tables.items()}


def scored(table: Confusion) -> dict[str, Any] | None:
    """Return a confusion with its accuracy; None where no line had the label."""
    prompts = sum(sum(row.values()) for row in table.values())
    if not prompts:
        return None
    right = sum(row.get(truth, 0) for truth, row in table.items())
    return {"prompts": prompts, "accuracy": right / prompts, "confusion": {t: dict(row) for t, row in table.items()}}


def score_rows(confusion: Confusion, alphas: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Return a row for each true label."""
    rows = []
    for truth, row in sorted(confusion.items()):
        others = sorted(((n, label) for label, n in row.items() if label != truth), reverse=True)
        prompts = sum(row.values())
        rows.append({
            "true": truth, "prompts": prompts, "right": row.get(truth, 0) / prompts,
            "taken_for": ", ".join(f"{label} {n}" for n, label in others[:3]), "alpha": alphas.get(truth),
        })  # fmt: skip
    return rows
