"""What stays: ``[retention]`` of the replay store, ``[retention.routes.NAME]`` where a route is to differ, and
``[retention.versions]`` of drafts' weights.

Without a setting every sample stays, and of weights those from which a draft may go back. Policies compose: a request
goes as soon as one of them says so.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from storage.settings.section import Section


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
    before it, what is pinned or has a name, and the newest one, from which training may go on."""

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
    """How often the worker looks, between its turns."""
    compact_requests: int = Field(default=256, ge=2)
    """Small segments are put together into segments of so many requests at most."""

    def of(self, route: str) -> Limits:
        """Return the limits of one route."""
        own = self.routes.get(route)
        changes = {} if own is None else {name: getattr(own, name) for name in own.model_fields_set}
        return Limits(**{name: getattr(self, name) for name in Limits.model_fields} | changes)

    @property
    def keeps_all(self) -> bool:
        """Whether no policy is set at all."""
        limits = [self.of(route) for route in ("", *self.routes)]
        return self.total_bytes is None and not any(
            one.requests or one.bytes or one.age_seconds or one.duplicates or one.release for one in limits
        )
