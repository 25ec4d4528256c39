"""The dashboard on the admin port: the page with its files, and what the page asks for beside the admin routes.

The page is not secret, so it needs no key; its data comes from the admin routes, which do. The content security policy
lets the browser load from, and connect to, this server alone. Prompts appear in `inside` alone.
"""

from __future__ import annotations

import gzip
import secrets
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from osd.attached.overview import engine_rows
from osd.server.admin.snapshots import AdminHost, LookInside
from storage.insights.change import drift_advice
from storage.insights.runs import pay_backs
from storage.insights.service import Answers
from storage.insights.timeline import timeline
from storage.outcomes.outcome_window import Window
from storage.records import TrainingRun, now
from storage.routes.proposals import ProposalKind, ProposalState, RouteProposal
from storage.runs import BEGAN
from storage.sql.drivers import plain
from storage.sql.spans import DAY
from storage.store import Store

page = APIRouter(include_in_schema=False)
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PLOTLY = "/dashboard/plotly.min.js"
facts = APIRouter(prefix="/admin/dashboard")
Seconds = Annotated[float, Query(ge=60, le=400 * DAY)]
TEXT = ("members", "examples")
"""Facts of proposals that identify requests or contain their text."""


def store_of(http: Request) -> Store:
    """Return the store behind a route."""
    host: AdminHost = http.app.state.service
    return host.store


def _inside(http: Request) -> LookInside:
    return cast(LookInside, http.app.state.inside)


StoreIn = Annotated[Store, Depends(store_of)]
InsideIn = Annotated[LookInside, Depends(_inside)]


@page.get("/")
def home() -> RedirectResponse:
    """Redirect the admin port's root to the dashboard."""
    return RedirectResponse("/dashboard")


@page.get("/dashboard")
def dashboard() -> HTMLResponse:
    """Return the page."""
    nonce = secrets.token_urlsafe(16)
    html = (files(__package__) / "static" / "index.html").read_text(encoding="utf-8").replace("{{nonce}}", nonce)
    return HTMLResponse(html, headers={"Content-Security-Policy": POLICY.format(nonce=nonce)})


@page.get(PLOTLY)
def plotly(http: Request) -> Response:
    """Return plotly.js, 4.8 MB; a third of it where the browser takes gzip."""
    headers = {"Vary": "Accept-Encoding", "Cache-Control": "max-age=86400"}
    if "gzip" not in http.headers.get("accept-encoding", ""):
        return Response(_plotly(), media_type=TYPES[".js"], headers=headers)
    return Response(_packed(), media_type=TYPES[".js"], headers=headers | {"Content-Encoding": "gzip"})


@page.get("/dashboard/{name}")
def asset(name: str) -> Response:
    """Return one of the page's assets."""
    found = {file.name: file for file in (files(__package__) / "static").iterdir()}.get(name)
    kind = TYPES.get(name[name.rfind(".") :]) if found else None
    if found is None or kind is None:
        raise HTTPException(404, "There is no such file.")
    return Response(found.read_bytes(), media_type=kind)


def _plotly() -> bytes:
    return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()


@cache
def _packed() -> bytes:
    return gzip.compress(_plotly(), 6)


@facts.get("/timeline")
def acceptance(store: StoreIn, seconds: Seconds = 900) -> dict[str, Any]:
    """Return acceptance by route and time, with marks."""
    at = now()
    return dict(plain(asdict(timeline(store.db, at - seconds, at))))


@facts.get("/runs")
def runs(store: StoreIn, limit: Annotated[int, Query(ge=1, le=200)] = 40) -> list[dict[str, Any]]:
    """Return training runs with their losses, newest first, and how far those under way are."""
    doing = {(one.id, one.doing.get("draft")): one.doing for one in store.trainers.list()}
    found = store.runs.list(limit=limit)
    return [_run(run) | {"doing": None if run.finished_at else doing.get((run.holder, run.draft))} for run in found]


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
def routes(store: StoreIn, seconds: Seconds = DAY) -> dict[str, Any]:
    """Return routes with their traffic, and the trainer's proposals about them."""
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


@facts.get("/engines")
def engines(store: StoreIn) -> list[dict[str, Any]]:
    """Return the attached engines, as `osd engines list` has them."""
    return [dict(plain(row)) for row in engine_rows(store)]


@facts.get("/gain")
def gain(store: StoreIn) -> dict[str, Any]:
    """Return seconds saved − seconds trained, a row a draft, since the beginning, and when training pays for itself."""
    answer = Answers(store).cost()
    how = answer.plain_round and asdict(answer.plain_round)
    paid = [asdict(row) | {"pays_in_seconds": row.pays_in_seconds} for row in pay_backs(store)]
    return dict(plain({"rows": [row.as_dict() for row in answer.rows], "plain_round": how, "pay_back": paid}))


@facts.get("/inside")
def inside(held: InsideIn) -> dict[str, Any]:
    """Return the newest requests whose text may be shown."""
    return {"allowed": held.allowed, "requests": held.newest()}


@facts.get("/inside/{request_id}")
def look_inside(held: InsideIn, request_id: str) -> dict[str, Any]:
    """Return one request, token by token."""
    found = held.show(request_id)
    if found is None:
        raise HTTPException(404, "That request is no longer held, or its text may not be shown.")
    return found
