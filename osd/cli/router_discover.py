"""`osd router discover`, `proposals`, `apply`, `decline`, `split`, `merge`: routes found in the traffic.

The trainer, in a process of its own, does what needs models; it prints JSON, and its progress on stderr.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.context import CommandContext
from osd.cli.options import Confirmation
from osd.cli.out import NOTHING, NUMBER, Output, columns, counted, note, print_json, print_table
from osd.cli.router import RouteArgument, app, tell
from osd.cli.trainer import ask_trainer
from router.clusters import LEAST
from storage.errors import BadInput
from storage.routes.proposals import ProposalKind, ProposalState, RouteProposal

if TYPE_CHECKING:
    from storage.store import Store

COLUMNS = columns(
    {"id": NUMBER},
    id="no.", at="when", kind="what", subject="route", requests="requests", share="share", before="α now",
    after="α alone", apart="won by\nsplitting", apart_error="give or\ntake", words="words",
)  # fmt: skip
Requests = Annotated[int, typer.Option(help="Newest requests of a draft that are looked at.", min=1, metavar="N")]
NumberArgument = Annotated[int, typer.Argument(help="A proposal, as `osd router proposals` numbers it.", metavar="NO")]


@app.command()
def discover(
    here: CommandContext,
    output: Output,
    route: Annotated[list[str] | None, typer.Option(help="This route's traffic only; may be repeated.")] = None,
    requests: Requests = 800,
) -> None:
    """Look for routes in the newest traffic: clusters that would gain from a draft of their own, drafts that no longer
    differ, traffic that moved.

    A cluster is proposed where the gate would publish its candidate, and where this wins over a draft that learned from
    everything by more than its error: the lower limit of the gain is above gate.min_gain, at gate.confidence for all
    clusters together.

    A candidate is trained for each cluster, so this takes a while; nothing is changed but the list of proposals.
    """
    found, kept = _found_in(here, route or (), requests)
    with here.store() as store:
        empty = f"Nothing to propose: {_why(kept)}"
        _show(store, [store.proposals.get(one["id"]) for one in found], output, empty)


def _found_in(here: CommandContext, routes: Sequence[str], requests: int) -> tuple[list[dict[str, Any]], int]:
    """Return what the trainer finds in the traffic of these routes, else of all, and how many of its requests are kept:
    without any it is not asked, for it takes seconds to start. Raises UnknownRoute."""
    with here.store() as store:
        names = [store.routes.get(name).name for name in routes]
        kept = sum(row.requests for row in store.samples.stats() if not names or row.route in names)
    wanted = [part for name in names for part in ("--route", name)]
    return found_by(here, "discover", *wanted, "--requests", str(requests)) if kept else [], kept


def _why(kept: int) -> str:
    """Explain why there is no proposal from so many stored requests."""
    if kept < 2 * LEAST:
        return f"it takes {2 * LEAST} requests at least, and {kept} of this traffic were kept."
    return "no kind of the newest requests would win by a draft of its own by more than its error."


@app.command()
def proposals(
    here: CommandContext,
    output: Output,
    everything: Annotated[bool, typer.Option("--all", help="Settled ones too.")] = False,
) -> None:
    """List what `osd router discover` found and nobody has settled."""
    with here.store() as store:
        found = store.proposals.list(None if everything else ProposalState.OPEN)
        _show(store, found, output, "No proposal is open.")


@app.command("apply")
def apply_proposal(
    here: CommandContext,
    number: NumberArgument,
    consent: Confirmation,
    output: Output,
    name: Annotated[str | None, typer.Option(help="Another name for the new route.", metavar="NAME")] = None,
) -> None:
    """Apply a proposal.

    A split makes a draft from the candidate and a route that takes prompts of its kind; prompts of the traffic are kept
    as examples of the topic. A merge leads both routes to one draft.
    """
    with here.store() as store:
        proposal = store.proposals.get(number)
    consent.ask(f"{_question(proposal)}?")
    done = found_by(here, "apply", str(number), *(["--name", name] if name else []))
    output.words(done[0], f"Proposal {number} is applied.")


@app.command()
def decline(here: CommandContext, number: NumberArgument, output: Output) -> None:
    """Settle a proposal without doing anything."""
    done = found_by(here, "decline", str(number))
    output.words(done[0], f"Proposal {number} is declined.")


@app.command()
def split(
    here: CommandContext, route: RouteArgument, consent: Confirmation, output: Output, requests: Requests = 800
) -> None:
    """Find the kinds of traffic within a route, and give each that would gain by it a route and a draft of its own."""
    found, _ = _found_in(here, [route], requests)
    splits = [one for one in found if one["kind"] == "split" and one["state"] == "open"]
    if not splits:
        raise BadInput(reason=f"The traffic of {route} is of one kind, or too little: there is nothing to split.")
    names = ", ".join(one["name"] for one in splits)
    consent.ask(f"Make {counted(len(splits), 'route')} ({names}) from the traffic of {route}?")
    done = [found_by(here, "apply", str(one["id"]))[0] for one in splits]
    output.words(done, f"{route} is split; new: {', '.join(one['route'] for one in done)}.")


@app.command()
def merge(
    here: CommandContext,
    route: RouteArgument,
    into: Annotated[str, typer.Argument(help="The route whose draft serves both from now on.", metavar="INTO")],
    consent: Confirmation,
    output: Output,
) -> None:
    """Point a route to another one's draft. Both routes stay, so that their statistics remain separate."""
    with here.store() as store:
        old, other = store.routes.get(route), store.routes.get(into)
        if old.draft == other.draft:
            raise BadInput(reason=f"{route} and {into} are served by one draft already, {old.draft}.")
        consent.ask(f"Let the draft {other.draft} serve {route} instead of {old.draft}?")
        changed = store.routes.change(replace(old, draft=other.draft))
    tell(changed, f"The route {route} is served by the draft {changed.draft}.", output)


