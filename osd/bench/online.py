"""``osd bench online``: the demo's stream for any pair and any prompts, with the baselines of the OSD paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from osd.bench.harness.report import BenchResult
from osd.demo.runner.circle import StreamPlan, own_settings
from osd.demo.runner.results import RunResults, segment_facts
from osd.demo.runner.run import run
from osd.demo.runner.source import Segment
from storage.sampling import GREEDY, Sampling
from storage.settings import Settings

TITLE = "osd bench online"
SHOWN = ("alpha_online_last", "alpha_frozen", "alpha_offline")
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "osd": {},
    "paper": {
        "serve": {"record": "rejected"},
        "learn": {"positions": "rejected", "sampling": "teacher", "replay_requests": 0, "epochs": 1, "max_requests": 8,
                  "interval_requests": 8},
        "gate": {"min_gain": -1.0},
    },
}  # fmt: skip
"""How a draft learns. osd: as the settings say. paper: Algorithm 1 of Online Speculative Decoding, which after every 8
requests takes one pass over the positions where the draft was refused, releases the buffer, and serves what came of
it."""


def run_bench_online(
    settings: Settings,
    *,
    target: str,
    draft: str,
    segments: Sequence[Segment],
    out: Path,
    console: Console,
    max_new_tokens: int = 64,
    batch: int | None = None,
    arrival: str = "lockstep",
    check_every: int = 16,
    offline: bool = True,
    drafter: str | None = None,
    keep: bool = False,
    notes: Sequence[str] = (),
    sampling: Sampling = GREEDY,
    recipe: str = "osd",
) -> RunResults:
    """Serve segments (see osd.demo.runner.source.file_segments) while a worker process trains the draft, then, unless
    ``offline`` is False, distil a draft offline on each segment and let it read the same texts.

    ``target`` and ``draft``: Hugging Face folders or hub names. ``batch``: requests decoded together; None leaves
    serve.max_batch. ``drafter``: who drafts; None leaves drafters.kind. ``notes``: what the report says went wrong with
    the files. ``sampling``: of all answers; the target alone decodes greedy ones again. ``recipe``: one of RECIPES. The
    rest is as in :class:`osd.demo.DemoOptions`.
    """
    changes = {name: dict(section) for name, section in RECIPES[recipe].items()}
    serve = {"target": target, "draft": draft} | ({} if batch is None else {"max_batch": batch})
    changes["serve"] = serve | changes.get("serve", {})
    changes["drafters"] = {} if drafter is None else {"kind": drafter}
    own = own_settings(settings, out / "data", **changes)
    plan = StreamPlan(target, draft, segments, out, own, arrival, max_new_tokens, check_every, sampling=sampling)
    return run(plan, TITLE, console, keep=keep, offline=offline, notes=notes)


def compared(results: Mapping[str, RunResults], out: Path) -> BenchResult:
    """Return what runs with several recipes came to, side by side; with one, that run's own."""
    own = {recipe: result_of(each, out if len(results) == 1 else out / recipe) for recipe, each in results.items()}
    if len(own) == 1:
        return next(iter(own.values()))
    last = [*own.values()][-1]
    settings = {name: value for name, value in last.settings.items() if name != "learn"}
    figures = {"recipes": {recipe: {**each.figures, "learn": each.settings["learn"]} for recipe, each in own.items()}}
    rows = [
        {"segment": segment["name"], "recipe": recipe} | {name: segment[name] for name in (*SHOWN, "recovered_after")}
        for recipe, each in own.items() for segment in each.figures["segments"]
    ]  # fmt: skip
    rows.sort(key=lambda row: list(results[row["recipe"]].segments).index(row["segment"]))
    files = {f"summary, {recipe}": path for recipe, each in own.items() for path in each.files.values()}
    return BenchResult("online", settings, figures, {"α by segment": rows}, files, last.interrupted)


def result_of(results: RunResults, out: Path) -> BenchResult:
    """Return what the run came to, as benches tell it; its table was printed when it ended."""
    parts = {name: segment_facts(results.of(name)) for name in results.segments}
    named = {
        "alpha_online_last": "alpha_last", "alpha_frozen": "alpha_frozen", "alpha_offline": "alpha_offline",
        "recovered_after": "recovered_after",
    }  # fmt: skip
    segments = [{"name": name} | {each: part.get(key) for each, key in named.items()} for name, part in parts.items()]
    facts = results.facts
    given = (
        "target", "draft", "arrival", "max_batch", "max_new_tokens", "temperature", "top_p", "learn",
    )  # fmt: skip
    settings = {name: facts[name] for name in given}
    figures = {"segments": segments, "published": facts["published"], "failed": facts["failed"]}
    files = {"summary": out / "summary.json"} if results.served else {}
    return BenchResult("online", settings, figures, files=files, interrupted=facts["interrupted"])
