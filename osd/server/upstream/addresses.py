"""Which replicas there are: named one by one, or those of the store's engines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from storage.access.engines import AttachedEngine
from storage.errors import BadSetting
from storage.records import DEFAULT_DRAFT

ENGINES = "engines"
"""The word that names the store's engines."""
NAMED = re.compile(r"(?:(?P<draft>[^=/:?]+)=)?(?P<url>https?://.+)")


class ReplicaAddress(NamedTuple):
    """Where a replica is reached, and what is known of it before it is asked."""

    name: str
    """The engine's name in the store, else host and port."""
    url: str
    draft: str
    """The draft that it serves."""
    digest: str | None = None
    """The target's digest, where the store knows it."""
    engine: bool = False
    """Whether it is an engine of the store."""


def check_replicas(given: Sequence[str]) -> None:
    """Raise BadSetting for what names no replica, or one twice."""
    parsed = [address_of(one) for one in given if one != ENGINES]
    names = [one.name for one in parsed]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _bad(f"{twice} is named twice; a replica serves one draft")


def replicas_of(given: Sequence[str], engines: Sequence[AttachedEngine]) -> list[ReplicaAddress]:
    """Return the replicas that are named. One that is an engine of the store serves the draft that it has there, unless
    it is named with another."""
    known = {engine.url.rstrip("/"): engine for engine in engines}
    named = [address_of(one) for one in given if one != ENGINES]
    found = [_with_engine(one, known.get(one.url)) for one in named]
    if ENGINES in given:
        there = {one.url for one in named}
        found += [of_engine(engine) for url, engine in known.items() if url not in there]
    return found


def address_of(given: str) -> ReplicaAddress:
    """Parse URL or DRAFT=URL. Raises BadSetting."""
    match = NAMED.fullmatch(given.strip())
    parts = urlsplit(match["url"]) if match else None
    try:
        port = parts.port if parts else None
    except ValueError:
        parts = None
    if match is None or parts is None or not parts.hostname or parts.query or parts.fragment:
        raise _bad(f"{_masked(given)!r} is no URL; give http://HOST:PORT, DRAFT=http://HOST:PORT, or {ENGINES}")
    if parts.username or parts.password:
        raise _bad(f"{parts.hostname}: a URL must not hold a secret; name the replicas' key with upstream.api_key")
    if parts.path.rstrip("/"):
        raise _bad(f"{given!r} has a path; give the server's root, as http://HOST:PORT without /v1")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    name = f"{host}:{port or (443 if parts.scheme == 'https' else 80)}"
    return ReplicaAddress(name, match["url"].rstrip("/"), match["draft"] or "")


def of_engine(engine: AttachedEngine) -> ReplicaAddress:
    """Return the address of an engine of the store."""
    digest = engine.facts.get("digest")
    return ReplicaAddress(engine.name, engine.url.rstrip("/"), engine.draft, digest, engine=True)


def _with_engine(named: ReplicaAddress, engine: AttachedEngine | None) -> ReplicaAddress:
    if engine is None:
        return named._replace(draft=named.draft or DEFAULT_DRAFT)
    known = of_engine(engine)
    return known._replace(draft=named.draft or known.draft)


def _masked(given: str) -> str:
    """Return what was given without what may be a secret in a URL."""
    return re.sub(r"//[^/@]*@", "//…@", given)


def _bad(reason: str) -> BadSetting:
    return BadSetting(source="upstream", key="--upstream (upstream.replicas)", reason=reason)
