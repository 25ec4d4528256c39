"""What is left of a run once everything has been stopped: plain values for the table, the picture and the report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from osd.demo.runner.circle import Circle
from osd.demo.runner.measure import (
    RECOVERED,
    WINDOW,
    FinishedRequest,
    SwapSeen,
    alpha,
    counted_alpha,
    moving,
    recovered_after,
    rejections_gone,
    settled_after,
    tokens_per_second,
)
from osd.demo.runner.stream import StreamTrace
from storage.records import DEFAULT_DRAFT, RunState

ALL = 1 << 20
DEFINITIONS = {
    "alpha_frozen, alpha_last, alpha_offline": f"over the last {WINDOW} requests of the segment: share of output "
    "positions at which that draft, reading the finished text, finds the target's token likeliest, of sampled texts "
    "the mean of Σ min(p, q). It is accepted ÷ (accepted + rejections) of a draft that never stops before its first "
    "mistake. alpha_last is that of what served: of draft and table where they draft together, alpha_counted where "
    "trees are drafted, or where texts are sampled and a table drafts too",
    "alpha_first": f"alpha of the draft that served, over the first {WINDOW} requests; it was learning already",
    "alpha_whole, alpha_frozen_whole, alpha_offline_whole": "the same over the whole segment",
    "alpha_counted": f"accepted ÷ (accepted + rejections) as the engine counted it, over the last {WINDOW} requests; "
    "positions that were never drafted are left out",
    "recovered_after": f"requests of the segment after which the moving average over {WINDOW} of its requests (over "
    f"{WINDOW // 2} at least) first reaches {RECOVERED:.0%} of its last value",
    "settled_after": "requests after which it never again falls below that",
    "speedup_vs_target": "seconds of transformers' greedy generate ÷ seconds of osd, over the requests that were "
    "decoded again, as many at a time as osd had in flight; both while the trainer runs beside",
    "speedup_vs_plain": "the same against osd's own loop without drafting: what drafting itself wins",
    "swap_pause_ms_max, round_ms_median": "longest time for which decoding stood still to take new weights, and the "
    "median time of a draft-then-verify round",
}


@dataclass(frozen=True, slots=True)
class Example:
    """A request as people read it."""

    segment: str
    prompt: str
    text: str
    alpha_online: float
    alpha_frozen: float
    version: str


@dataclass
class RunResults:
    """One run, plain."""

    title: str
    served: list[FinishedRequest]
    swaps: list[SwapSeen]
    segments: list[str]
    versions: list[dict[str, Any]]
    """Every version with the gate's evidence, oldest first."""
    examples: list[Example]
    facts: dict[str, Any]
    """Totals: requests, published, speed, …"""
    notes: list[str] = field(default_factory=list)
    """What went wrong without ending the run."""
    remark: str = ""
    """What a reader of the examples should know."""

    def of(self, segment: str) -> list[FinishedRequest]:
        """Return the finished requests of a segment."""
        return [served for served in self.served if served.segment == segment]

    def summary(self) -> dict[str, Any]:
        """Return everything that is measured, for ``summary.json``."""
        parts = {name: segment_facts(self.of(name)) for name in self.segments}
        return {**self.facts, "segments": parts, "notes": self.notes, "definitions": DEFINITIONS}


def segment_facts(served: Sequence[FinishedRequest]) -> dict[str, Any]:
    """Return a segment's numbers; see DEFINITIONS."""
    first, last = served[:WINDOW], served[-WINDOW:]
    frozen, now = alpha(last, "frozen"), alpha(last, "online")
    facts = {
        "requests": len(served),
        "tokens": sum(s.emitted for s in served),
        "alpha_frozen": frozen,
        "alpha_first": alpha(first, "online"),
        "alpha_last": now,
        "alpha_whole": alpha(served, "online"),
        "alpha_frozen_whole": alpha(served, "frozen"),
        "alpha_counted": counted_alpha(last),
        "rejections_gone": None if frozen is None or now is None else rejections_gone(frozen, now),
        "recovered_after": recovered_after(moving(served, "online")),
        "settled_after": settled_after(moving(served, "online")),
        "tokens_per_second": tokens_per_second(served),
        "tokens_per_second_last": tokens_per_second(last),
    }
    if served and all(s.offline_hits is not None for s in served):
        facts |= {"alpha_offline": alpha(last, "offline"), "alpha_offline_whole": alpha(served, "offline")}
    return rounded(facts)


def collect(circle: Circle, trace: StreamTrace, title: str, *, interrupted: bool = False) -> RunResults:
    """Take everything out of the running parts, before they are closed."""
    runs = circle.store.runs.list(DEFAULT_DRAFT, limit=ALL)
    stats, alone = circle.engine.stats, circle.alone
    recorder = circle.engine.recorder
    facts = {
        "requests": len(trace.served),
        "requested": circle.plan.requests,
        "failed": len(trace.failures),
        "interrupted": interrupted,
        "published": sum(run.state is RunState.PUBLISHED for run in runs),
        "rejected": sum(run.state is RunState.REJECTED for run in runs),
        "runs_failed": sum(run.state in (RunState.FAILED, RunState.LOST) for run in runs),
        "swaps": len(trace.swaps),
        "lossless_checked": len(alone.checks),
        "lossless_failed": alone.failed,
        "speedup_vs_target": alone.speedup,
        "speedup_vs_plain": alone.speedup_by_drafting,
        "tokens_per_second": tokens_per_second(trace.served),
        "tokens_per_second_target": alone.tokens_per_second,
        "swap_pause_ms_max": max(stats.swap_pause_ms, default=None),
        "round_ms_median": statistics.median(stats.round_ms) if stats.round_ms else None,
        "positions_dropped": recorder.dropped if recorder else 0,
        "seconds": trace.seconds,
        "arrival": circle.plan.arrival,
        "max_batch": circle.plan.settings.serve.max_batch,
        "max_new_tokens": circle.plan.max_new_tokens,
        "temperature": circle.plan.sampling.temperature,
        "top_p": circle.plan.sampling.top_p,
        "target": circle.plan.target,
        "draft": circle.plan.draft,
        "learn": circle.plan.settings.learn.model_dump(),
    }
    versions = [asdict(version) for version in circle.store.versions.list(DEFAULT_DRAFT)]
    return RunResults(
        title=title, served=trace.served, swaps=trace.swaps, segments=[s.name for s in circle.plan.segments],
        versions=sorted(versions, key=lambda version: version["number"]), examples=_examples(circle, trace),
        facts=rounded(facts), notes=trace.failures,
    )  # fmt: skip


def _examples(circle: Circle, trace: StreamTrace) -> list[Example]:
    """Return the last request of each segment."""
    lasts = [served[-1] for segment in circle.plan.segments if (served := trace.of(segment.name))]
    return [_example(trace, last) for last in lasts]


def _example(trace: StreamTrace, served: FinishedRequest) -> Example:
    return Example(
        segment=served.segment,
        prompt=trace.prompts[served.request_id],
        text=trace.completions[served.request_id].text or "",
        alpha_online=served.online_hits / max(1, served.of("online")),
        alpha_frozen=served.frozen_hits / max(1, served.emitted),
        version=served.version,
    )


def rounded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers as people can read them: four decimals."""
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in facts.items()}
