"""What of users' traffic may be kept and learned from: ``[privacy]``."""

from __future__ import annotations

from storage.settings.section import Section


class PrivacySettings(Section):
    learn: bool = True
    """Whether requests of tenants of whom nothing is said may be kept; `osd replay tenant` says it of one."""
    share: bool = True
    """Whether their requests may train drafts that other tenants use. What may not trains only a draft of its own: that
    of the one route to which this tenant and no other is pinned."""
    redact: str | None = None
    """A function that sees every request before anything of it is written, as `package.module:function` or the name of
    an entry point of the group `osd.redact`. Where it fails, nothing is written."""


EVERYTHING = PrivacySettings()
"""What is allowed where nobody said anything."""
