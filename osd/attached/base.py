"""What osd asks of a serving engine: to say what it is, to take a draft version and tell which one it drafts with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from storage.errors import OsdError

Schedule = Sequence[tuple[int, int, int]]
"""Draft lengths: (first, last, length) by running requests."""


class EngineError(OsdError):
    """{engine}: {reason}"""


class EngineUnreachable(EngineError):
    """{engine} does not answer ({reason}). Is it running, and reached from this machine by that URL?"""


class EngineUnsuited(EngineError):
    """{engine} is not set up for this: {reason}"""


class EngineRefused(EngineError):
    """{engine} refused: {reason}"""


@dataclass(frozen=True, slots=True)
class RankVersion:
    """What one rank of an engine drafts with."""

    rank: int
    process: str
    """The identity of its process: another one means that it was started again, with the draft of its command line."""
    version: str | None
    """The version that was published to it; None while it has the draft of its command line."""
    sha256: str | None
    """Digest of its draft's weights; None where it has no draft."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a probe found."""

    name: str
    """Its name in the store, which it gives itself: OSD_VLLM_ENGINE, or its host and port."""
    kind: str
    """vllm, vllm-proxied (without the plugin, behind `osd attach --proxy`) or sglang."""
    version: str
    target: str
    """The target's folder or hub name, as the engine knows it."""
    digest: str
    """The target's digest, as :mod:`osd.models.model_digest` has it."""
    method: str
    """How it drafts: draft_model, eagle, …"""
    draft: str
    """The draft of its command line, a folder or hub name."""
    gamma: int
    """num_speculative_tokens."""
    greedy_drafts: bool
    """Whether drafts are the draft's likeliest tokens, so that a refused token can be recovered."""
    top_k: int
    """How many of the target's likeliest tokens it hands over at each position."""
    max_num_seqs: int | None
    """Requests that it decodes together at most; None where it does not say."""
    live_gamma: bool
    """Whether draft lengths can be changed while it runs."""
    ranks: tuple[RankVersion, ...]
    harvest: Mapping[str, int]
    """Answers ``taken``, ``sent``, ``spooled``, ``dropped``, ``skipped``, ``failed`` since it was started."""

    @property
    def serves(self) -> str | None:
        """Digest of the draft that all ranks have; None where they differ."""
        digests = {rank.sha256 for rank in self.ranks}
        return digests.pop() if len(digests) == 1 else None


class ServingEngine(Protocol):
    """An engine that osd can probe and publish to."""

    @property
    def name(self) -> str:
        """Return the host and port by which it is reached."""
        ...

    def probe(self) -> EngineFacts:
        """Return what it is. Raises EngineUnreachable, EngineUnsuited."""
        ...

    def served(self) -> Sequence[RankVersion]:
        """Return what each rank drafts with. Raises EngineUnreachable."""
        ...

    def publish(self, folder: Path, sha256: str, version: str) -> Sequence[RankVersion]:
        """Load a folder as the draft on every rank, or on none; return what each has then. Raises EngineRefused for a
        draft that is no good, EngineUnsuited where it does not see the folder, EngineUnreachable."""
        ...

    def set_gamma(self, schedule: Schedule) -> None:
        """Change draft lengths while it runs. Raises EngineRefused, EngineUnreachable."""
        ...

    def counters(self) -> Mapping[str, float]:
        """Return its counters of speculation, by vLLM's metric names; ``…_per_pos`` with the position behind a colon.
        Raises EngineUnreachable."""
        ...
