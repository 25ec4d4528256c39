"""All arms of `benchmarks routes`, one after another; an arm that is done is not run again. And their picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.routes.result import ArmResult, summary
from benchmarks.routes.stream import RoutesSetting, run_arm
from benchmarks.routes.traffic import BY_LANGUAGE, arrange
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import Arrival, Count, PairPlan, SampledPlan, facts_of, new_folder
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.turns import Cell, measure_all
from osd.bench.harness.watch import Watch, note
from osd.demo.runner.circle import own_settings
from osd.demo.runner.measure import WINDOW, moving_share
from osd.demo.runner.source import Segment, segments_of
from osd.models.pair import load_pair
from osd.server.start import choose_pair
from storage.errors import BadSetting
from storage.settings import Settings

RoutesArm = Literal["single", "routed", "routed_lora", "by_language"]
Order = Literal["mixed", "abrupt", "gradual", "linear", "apart"]
RoutesCell = Cell[str, ArmResult]
TEACHING = 80
"""Prompts of each data set from which topics are taught; they are not served."""


@dataclass(frozen=True, kw_only=True)
class RoutesPlan(SampledPlan, PairPlan):
    """A draft for each kind of traffic against one draft for all of it.

    Serves prompts of several domains in one stream, unlabelled, while a worker process trains: once with a single
    draft, once with a draft for each route, once with an adapter for each. 80 further prompts of each file teach the
    topics. A run that was stopped goes on with the same --out.

    Example: `python -m benchmarks routes --prompts sql.jsonl,chat.jsonl.gz --requests 200 --json`
    """

    requests: Count = 400
    """Prompts of each data set that are served."""
    max_tokens: Count = 64
    """Tokens of an answer at most."""
    batch: Count = 4
    """Requests decoded together."""
    arms: tuple[RoutesArm, ...] = ("single", "routed", "routed_lora")
    """What is compared."""
    order: Order = "mixed"
    """mixed: request by request. abrupt: one domain after another. gradual: each fades into the next. linear: the first
    fades into the last from begin to end. apart: mixed, but learned from the first alone in the first half, and from
    the others alone then."""
    arrival: Arrival = "lockstep"
    """lockstep: every learn.interval_requests requests, wait until the update over them serves, as in the OSD paper's
    Algorithm 1. paced: not far ahead of the trainer. free: as fast as it goes."""
    seed: int = 0
    """Which prompts are drawn, and their order."""
    out: Path | None = None
    """Folder for picture and summary; given again, it goes on."""


def bench_routes(plan: RoutesPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Draw the prompts, and serve them."""
    names = choose_pair(settings.serve, plan.target, plan.draft)
    segments, problems = segments_of(
        [Path(name) for name in plan.prompts], plan.requests + TEACHING, plan.seed, target=names.target,
        max_length=settings.serve.max_length, max_new_tokens=plan.max_tokens,
    )  # fmt: skip
    for problem in problems:
        note(problem)
    out = plan.out or new_folder("bench-routes")
    plan = replace(plan, target=names.target, draft=names.draft, out=out)
    facts, found = serve_arms(plan, settings, segments, watch)
    if not found:
        return BenchResult("routes", facts, {}, interrupted=True)
    domains = list(facts["requests"])
    figures = summary(found, domains)
    summed = save_json(out / "summary.json", {**figures, "plan": facts})
    files = {"summary": summed, "acceptance": draw(found, domains, out)}
    rows = [{"domain": name, **parts} for name, parts in figures["domains"].items()]
    tables = {"Acceptance of the last 100 requests": rows}
    return BenchResult("routes", facts, figures, tables, files, watch.stopped)


def serve_arms(
    plan: RoutesPlan, settings: Settings, segments: Sequence[Segment], watch: Watch, check_every: int = 40
) -> tuple[dict[str, Any], dict[str, ArmResult]]:
    """Serve the mixed prompts once with each arm; return facts and what came of the arms.

    ``segments``: the prompts of each domain, of which the last TEACHING teach and the others are served. Raises
    BadSetting for too few prompts or a folder of another run, PairError, StoreError, TrainingFailed.
    """
    assert plan.target and plan.draft and plan.out
    for segment in segments:
        if len(segment.prompts) <= TEACHING:
            reason = f"{segment.name} has {len(segment.prompts)} prompts; {TEACHING} teach, so give more"
            raise BadSetting(source="option", key="--prompts", reason=reason)
    served = {segment.name: segment.prompts[:-TEACHING] for segment in segments}
    teaching = {segment.name: list(segment.prompts[-TEACHING:]) for segment in segments}
    facts = facts_of(plan, requests={name: len(prompts) for name, prompts in served.items()}, arms=None, prompts=None)
    items, out = arrange(served, plan.order, plan.seed), plan.out
    folder = RunFolder(out, facts, "arms.jsonl", RoutesCell)
    pair = load_pair(plan.target, plan.draft, device=settings.serve.device, dtype=settings.serve.dtype)
    setting = RoutesSetting(pair, items, teaching, plan.max_tokens, plan.arrival, check_every, plan.sampling)
    serve = {"target": plan.target, "draft": plan.draft, "max_batch": plan.batch}

    def measure(arm: str) -> RoutesCell:
        own = own_settings(settings, fresh(out, arm), serve=serve, router={"poll_seconds": 0.2})
        return Cell(arm, run_arm(setting, arm, own, out, watch))

    arms: tuple[str, ...] = plan.arms
    return facts, {cell.job: cell.found for cell in measure_all(arms, measure, watch, folder=folder)}


def fresh(folder: Path, name: str) -> Path:
    """Return a path that is not there yet: what a stopped run left stands beside it."""
    return next(path for i in range(1, 1 << 20) if not (path := folder / f"{name}-{i}").exists())


def draw(arms: Mapping[str, ArmResult], domains: Sequence[str], out: Path) -> Path:
    """Draw acceptance over the stream, a panel a domain: a single draft, drafts of their own, the frozen one."""
    from osd.bench.harness.picture import dress, make_panels, save

    figure, panels = make_panels(len(domains), 4.2, 2.9, sharey=True)
    for axes, name in zip(panels, domains, strict=True):
        _draw_domain(axes, arms, name)
        dress(axes)
    panels[0].set_ylabel(f"acceptance rate α, last {WINDOW}")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return save(figure, out, "routes")


def _draw_domain(axes: Any, arms: Mapping[str, ArmResult], name: str) -> None:
    from osd.bench.harness.picture import BLUE, COLOURS, GREY, ORANGE

    styles = {
        "routed": (BLUE, "-", "a draft for each route"), "routed_lora": (COLOURS[2], "-", "an adapter for each route"),
        BY_LANGUAGE: (COLOURS[3], "-", "a draft for each language"),
        "single": (ORANGE, "-", "one draft for everything"), "frozen": (GREY, (0, (4, 2)), "frozen draft"),
    }  # fmt: skip
    shown = {**arms, "frozen": next(iter(arms.values()))}
    for arm, (colour, style, label) in styles.items():
        if arm in shown:
            where = [i for i, one in enumerate(shown[arm].seen, start=1) if one.domain == name]
            mine = shown[arm].of(name)
            hits = [one.frozen_hits if arm == "frozen" else one.hits for one in mine]
            axes.plot(
                where, moving_share(hits, [one.emitted for one in mine]), color=colour, ls=style, lw=2.0, label=label
            )
    axes.set_title(name, fontsize=11, loc="left")
    axes.set(ylim=(0, 1), xlabel="requests of the whole stream")
    axes.grid(axis="y", lw=0.6, alpha=0.6)
