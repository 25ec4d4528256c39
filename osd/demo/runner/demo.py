"""``osd demo``: watch a draft learn, on one machine, with what ships with osd."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from osd.demo import DRAFT, TARGET
from osd.demo.prompts import DOMAINS
from osd.demo.runner.circle import StreamPlan, own_settings
from osd.demo.runner.results import RunResults, segment_facts
from osd.demo.runner.run import run
from osd.demo.runner.source import demo_segments
from storage.settings import Settings

TITLE = "osd demo"
REMARK = "The target that ships with osd is tiny: it keeps the form of an answer and not its truth."
LEARN: dict[str, Any] = {}
"""Settings of learning that the demo asks for beyond the user's."""


def run_demo(
    settings: Settings,
    *,
    out: Path,
    console: Console,
    requests: int = 250,
    domains: Sequence[str] = tuple(DOMAINS),
    max_new_tokens: int = 64,
    batch: int = 2,
    arrival: str = "paced",
    drafter: str = "blended",
    check_every: int = 16,
    seed: int = 0,
    keep: bool = False,
    port: int | None = None,
    stay: bool = False,
) -> RunResults:
    """Serve the demo's domains one after another while a worker process trains the draft.

    ``requests``: prompts of each domain. ``drafter``: as in the settings. ``console``: where panel and table go.
    ``keep``: leave the run's store in the folder. ``out`` must be new. Writes summary.json, report.html, acceptance.svg
    and .png there. Ctrl-C ends everything that was started and reports what was served until then
    (``facts["interrupted"]``). ``port``: where the dashboard is meanwhile; None for none. With ``stay`` it is open
    until Ctrl-C.
    Raises BadSetting, StoreWriteFailed, TrainingFailed.
    """
    serve = {"max_batch": batch, "target": str(TARGET), "draft": str(DRAFT)}
    own = own_settings(settings, out / "data", learn=LEARN, serve=serve, drafters={"kind": drafter})
    plan = StreamPlan(
        str(TARGET), str(DRAFT), demo_segments(requests, seed, domains), out, own, arrival, max_new_tokens, check_every,
        port, stay,
    )  # fmt: skip
    return run(plan, TITLE, console, keep=keep, remark=REMARK)


def last_line(results: RunResults) -> dict[str, Any]:
    """What ``osd demo --json`` prints."""
    named = (
        "requests", "failed", "published", "rejected", "lossless_checked", "lossless_failed", "speedup_vs_target",
        "swap_pause_ms_max", "round_ms_median",
    )  # fmt: skip
    parts = {name: segment_facts(results.of(name)) for name in results.segments}
    rates = ("alpha_frozen", "alpha_first", "alpha_last")
    domains = {name: {rate: part[rate] for rate in rates} for name, part in parts.items()}
    return {**{name: results.facts[name] for name in named}, "domains": domains}
