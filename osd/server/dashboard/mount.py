"""Mounting of the dashboard on the admin port's application."""

from __future__ import annotations

from fastapi import FastAPI

from osd.server.dashboard.facts import facts
from osd.server.dashboard.inside import Inside
from osd.server.dashboard.page import page
from osd.server.process.host import Host


def add_dashboard(app: FastAPI, host: Host) -> None:
    """Add the page, its data, and the view of the newest requests where that is allowed."""
    inside = Inside(host.tokenizer, lambda: may_inspect(host), host.store.tenants.learnable)
    inside.attach(host.engine)
    app.state.inside = inside
    app.include_router(facts)
    app.include_router(page)


def may_inspect(host: Host) -> bool:
    """Return whether texts may be held and shown; see ``server.inspect``."""
    settings, ring = host.settings, host.ring
    if settings.server.inspect is not None:
        return settings.server.inspect
    return settings.privacy.learn and settings.privacy.redact is None and ring.local_only and not ring.needed
