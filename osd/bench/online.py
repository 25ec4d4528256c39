"""``osd bench online``: the demo's stream for any pair and any prompts, with the baselines of the OSD paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from osd.bench.harness.plan import new_folder
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch, note
from osd.bench.plans import OnlinePlan
from osd.demo.runner.circle import StreamPlan, own_settings
from osd.demo.runner.results import RunResults, segment_facts
from osd.demo.runner.run import run
from osd.demo.runner.source import Segment, segments_of
from osd.server.start import choose_pair
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
        "gamma": {"rule": "fixed", "initial": 5},
    },
}  # fmt: skip
"""How a draft learns. osd: as the settings say. paper: Algorithm 1 of Online Speculative Decoding. It always guesses 5
tokens. After every 8 requests it takes one pass over the positions where the draft was refused, releases the buffer,
and serves what came of it. A rule that stops guessing would leave it nothing to learn from."""


def bench_online(plan: OnlinePlan, settings: Settings, watch: Watch) -> BenchResult:
    """Serve the prompts once by every recipe. Raises BadPromptFile, PairError, TrainingFailed."""
    out, names = plan.out or new_folder("bench-online"), choose_pair(settings.serve, plan.target, plan.draft)
    segments, problems = segments_of(
        [Path(name) for name in plan.prompts], plan.requests, None if plan.in_order else plan.seed,
        target=names.target, max_length=settings.serve.max_length, max_new_tokens=plan.max_tokens,
    )  # fmt: skip
    for problem in problems:
        note(problem)
    plan, results = replace(plan, target=names.target, draft=names.draft), dict[str, RunResults]()
    for recipe in plan.recipe:
        folder = out if len(plan.recipe) == 1 else out / recipe
        results[recipe] = serve_segments(replace(plan, recipe=(recipe,)), settings, segments, folder, notes=problems)
        if results[recipe].facts["interrupted"]:
            break
    return compared(results, out)


def serve_segments(
    plan: OnlinePlan, settings: Settings, segments: Sequence[Segment], out: Path, *, notes: Sequence[str] = (),
    check_every: int = 16, console: Console | None = None,
) -> RunResults:  # fmt: skip
    """Serve segments with the pair and the first recipe that the plan names while a worker process trains the draft,
    then distil a draft offline on each segment, where that is asked for, and let it read the same texts.

    ``notes``: what the report says went wrong with the files. ``check_every``: requests after which the target alone
    decodes a greedy one again.
    """
    assert plan.target and plan.draft
    changes = {name: dict(section) for name, section in RECIPES[plan.recipe[0]].items()}
    serve = {"target": plan.target, "draft": plan.draft} | ({} if plan.batch is None else {"max_batch": plan.batch})
    changes["serve"] = serve | changes.get("serve", {})
    own = own_settings(settings, out / "data", drafters={"kind": plan.drafter}, **changes)
    stream = StreamPlan(
        plan.target, plan.draft, segments, out, own, plan.arrival, plan.max_tokens, check_every, sampling=plan.sampling
    )
    return run(stream, TITLE, console or Console(stderr=True), keep=plan.keep, offline=plan.offline, notes=notes)


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
