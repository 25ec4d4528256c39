"""How `osd attach` listens, and what it and its engines know each other by: ``[attach]``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from storage.settings.section import Section


class AttachSettings(Section):
    host: str = "127.0.0.1"
    """Address on which engines hand over answers. Other than this machine's own needs a certificate."""
    port: int = Field(default=8002, ge=0, le=65535)
    """Its port; 0 takes a free one."""
    certificate: Path | None = None
    """TLS certificate (PEM), with which engines on other machines hand over answers."""
    private_key: Path | None = None
    """Its private key."""
    token: str = "env:OSD_VLLM_TOKEN"
    """Where the token is that engines and osd know each other by, as env:VARIABLE or file:PATH."""
    api_key: str | None = None
    """Where the API key is that the engines ask of their clients, likewise; None: they ask none."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """How often engines are looked at: what they draft with, and whether they were started again."""
    lease_seconds: float = Field(default=15.0, gt=0)
    """Another `osd attach` attends to an engine once this one was not heard of for so long."""
    max_batch_mb: int = Field(default=64, ge=1)
    """The largest batch of answers that is taken, unpacked."""
    restart: str | None = None
    """Command that starts a vLLM without the plugin again with a newer draft; the draft's folder comes behind its
    arguments, OSD_ENGINE, OSD_URL and OSD_VERSION stand in its environment."""
    restart_seconds: float = Field(default=900.0, gt=0)
    """It must have ended after so long, and after as long again the engine must be up."""
    device: str = "cpu"
    """Where the draft runs that recovers refused tokens, and the target of attach.target: cpu, cuda or cuda:N."""
    target: str | None = None
    """Folder or hub name of the engines' target. It reads answers that came without the likeliest tokens (beyond
    OSD_VLLM_POSITIONS, with OSD_VLLM_TOP_K=0, or because a client asked for its own); None: those are counted only."""
