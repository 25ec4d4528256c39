"""All arms of `benchmarks routes`, one after another; an arm that is done is not run again. And their picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.routes.result import ArmResult, summary
from benchmarks.routes.stream import RoutesSetting, run_arm
from benchmarks.routes.traffic import BY_LANGUAGE, arrange
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from osd.demo.runner.circle import own_settings
from osd.demo.runner.measure import WINDOW, moving_share
from osd.demo.runner.source import Segment
from osd.models.pair import load_pair
from storage.errors import BadSetting
from storage.sampling import GREEDY, Sampling
from storage.settings import Settings

TEACHING = 80
"""Prompts of each data set from which topics are taught; they are not served."""


def bench_routes(
    settings: Settings, watch: Watch, *, target: str, draft: str, segments: Sequence[Segment], arms: Sequence[str],
    out: Path, order: str = "mixed", max_new_tokens: int = 64, batch: int | None = None, arrival: str = "lockstep",
    check_every: int = 40, seed: int = 0, sampling: Sampling = GREEDY,
) -> BenchResult:  # fmt: skip
    """Serve the mixed prompts once with each arm, and compare.

    ``segments``: the prompts of each domain, of which the last TEACHING teach and the others are served. Raises
    BadSetting for too few prompts or a folder of another run, PairError, StoreError, TrainingFailed.
    """
    for segment in segments:
        if len(segment.prompts) <= TEACHING:
            reason = f"{segment.name} has {len(segment.prompts)} prompts; {TEACHING} teach, so give more"
            raise BadSetting(source="option", key="--prompts", reason=reason)
    served = {segment.name: segment.prompts[:-TEACHING] for segment in segments}
    teaching = {segment.name: list(segment.prompts[-TEACHING:]) for segment in segments}
    plan = {
        "target": target, "draft": draft, "order": order, "seed": seed, "tokens": max_new_tokens, "arrival": arrival,
        "batch": batch, "temperature": sampling.temperature, "top_p": sampling.top_p,
        "requests": {name: len(prompts) for name, prompts in served.items()},
    }  # fmt: skip
    items = arrange(served, order, seed)
    folder = RunFolder(out, plan, "arms.jsonl", ArmResult)
    pair = load_pair(target, draft, device=settings.serve.device, dtype=settings.serve.dtype)
    setting = RoutesSetting(pair, items, teaching, max_new_tokens, arrival, check_every, sampling)
    serve = {"target": target, "draft": draft} | ({} if batch is None else {"max_batch": batch})

    def measure(arm: str) -> ArmResult:
        own = own_settings(settings, _fresh(out, arm), serve=serve, router={"poll_seconds": 0.2})
        return run_arm(setting, arm, own, out, watch)

    done = measure_all(arms, measure, watch, folder=folder, job_of=lambda result: result.arm)
    if not done:
        return BenchResult("routes", plan, {}, interrupted=True)
    found = {result.arm: result for result in done}
    figures = summary(found, list(served))
    summed = save_json(out / "summary.json", {**figures, "plan": plan})
    files = {"summary": summed, "acceptance": draw(found, list(served), out)}
    rows = [{"domain": name, **parts} for name, parts in figures["domains"].items()]
    tables = {"Acceptance of the last 100 requests": rows}
    return BenchResult("routes", plan, figures, tables, files, watch.stopped)


def _fresh(out: Path, arm: str) -> Path:
    """Return a data directory for an arm: what an interrupted run left is beside it."""
    return next(path for i in range(1, 1 << 20) if not (path := out / f"{arm}-{i}").exists())


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