def found_by(here: CommandContext, action: str, *words: str) -> list[dict[str, Any]]:
    """Return what the trainer answers; its errors and its exit status become this command's."""
    done = ask_trainer(here, action, *words)
    if done.returncode:
        raise typer.Exit(done.returncode)
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def _show(store: Store, found: Sequence[RouteProposal], output: Output, empty: str) -> None:
    """Print proposals, and what can be done about open ones that say that traffic moved."""
    rows = [_row(proposal) | _advice(store, proposal) for proposal in found]
    if output.as_json:
        print_json(rows)
        return
    print_table(rows, COLUMNS, empty=empty)
    for row in rows:
        if "advice" in row:
            note(f"{row['id']}: {row['advice']}")


def _advice(store: Store, proposal: RouteProposal) -> dict[str, str]:
    from storage.insights.change import drift_advice

    moved = proposal.kind is ProposalKind.DRIFT and proposal.state is ProposalState.OPEN
    return {"advice": drift_advice(store, proposal)} if moved else {}


def _row(proposal: RouteProposal) -> dict[str, Any]:
    """Return a proposal's facts without its lists of requests."""
    facts = {key: value for key, value in proposal.facts.items() if key not in ("members", "examples")}
    evidence: Mapping[str, Any] = facts.get("evidence", {})
    subject = facts.get("name") or " + ".join(facts.get("routes", ())) or NOTHING
    measured = {key: evidence.get(key) for key in ("before", "after", "apart", "apart_error")}
    return {
        "id": proposal.id, "at": proposal.at, "kind": proposal.kind.value, "state": proposal.state.value,
        "subject": subject, **measured, **facts,
    }  # fmt: skip


def _question(proposal: RouteProposal) -> str:
    routes = ", ".join(proposal.facts.get("routes", ()))
    if proposal.kind.value == "split":
        return f"Give the traffic {proposal.facts['name']!r} of {routes} a route and a draft of its own"
    return f"Let one draft, {proposal.facts.get('keep')}, serve {routes}"
