"""Makes the client of an engine by its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osd.attached.base import ServingEngine
from osd.attached.restart import RestartHook
from osd.attached.sglang.engine import KIND as SGLANG
from osd.attached.sglang.engine import SglangEngine
from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.plain import KIND as PROXIED
from osd.attached.vllm.plain import PlainVllm
from storage.access.engines import AttachedEngine
from storage.files.secrets import read_secret
from storage.settings import Settings

KINDS = ("vllm", PROXIED, SGLANG)


def connect(settings: Settings, url: str, facts: Mapping[str, Any]) -> ServingEngine:
    """Return the client of an engine. ``facts``: its ``kind``, and as far as they are known ``target``, ``draft`` and
    ``ranks``, as a probe found them or a person gave them.

    Raises BadInput, and BadSetting for a token that is not to be had.
    """
    named = settings.attach.api_key
    key = read_secret(named, "attach.api_key", "the engine's API key").strip() if named else None
    if facts.get("kind") == PROXIED:
        restart = settings.attach.restart
        hook = RestartHook(restart, settings.attach.restart_seconds) if restart else None
        return PlainVllm(url, key, facts.get("target"), facts.get("draft"), hook, facts.get("ranks") or ())
    if facts.get("kind") == SGLANG:
        return SglangEngine(url, key, facts.get("target"), facts.get("draft"))
    token = read_secret(settings.attach.token, "attach.token", "the token that vLLM was started with").strip()
    return VllmEngine(url, token, key)


def connect_attached(settings: Settings, engine: AttachedEngine) -> ServingEngine:
    """Return the client of an engine of the store. Raises as :func:`connect`."""
    return connect(settings, engine.url, engine.facts)
