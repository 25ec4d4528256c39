"""What is kept: ``[storage]`` says where, ``[retention]`` what stays, ``[privacy]`` what may be kept of users' traffic,
``[trace]`` what is traced.

Without a setting of ``[retention]`` every sample stays, and of weights those from which a draft may go back. A request
goes as soon as one of the limits says so. ``[retention.routes.NAME]`` gives a route other limits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from platformdirs import user_cache_path, user_data_path
from pydantic import Field

from storage.settings.section import Section


class StorageSettings(Section):
    url: str | None = None
    """SQLAlchemy URL of the metadata; None is a SQLite file in the data directory."""
    directory: Path | None = None
    """Where segments, weights and the SQLite file live; None is the XDG data directory."""
    samples: str | None = None
    """Where samples are kept: a folder, or an fsspec URL such as s3://BUCKET/samples; None is segments/ in the data
    directory. Credentials come from the environment (AWS_…) or fsspec's configuration."""
    weights: str | None = None
    """Where drafts' weights are kept, likewise; None is weights/ in the data directory."""
    cache: Path | None = None
    """Where weights of an object store are kept on this machine to be loaded; None is the XDG cache directory."""
    encryption: str | None = None
    """Key ring that encrypts samples and exports, as env:VARIABLE or file:PATH; None encrypts nothing."""
    top_k: int = Field(default=64, ge=1, le=4096)
    """How many of the target's log-probabilities are kept at a position."""
    flush_requests: int = Field(default=256, ge=1)
    """Finished requests that make a segment."""
    flush_seconds: float = Field(default=5.0, gt=0)
    """A segment is written at the latest after so many seconds, however few requests it holds."""
    holdout: float = Field(default=0.15, ge=0, lt=1)
    """Share of prompts that are never trained on and only judge candidates (chosen by a hash of the prompt)."""

    def data_directory(self) -> Path:
        """Return the data directory: set, or the XDG one."""
        return (self.directory or user_data_path("osd")).expanduser()

    def cache_directory(self) -> Path:
        """Return the cache directory: set, or the XDG one."""
        return (self.cache or user_cache_path("osd")).expanduser()

    def database_url(self) -> str:
        """Return the database's URL: set, or the SQLite file in the data directory."""
        return self.url or f"sqlite:///{self.data_directory() / 'osd.db'}"


class Limits(Section):
    """What may be kept of one route."""

    requests: int | None = Field(default=None, ge=1)
    """Requests of a route at most."""
    bytes: int | None = Field(default=None, ge=1)
    """Bytes of a route's samples on the disk at most."""
    age_seconds: float | None = Field(default=None, gt=0)
    """What is older goes."""
    duplicates: int | None = Field(default=None, ge=1)
    """Requests of a tenant with one and the same prompt at most, the newest."""
    prefer: Literal["newest", "reservoir", "divergent"] = "newest"
    """Which stay where requests or bytes are too many: the newest, a random sample of all that ever came, or those
    on which the draft was farthest from the target."""
    fair: bool = True
    """Whether a route's requests and bytes are shared out among its tenants, so that none pushes out another."""
    release: bool = False
    """Whether requests go once a run was trained on them and judged (OSD 4.2.1); held-out ones stay."""


class VersionLimits(Section):
    """Which versions' weights stay on the disk. Of each draft there always stay number 0, what serves and what did
    before it, what is pinned or has a name, and the newest ones, from which training may go on."""

    served: Annotated[int, Field(ge=1)] | Literal["all"] = 8
    """The others that led to what serves stay, back to the last so many that served; "all" lets everything stay."""
    bytes: int | None = Field(default=None, ge=1)
    """Bytes of a draft's versions at most; the oldest go first."""
    age_seconds: float | None = Field(default=None, gt=0)
    """What is older goes."""


class RetentionSettings(Limits):
    versions: VersionLimits = VersionLimits()
    """What stays of drafts' weights."""
    routes: dict[str, Limits] = Field(default={})
    """Other limits for single routes; what a route does not set is as here."""
    total_bytes: int | None = Field(default=None, ge=1)
    """Bytes of all routes at most, shared out among them so that none pushes out another."""
    every_seconds: float = Field(default=60.0, gt=0)
    """How often the trainer looks, between its turns."""
    compact_requests: int = Field(default=256, ge=2)
    """Small segments are put together into segments of so many requests at most."""

    def for_route(self, route: str) -> Limits:
        """Return the limits of one route."""
        own = self.routes.get(route)
        changes = {} if own is None else {name: getattr(own, name) for name in own.model_fields_set}
        return Limits(**{name: getattr(self, name) for name in Limits.model_fields} | changes)

    @property
    def keeps_all(self) -> bool:
        """Whether no policy is set at all."""
        limits = [self.for_route(route) for route in ("", *self.routes)]
        return self.total_bytes is None and not any(
            one.requests or one.bytes or one.age_seconds or one.duplicates or one.release for one in limits
        )


class PrivacySettings(Section):
    learn: bool = True
    """Whether requests of tenants of whom nothing is said may be kept; `osd replay tenant` says it of one."""
    share: bool = True
    """Whether their requests may train drafts that other tenants use. What may not trains only a draft of its own: that
    of the one route to which this tenant and no other is pinned."""
    share_tables: bool = False
    """Whether tenants that share also draft from one table of n-grams a route. It can be read: what is drafted and
    accepted was in somebody's answer. Without this each tenant has tables of its own, of its own requests."""
    redact: str | None = None
    """A function that sees every text before anything of it is written, as `package.module:function` or the name of
    an entry point of the group `osd.redact`. Where it fails, nothing is written."""


EVERYTHING = PrivacySettings()
"""What is allowed where nobody said anything."""


class TraceSettings(Section):
    endpoint: str | None = None
    """OpenTelemetry endpoint for traces, as http://HOST:4318/v1/traces; None traces nothing. Needs the extra `otel`."""
    share: float = Field(default=1.0, ge=0, le=1)
    """Share of requests that are traced; training runs and versions all are."""
