"""Finished requests made by hand."""

from __future__ import annotations

from typing import Any

from osd.demo.runner.measure import FinishedRequest


def served(index: int, online: int, of: int = 10, frozen: int = 0, **changes: Any) -> FinishedRequest:
    """A request of ``of`` tokens, of which the serving draft foresaw ``online`` and the frozen one ``frozen``."""
    values: dict[str, Any] = {
        "index": index, "segment": "a", "request_id": str(index), "version": "v", "prompt_tokens": 5, "emitted": of,
        "online_hits": online, "frozen_hits": frozen, "rounds": 4, "drafted": 8, "accepted": 6, "rejections": 2,
        "seconds": 0.5, "at": float(index),
    }  # fmt: skip
    return FinishedRequest(**{**values, **changes})
