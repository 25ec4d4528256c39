"""The API's application over replicas: what is passed on, and what the proxy says itself."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from osd.server.errors import UnknownModel
from osd.server.http.app import ERRORS, StatusReply, VersionReply, bare_app, let_pages_ask
from osd.server.upstream.call import OTHERS, READ_TEXT, SCOPES
from osd.server.upstream.forward import Forward, NoReplica
from osd.server.upstream.host import UpstreamHost
from storage.distribution import osd_version

routes = APIRouter(responses=ERRORS)
replicas = APIRouter(prefix="/admin", responses=ERRORS)
"""For the admin port."""


def make_upstream_app(host: UpstreamHost) -> FastAPI:
    """Create the application of the API's port."""
    app = bare_app("osd", host, SCOPES, routes)
    app.router.routes.extend(Route(path, Forward(host, path), methods=["POST"]) for path in (*READ_TEXT, *OTHERS))
    return let_pages_ask(app, host.settings.server.cors_origins)


def _host(http: Request) -> UpstreamHost:
    found: UpstreamHost = http.app.state.service
    return found


@routes.get("/v1/models")
async def models(http: Request) -> dict[str, Any]:
    """List the models that replicas serve, as they list them."""
    return {"object": "list", "data": list(_cards(_host(http)).values())}


@routes.get("/v1/models/{model:path}")
async def model(http: Request, model: str) -> dict[str, Any]:
    """Return a model by its name."""
    host = _host(http)
    if (card := _cards(host).get(model)) is None:
        raise UnknownModel(model=model, known=host.model, param="model")
    return card


def _cards(host: UpstreamHost) -> dict[str, dict[str, Any]]:
    if not (cards := host.pool.models):
        raise NoReplica(retry_after=host.retry_after)
    return cards


@routes.get("/health", response_model=StatusReply)
async def health() -> Response:
    """Return 200 as long as the proxy answers."""
    return JSONResponse({"status": "ok"})


@routes.get("/ready", response_model=StatusReply)
async def ready(http: Request) -> Response:
    """Return 200 as long as requests are taken: not while it drains, nor while no replica is up."""
    host = _host(http)
    if host.ready and host.pool.up:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "no replica" if host.ready else "draining"}, 503)


@replicas.get("/upstream")
async def list_replicas(http: Request) -> list[dict[str, Any]]:
    """List the replicas: the draft of each, whether it gets requests, what it has to do, and what is wrong with it."""
    return [replica.facts() for replica in _host(http).pool.replicas.values()]


@routes.get("/version")
async def show_version() -> VersionReply:
    """osd's version."""
    return VersionReply(version=osd_version())
