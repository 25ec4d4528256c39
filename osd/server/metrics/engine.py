"""Prometheus metrics of one engine; a server exports this collector beside the store's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from osd.models.kv_blocks import BLOCK
from osd.server.metrics import families as m
from osd.server.metrics.families import Family, FamilySet
from osd.verification.lossy import MODES

if TYPE_CHECKING:
    from osd.engine.engine import Engine


class EngineCollector:
    """A collector for prometheus_client. It reads a few numbers and never waits for a round."""

    def __init__(self, engine: Engine, model_name: str = "osd") -> None:
        """Collect from an engine; ``model_name`` is the label that vLLM's metrics carry."""
        self.engine, self.model_name = engine, model_name

    def describe(self) -> Iterable[Family]:
        """Return the families without samples."""
        return FamilySet(m.ENGINE).families.values()

    def collect(self) -> Iterable[Family]:
        """Return all families; without a recorder its four are 0."""
        sheet, stats, recorder = FamilySet(m.ENGINE), self.engine.stats, self.engine.recorder
        pauses = list(stats.swap_pause_ms)
        sheet.add(m.DROPPED, recorder.dropped if recorder else 0)
        sheet.add(m.SPILLED, recorder.handover.spilled if recorder else 0)
        sheet.add(m.SPILL_BYTES, recorder.handover.spill.bytes if recorder else 0)
        sheet.add(m.RECORDER_SECONDS, recorder.seconds + recorder.seconds_beside if recorder else 0)
        sheet.add(m.STEPS, stats.steps)
        sheet.add(m.STOOD_IN, stats.stood_in)
        for mode in MODES:
            sheet.add(m.LOSSY, self.engine.settings.serve.lossy == mode, mode)
        for drafter, count in list(stats.draft_failures.items()):
            sheet.add(m.DRAFT_FAILURES, count, drafter)
        sheet.add(m.READ, stats.read_tokens)
        sheet.add(m.PREFIX_QUERIED, stats.prefix_queried)
        sheet.add(m.PREFIX_HITS, stats.prefix_hits)
        sheet.add(m.VLLM_PREFIX_QUERIES, stats.prefix_queried, self.model_name, 0)
        sheet.add(m.VLLM_PREFIX_HITS, stats.prefix_hits, self.model_name, 0)
        blocks = self.engine.reading.blocks
        sheet.add(m.CACHE_HELD, blocks.used)
        sheet.add(m.CACHE_WAITED, stats.waited_for_memory)
        sheet.add(m.CACHE_SET_ASIDE, stats.set_aside)
        sheet.add(m.VLLM_CACHE_USAGE, blocks.usage, self.model_name, 0)
        sheet.add(m.VLLM_CACHE_CONFIG, 1, 0, BLOCK, blocks.most)
        sheet.add(m.SWAPS, len(pauses))
        sheet.add(m.SWAP_SECONDS, sum(pauses) / 1000)
        return sheet.families.values()
