"""The page's data beside the admin routes. Prompts appear in `inside` alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException

from osd.server.admin_host import AdminHost, LookInside
from storage.insights.drift_advice import drift_advice
from storage.insights.payback import pay_backs
from storage.insights.service import Answers
from storage.insights.timeline import timeline
from storage.outcomes.outcome_window import Window
from storage.records import TrainingRun, now
from storage.routes.proposals import ProposalKind, ProposalState, RouteProposal
from storage.run_reason import BEGAN
from storage.sql.drivers import plain
from storage.sql.spans import DAY
from storage.store import Store

facts = APIRouter(prefix="/admin/dashboard")
Seconds = Annotated[float, Query(ge=60, le=400 * DAY)]
TEXT = ("members", "examples")
"""Facts of proposals that identify requests or contain their text."""


def _store(http: Request) -> Store:
    host: AdminHost = http.app.state.service
    return host.store


def _inside(http: Request) -> LookInside:
    found: LookInside = http.app.state.inside
    return found


@facts.get("/timeline")
def acceptance(http: Request, seconds: Seconds = 900) -> dict[str, Any]:
    """Return acceptance by route and time, with marks."""
    at = now()
    return dict(plain(asdict(timeline(_store(http).db, at - seconds, at))))


@facts.get("/runs")
def runs(http: Request, limit: Annotated[int, Query(ge=1, le=200)] = 40) -> list[dict[str, Any]]:
    """Return training runs with their losses, newest first."""
    return [_run(run) for run in _store(http).runs.list(limit=limit)]


def _run(run: TrainingRun) -> dict[str, Any]:
    result = run.result
    names = ("steps", "positions", "loss_first", "loss_last", "loss_curve", "reason")
    gain = (result.get("evidence") or {}).get("difference")
    found = {
        "run": run.id, "draft": run.draft, "state": run.state.value, "started_at": run.started_at,
        "finished_at": run.finished_at, "requests": len(run.request_ids), "version": run.version, "gain": gain,
        "began": run.settings.get(BEGAN, {}).get("words"),
    }  # fmt: skip
    return dict(plain(found | {name: result.get(name) for name in names}))


@facts.get("/routes")
def routes(http: Request, seconds: Seconds = DAY) -> dict[str, Any]:
    """Return routes with their traffic, and the trainer's proposals about them."""
    store = _store(http)
    traffic = {row.by["route"]: row.as_dict() for row in Answers(store).acceptance(Window(now() - seconds), ["route"])}
    found = [
        {
            "name": route.name,
            "draft": route.draft,
            "candidates": list(route.candidates),
            "traffic": traffic.get(route.name),
        }
        for route in store.routes.list()
    ]
    known = {route["name"] for route in found}
    found += [{"name": name, "draft": None, "candidates": [], "traffic": row} for name, row in traffic.items()
              if name not in known]  # fmt: skip
    proposals = [_proposal(store, one) for one in store.proposals.list(limit=20)]
    return dict(plain({"routes": found, "proposals": proposals}))


def _proposal(store: Store, proposal: RouteProposal) -> dict[str, Any]:
    kept = {name: value for name, value in proposal.facts.items() if name not in TEXT}
    if proposal.kind is ProposalKind.DRIFT and proposal.state is ProposalState.OPEN:
        kept["advice"] = drift_advice(store, proposal)
    return {"id": proposal.id, "at": proposal.at, "kind": proposal.kind.value, "state": proposal.state.value, **kept}


@facts.get("/gain")
def gain(http: Request) -> dict[str, Any]:
    """Return seconds saved − seconds trained, a row a draft, since the beginning, and when training pays for itself."""
    answer = Answers(_store(http)).cost()
    how = answer.plain_round and asdict(answer.plain_round)
    paid = [asdict(row) | {"pays_in_seconds": row.pays_in_seconds} for row in pay_backs(_store(http))]
    return dict(plain({"rows": [row.as_dict() for row in answer.rows], "plain_round": how, "pay_back": paid}))


@facts.get("/inside")
def inside(http: Request) -> dict[str, Any]:
    """Return the newest requests whose text may be shown."""
    ring = _inside(http)
    return {"allowed": ring.allowed, "requests": ring.newest()}


@facts.get("/inside/{request_id}")
def look_inside(http: Request, request_id: str) -> dict[str, Any]:
    """Return one request, token by token."""
    found = _inside(http).show(request_id)
    if found is None:
        raise HTTPException(404, "That request is no longer held, or its text may not be shown.")
    return found
