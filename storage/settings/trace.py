"""Traces for OpenTelemetry: ``[trace]``."""

from __future__ import annotations

from pydantic import Field

from storage.settings.section import Section


class TraceSettings(Section):
    endpoint: str | None = None
    """OpenTelemetry endpoint for traces, as http://HOST:4318/v1/traces; None traces nothing. Needs the extra `otel`."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Share of requests that are traced; training runs and versions all are."""
