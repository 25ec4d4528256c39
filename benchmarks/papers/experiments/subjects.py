"""Prompts for experiments: those that are measured, and others of the same kinds to learn from."""

from __future__ import annotations

from benchmarks.papers.entry import PapersBench
from osd.bench.harness.prompts import texts_by_set


def other_texts(bench: PapersBench, count: int, measured: int) -> dict[str, list[str]]:
    """Return up to ``count`` prompts of each data set that are not among the ``measured`` ones that
    :func:`osd.bench.harness.prompts.tokens_by_set` draws with the bench's seed."""
    drawn = texts_by_set(bench.prompts, 2 * measured, seed=bench.seed)
    wanted = count + 2 * measured
    if bench.prompts:
        found = texts_by_set(bench.prompts, wanted, seed=bench.seed + 1)
    else:
        from osd.demo.prompts import prompts

        found = {name: prompts(name, wanted, bench.seed + 1) for name in drawn}
    return {name: [text for text in some if text not in drawn[name]][:count] for name, some in found.items()}
