"""The page and its assets, and plotly.js from its Python package.

None of it is secret, so it needs no key; its data comes from the admin routes, which do. The content security policy
lets the browser load from, and connect to, this server alone.
"""

from __future__ import annotations

import gzip
import secrets
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

page = APIRouter(include_in_schema=False)
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PLOTLY = "/dashboard/plotly.min.js"


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
