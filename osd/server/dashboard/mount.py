"""Mounting of the dashboard on the admin port's application."""

from __future__ import annotations

from fastapi import FastAPI

from osd.server.admin_host import LookInside
from osd.server.dashboard.facts import facts
from osd.server.dashboard.page import page
from osd.server.http.ring import KeyRing
from storage.settings import Settings


def add_dashboard(app: FastAPI, inside: LookInside) -> None:
    """Add the page, its data, and the view of the newest requests where that is allowed."""
    app.state.inside = inside
    app.include_router(facts)
    app.include_router(page)


def may_inspect(settings: Settings, ring: KeyRing) -> bool:
    """Return whether texts may be held and shown; see ``server.inspect``."""
    if settings.server.inspect is not None:
        return settings.server.inspect
    return settings.privacy.learn and settings.privacy.redact is None and ring.local_only and not ring.needed
