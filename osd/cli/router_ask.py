"""`osd router explain`, `eval`: how the present routes treat prompts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.context import CommandContext, surroundings
from osd.cli.options import JsonOption
from osd.cli.out import Column, count, note, print_facts, print_json, print_table, share
from osd.cli.router import app
from storage.records import DEFAULT_TENANT, Request

if TYPE_CHECKING:
    from osd.prompts import Prompt
    from router.base import Decision, Router
    from storage.store import Store

Confusion = dict[str, dict[str, int]]

ESTIMATES = (
    Column("draft", "draft", whole=True),
    Column("chosen", "chosen", lambda chosen: "●" if chosen else ""),
    Column("alpha", "α", share, right=True),
    Column("tokens_per_s", "tokens/s", count, right=True),
    Column("requests", "from requests", count, right=True),
    Column("measured", "measured", whole=True),
)
CONTEST = (
    Column("route", "route", whole=True),
    Column("holds", "matches", lambda holds: "●" if holds else ""),
    Column("why", "why"),
)
SCORES = (
    Column("true", "true", whole=True),
    Column("prompts", "prompts", count, right=True),
    Column("right", "right", share, right=True),
    Column("taken_for", "else taken for"),
    Column("alpha", "α so far", share, right=True),
)


@app.command()
def explain(
    ctx: typer.Context,
    prompt: Annotated[str, typer.Argument(help="A prompt, as a user would send it.", metavar="PROMPT")],
    tenant: Annotated[str, typer.Option(help="As if this tenant asked.")] = DEFAULT_TENANT,
    language: Annotated[str | None, typer.Option(help="As if the request carried this language tag.")] = None,
    route: Annotated[str | None, typer.Option(help="As if the request named this route.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which route and draft a prompt takes, and why: language, topic, confidence, and each draft's statistics.

    α and tokens per second are those measured on the route, else anywhere. A server that chooses among a route's
    drafts by the prompt (router.kind = auto) also weighs what it learned since it started.
    """
    request = Request((), text=prompt, tenant=tenant, language=language, route=route)
    with surroundings(ctx).store() as store:
        decision, looked = look(surroundings(ctx), store, request)
        facts = {
            "route": decision.name, "draft": decision.draft, "confidence": decision.confidence,
            "reason": decision.reason, **looked,
            "estimates": [estimate(store, decision, draft) for draft in decision.route.drafts],
        }  # fmt: skip
    if as_json:
        print_json(facts)
        return
    rows, contest = facts.pop("estimates"), facts.pop("routes", [])
    print_facts({key: share(value) if isinstance(value, float) else value for key, value in facts.items()})
    if contest:
        order = ", ".join(surroundings(ctx).settings.router.precedence)
        print_table(contest, CONTEST, title=f"\nRoutes by more conditions, then {order} (router.precedence)")
    print_table(rows, ESTIMATES, title="\nDrafts")


@app.command("eval")
def evaluate(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON lines, plain or .gz: `prompt`, and `route` (or `domain`), `topic`, `language`, what is known.",
            metavar="FILE",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Route every prompt of a file and compare with what the file says is true.

    `tenant` and `tag` (a language tag that the request would carry) are used where a line has them. Nothing is decoded.
    """
    with surroundings(ctx).store() as store:
        router = router_for(surroundings(ctx), store)
        report = judge((prompt.fields, router.route(asked(prompt))) for prompt in readable(file))
        alphas = {row.by["route"]: row.alpha for row in store.outcomes.acceptance(by=["route"])}
        report["alpha"] = {route.name: alphas.get(route.name) for route in store.routes.list()}
    if as_json:
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
    for measured, route in (("on this route", decision.name), ("anywhere", None)):
        if did := store.outcomes.acceptance(route=route, draft=draft):
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
