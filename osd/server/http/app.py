"""The API's application: routes and middleware."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from osd.server.exposition import metrics
from osd.server.http.api import api
from osd.server.http.bare_app import bare_app
from osd.server.http.guard import Guard
from osd.server.process.service import Service

SCOPES = {"/v1/": "infer", "/tokenize": "infer", "/detokenize": "infer", "/metrics": "metrics"}


def make_app(service: Service) -> FastAPI:
    """Create the application of the API's port."""
    app = bare_app("osd", service)
    app.include_router(api)
    app.include_router(metrics)
    limit = service.settings.server.max_body_bytes
    app.add_middleware(Guard, ring=service.ring, meters=service.meters, scopes=SCOPES, limit=limit)
    if origins := service.settings.server.cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
    return app
