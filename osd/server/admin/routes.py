"""The admin routes, on a port of their own: a thin layer over the services that the commands use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from osd.server.admin.dashboard import StoreIn, facts, page
from osd.server.admin.snapshots import AdminHost, LookInside, Snapshots
from osd.server.http.app import ERRORS, bare_app
from storage.access.processes import Trainer
from storage.insights.roster import roster
from storage.insights.service import Answers
from storage.outcomes.outcome_window import Window
from storage.records import DEFAULT_DRAFT
from storage.sql.drivers import plain
from storage.sql.spans import DAY

admin = APIRouter(prefix="/admin", responses=ERRORS)
SCOPES = {"/admin/": "admin", "/metrics": "metrics"}
Rows = list[dict[str, Any]]


class Promotion(BaseModel):
    """The body of POST /admin/drafts/promote and pin."""

    version: str
    """A version's id or name."""


class Rollback(BaseModel):
    """The body of POST /admin/drafts/rollback."""

    draft: str = DEFAULT_DRAFT
    to: str | None = None
    """The version to return to; None means the parent."""
    reason: str = Field(default="asked for over HTTP", max_length=500)


def make_admin(host: AdminHost, snapshots: Snapshots, inside: LookInside, *more: APIRouter) -> FastAPI:
    """Create the application of the admin port, with ``more`` routes where what serves has some of its own."""
    return bare_app("osd admin", host, SCOPES, admin, facts, page, *more, snapshots=snapshots, inside=inside)


def _host(http: Request) -> AdminHost:
    return cast(AdminHost, http.app.state.service)


def _window(
    since: float | None = None, until: float | None = None, route: str | None = None, draft: str | None = None,
    version: str | None = None,
) -> Window:  # fmt: skip
    return Window(since, until, route=route, draft=draft, version=version)


In = Annotated[Window, Depends(_window)]
By = Annotated[str, Query(description="route, version, tenant, …, separated by commas")]


@admin.get("/drafts")
def drafts(store: StoreIn, draft: str | None = None, everything: Annotated[bool, Query(alias="all")] = False) -> Rows:
    """List the versions of every draft, oldest first; with ``all`` those whose weights were deleted, too."""
    found, holds, names = (
        store.versions.list(draft, deleted=everything),
        store.decisions.holds(),
        store.decisions.aliases(),
    )
    current = {store.versions.current(name).id for name in {one.draft for one in found}}
    return [
        {
            **_plain(one), "current": one.id in current, "names": names.get(one.id, []),
            "hold": _plain(holds[one.draft]) if one.draft in holds and holds[one.draft].version == one.id else None,
        }
        for one in found
    ]  # fmt: skip


@admin.post("/drafts/promote")
def promote(store: StoreIn, body: Promotion) -> dict[str, Any]:
    """Make a version its draft's current one, and freeze the draft there; servers swap it in between two steps."""
    return dict(_plain(store.decisions.promote(body.version)))


@admin.post("/drafts/rollback")
def rollback(store: StoreIn, body: Rollback) -> dict[str, Any]:
    """Take back a draft's current version, and freeze the draft at what is current then; return that."""
    return dict(_plain(store.decisions.rollback(body.draft, body.reason, to=body.to)))


class Held(BaseModel):
    """The body of POST /admin/drafts/freeze and resume."""

    draft: str = DEFAULT_DRAFT
    reason: str = Field(default="asked for over HTTP", max_length=500)
    """Kept with the freeze."""


@admin.post("/drafts/pin")
def pin(store: StoreIn, body: Promotion) -> dict[str, Any]:
    """Make a version its draft's current one and hold the draft there: nothing replaces it until it is resumed."""
    return dict(_plain(store.decisions.pin(body.version, "pinned over HTTP")))


@admin.post("/drafts/freeze")
def freeze(store: StoreIn, body: Held) -> dict[str, Any]:
    """Hold a draft at what serves: nothing replaces it until it is resumed. Return the hold."""
    return dict(_plain(store.decisions.freeze(body.draft, body.reason)))


@admin.post("/drafts/resume")
def resume(store: StoreIn, body: Held) -> dict[str, Any]:
    """Let a held draft learn again; return the hold that was lifted, empty where there was none."""
    hold = store.decisions.resume(body.draft)
    return dict(_plain(hold)) if hold else {}


