"""Tries publishing on a running engine without changing anything: its own draft is published to it once more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from osd.attached.base import EngineUnsuited
from osd.attached.vllm.digest import weights_digest
from osd.attached.vllm.engine import VllmEngine

PROMPTS = 6
LENGTH, OUTPUT = 24, 32
STEP = 37
"""Prompts are token ids apart by this: any text will do, for only what changes is looked at."""


@dataclass(frozen=True, slots=True)
class Selftest:
    """What a self-test saw."""

    tokens: int
    same_ids: bool
    """Whether token ids were the same before and after."""
    accepted_before: int
    accepted_after: int
    drafted: int


def selftest(engine: VllmEngine) -> Selftest:
    """Decode a few prompts, publish the draft that is served, decode them again.

    Raises EngineUnsuited where that draft's folder is not seen from here, or ids or acceptance have changed.
    """
    facts = engine.probe()
    folder = Path(facts.draft)
    serves = facts.serves
    if not folder.is_dir() or weights_digest(folder) != serves:
        reason = "the folder of the draft that it serves is not seen from here, so there is nothing to publish again"
        raise EngineUnsuited(engine=engine.name, reason=reason)
    before = _decode(engine)
    engine.publish(folder, serves, facts.ranks[0].version or serves)
    after = _decode(engine)
    found = Selftest(sum(map(len, before[0])), before[0] == after[0], before[1], after[1], after[2])
    if not found.same_ids:
        raise EngineUnsuited(engine=engine.name, reason="publishing the weights that it had changed its answers")
    if found.accepted_after < 0.9 * found.accepted_before:
        reason = f"publishing what it had lowered what is accepted: {found.accepted_before} to {found.accepted_after}"
        raise EngineUnsuited(engine=engine.name, reason=reason)
    return found


def _decode(engine: VllmEngine) -> tuple[list[list[int]], int, int]:
    """Return the ids of each answer, and accepted and drafted tokens in all, by the engine's own counters."""
    start = engine.counters()
    answers = [engine.complete([3 + (i * STEP + j * 7) % 61 for j in range(LENGTH)], OUTPUT) for i in range(PROMPTS)]
    end = engine.counters()
    names = "vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_draft_tokens"
    accepted, drafted = (int(end.get(name, 0) - start.get(name, 0)) for name in names)
    return answers, accepted, drafted
