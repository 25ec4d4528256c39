"""Which candidates are published, and which versions are taken back: ``[gate]``."""

from __future__ import annotations

from pydantic import Field

from storage.settings.section import Section


class GateSettings(Section):
    requests: int = Field(default=48, ge=1)
    """Newest held-out requests that judge a candidate, at most."""
    min_requests: int = Field(default=4, ge=2)
    """With fewer held-out requests than this, newest training requests judge as well, and the evidence says so."""
    confidence: float = Field(default=0.8, gt=0.5, lt=1)
    """One-sided confidence that the candidate's acceptance is higher."""
    min_gain: float = Field(default=0.0, ge=-1, le=1)
    """Expected acceptance that it must gain at least; below 0 it may lose as much, and −1 publishes whatever was
    trained, as the OSD paper does."""
    watch_requests: int = Field(default=40, ge=2)
    """Live requests after a publication on which a fall of acceptance is judged."""
    watch_confidence: float = Field(default=0.999, gt=0.5, lt=1)
    """One-sided confidence of a fall that rolls a version back."""
