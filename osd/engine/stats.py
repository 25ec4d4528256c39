"""Counters and timings that an engine keeps of itself."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineStats:
    """Counters and timings of one engine."""

    steps: int = 0
    round_ms: deque[float] = field(default_factory=lambda: deque(maxlen=100_000))
    """Milliseconds of each round, newest last."""
    swap_pause_ms: list[float] = field(default_factory=list)
    """Milliseconds for which decoding stood still at each swap."""
    stood_in: int = 0
    """Requests that the default draft served because the one they were sent to was not in memory."""
    draft_failures: Counter[str] = field(default_factory=Counter)
    """How often each drafter has raised: each time a round went on without its draft."""
    read_tokens: int = 0
    """Prompt tokens that the target computed."""
    waited_for_memory: int = 0
    """Steps in which a request waited for blocks of the target's cache (``serve.cache_mb``)."""
    set_aside: int = 0
    """Times that a sequence waited for blocks in the middle of its text."""
    prefix_queried: int = 0
    """Prompt tokens that were looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens whose keys and values were copied from it."""
