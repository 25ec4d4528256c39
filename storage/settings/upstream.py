"""The replicas that `osd serve --upstream` passes requests on to: ``[upstream]``."""

from __future__ import annotations

from pydantic import Field

from storage.settings.section import Section


class UpstreamSettings(Section):
    replicas: tuple[str, ...] = ()
    """Servers that answer in place of an engine of our own: URL, DRAFT=URL, or `engines` for those of `osd engines
    add`. All serve the same target. Empty: our own engine answers."""
    api_key: str | None = None
    """Where the API key is that the replicas ask for, as env:VARIABLE or file:PATH; None: they ask for none. Clients'
    own keys are never sent to them."""
    tenant_header: str = Field(default="X-OSD-Tenant", pattern=r"^[A-Za-z][A-Za-z0-9-]*$")
    """Header that tells replicas the tenant (vLLM's plugin reads the one of OSD_VLLM_TENANT_HEADER)."""
    check_seconds: float = Field(default=2.0, gt=0)
    """How often each replica is asked whether it is well, and the store which engines there are."""
    connect_seconds: float = Field(default=3.0, gt=0)
    """How long a replica may take to accept a connection, and to say that it is well."""