@admin.get("/servers")
def servers(store: StoreIn) -> dict[str, Rows]:
    """List serving processes, the versions that servers last reported, trainers, and training runs under way."""
    names = sorted({version.draft for version in store.versions.list()})
    serving = [
        {"worker": worker, "draft": name, "version": version}
        for name in names for worker, version in store.versions.serving(name).items()
    ]  # fmt: skip
    training = [_plain(run) for run in store.runs.list(limit=50) if run.finished_at is None]
    alive, trainers = roster(store), [_trainer(one) for one in store.trainers.list()]
    return {"servers": alive, "serving": serving, "trainers": trainers, "training": training}


class Drain(BaseModel):
    """The body of POST /admin/servers/drain."""

    server: str
    """The server's name, as in GET /admin/servers."""
    undo: bool = False


@admin.post("/servers/drain")
def drain(store: StoreIn, body: Drain) -> dict[str, Any]:
    """Drain a serving process, or end its draining."""
    asked = store.servers.ask_drain(body.server, undo=body.undo)
    return dict(plain({"server": asked.id, "state": asked.state.value, "drains": asked.drains}))


class TrainerName(BaseModel):
    """The body of POST /admin/trainers/pause, resume and cancel."""

    trainer: str
    """The trainer's name, as in GET /admin/servers, or how it begins."""


@admin.post("/trainers/pause")
def pause(store: StoreIn, body: TrainerName) -> dict[str, Any]:
    """Let a trainer wait: no run begins, and one under way waits."""
    return _trainer(store.trainers.pause(body.trainer))


@admin.post("/trainers/resume")
def go_on(store: StoreIn, body: TrainerName) -> dict[str, Any]:
    """Let a paused trainer go on."""
    return _trainer(store.trainers.pause(body.trainer, undo=True))


@admin.post("/trainers/cancel")
def cancel(store: StoreIn, body: TrainerName) -> dict[str, Any]:
    """Give up the run under way of a trainer."""
    return _trainer(store.trainers.cancel(body.trainer))


def _trainer(trainer: Trainer) -> dict[str, Any]:
    return {**_plain(trainer), "state": trainer.state.value}


QUESTIONS: dict[str, Callable[[Answers, Window, list[str]], Any]] = {
    "acceptance": lambda answers, window, by: answers.acceptance(window, by),
    "positions": lambda answers, window, by: answers.positions(window, by),
    "rejections": lambda answers, window, by: answers.rejections(window),
    "runs": lambda answers, window, by: answers.runs(window),
    "gain": lambda answers, window, by: answers.cost(window),
}


def _question(name: str) -> Callable[..., Any]:
    def answer(store: StoreIn, window: In, by: By = "") -> Any:
        groups = [group for group in by.split(",") if group]
        return _plain(QUESTIONS[name](Answers(store), window, groups))

    answer.__doc__ = f"The same as `osd stats {name}`. Times are Unix seconds."
    return answer


for _name in QUESTIONS:
    admin.add_api_route(f"/stats/{_name}", _question(_name), name=_name)


@admin.get("/stats/change")
def change(store: StoreIn, version: str, window: Annotated[float, Query(gt=0)] = DAY) -> Any:
    """Compare acceptance before and after a version, ``window`` seconds on either side."""
    return _plain(Answers(store).change(version, window=window))


def _plain(found: Any) -> Any:
    """Convert records to JSON types."""
    if isinstance(found, (list, tuple)):
        return [_plain(one) for one in found]
    if hasattr(found, "as_dict"):
        return plain(found.as_dict())
    return plain(asdict(found)) if is_dataclass(found) and not isinstance(found, type) else plain(found)


@admin.get("/events", response_class=StreamingResponse)
async def events(http: Request) -> StreamingResponse:
    """Stream a snapshot once a second, as server-sent events."""
    return StreamingResponse(_events(http), media_type="text/event-stream")


async def _events(http: Request) -> AsyncIterator[str]:
    snapshots: Snapshots = http.app.state.snapshots
    host = _host(http)
    while host.ready and not host.ring.check(http.state.caller) and not await http.is_disconnected():
        snapshot = await run_in_threadpool(snapshots.take)
        yield f"event: snapshot\ndata: {json.dumps(plain(snapshot), ensure_ascii=False)}\n\n"
        await asyncio.sleep(snapshots.seconds)
