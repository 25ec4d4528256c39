"""What the suites of losslessness ask of an engine before they believe it."""

from __future__ import annotations

from osd.engine.engine import Engine


def require_lossless(engine: Engine) -> Engine:
    """Return an engine that accepts no more than the target's distribution allows. Raises AssertionError for one in a
    lossy mode: at temperature 0 it would pass, and prove nothing."""
    assert engine.lossy is None, f"serve.lossy = {engine.lossy.mode}: its texts are not the target's own"
    return engine
