"""Runs entries of the catalogue, one folder each, and leaves the page.

OUT/plan.json                       pair, prompts, size and seed: another plan needs another folder
OUT/entries/<paper>/<entry>.json    what was found for an entry; removed, it is run again
OUT/runs/                           recordings and benches that entries share, each going on where it stopped
OUT/results.md, index.html, pictures/
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.gamma.rounds import Recording, read_recording
from benchmarks.papers.catalogue import all_papers
from benchmarks.papers.experiment import PaperFindings, PapersBench
from benchmarks.papers.page import leave
from benchmarks.papers.results import EntryJob, EntryResult, PapersRun, all_jobs, keep, kept, run_of
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import PairPlan
from osd.bench.harness.prompts import name_of
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from osd.server.start import choose_pair
from storage.errors import BadSetting, OsdError
from storage.settings import Settings

SMALL, FULL = "small", "full"
SIZES = ("texts", "tokens", "seeds", "recipes")
RecipeName = Literal["newest", "reservoir", "printed"]


@dataclass(frozen=True, kw_only=True)
class PapersPlan(PairPlan):
    """Every table and figure of five papers: what is claimed, what comes of it here, confirmed, refuted or open.

    Leaves a page (results.md, index.html) with everything that the folder holds. Ctrl-C stops it; the same command goes
    on. What is run, and by which rule each claim is judged, stands in the catalogue, benchmarks/papers/*.toml.

    Example: `python -m benchmarks papers --paper gammatune --table "Table 2" --small --out out/papers --json`
    """

    paper: tuple[str, ...] = ()
    """Papers: osd, on_the_fly, specdecpp, gammatune, adaptix. Default: all."""
    table: tuple[str, ...] = ()
    """Tables, figures, theorems by their names there: "Table 4". Default: all."""
    small: bool = False
    """Shows that all of it works: the default."""
    full: bool = False
    """For verdicts."""
    seed: int = 0
    """Which prompts are drawn, and everything else that is."""
    out: Path = Path("out/papers")
    """Folder of the page; what is there already is not run again."""
    beside: tuple[Path, ...] = ()
    """Folders of other runs (pair, prompts, seed), told beside."""
    texts: int = 0
    """Texts of each data set in place of the catalogue's; 0: those."""
    tokens: int = 0
    """So with tokens of an answer."""
    seeds: int = 0
    """So with seeds."""
    recipes: tuple[RecipeName, ...] = ()
    """By which drafts learn in OSD's Figure 9: newest, reservoir, printed. Default: all."""
    rounds: Path | None = None
    """A recording of `python -m benchmarks rounds`: the entries that replay rounds are run on it, and no others."""
    larger: Path | None = None
    """With --rounds, one of a larger draft for the same prompts: entries that choose between two drafts are run too."""


def chosen(papers: Sequence[str], ids: Sequence[str]) -> list[EntryJob]:
    """Return the entries that are asked for; none named are all. An id is taken in every paper that has it. Raises
    BadSetting for a name or an id that there is not."""
    names = [paper.name for paper in all_papers()]
    for name in papers:
        if name not in names:
            raise BadSetting(source="option", key="--paper", reason=f"{name!r} is none of {', '.join(names)}")
    jobs = [job for job in all_jobs() if not papers or job.paper.name in papers]
    wanted = {each.casefold() for each in ids}
    if missing := wanted - {job.entry.id.casefold() for job in jobs}:
        known = ", ".join(dict.fromkeys(job.entry.id for job in jobs))
        raise BadSetting(source="option", key="--table", reason=f"there is no {missing.pop()!r}; there are {known}")
    return [job for job in jobs if not wanted or job.entry.id.casefold() in wanted]


def bench_papers(plan: PapersPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Run what is asked for and not yet in the folder, then write the page of everything that is there.

    An entry that fails with an error of osd is kept without findings, its claims open, until the next run, which tries
    it again. Raises BadSetting for what there is not, or where the folder holds another plan's run; StoreWriteFailed.
    """
    out, others = plan.out, [run_of(path, "--beside") for path in plan.beside]
    if len({other.name for other in others}) < len(others):
        reason = "two of the folders have one name, by which the page tells them apart; rename one"
        raise BadSetting(source="option", key="--beside", reason=reason)
    jobs, pair = chosen(plan.paper, plan.table), choose_pair(settings.serve, plan.target, plan.draft)
    recording, larger = (read_recording(path) if path else None for path in (plan.rounds, plan.larger))
    facts = {
        "target": told(pair.target, pair.shipped), "draft": told(pair.draft, pair.shipped),
        "prompts": [name_of(Path(name)) for name in plan.prompts], "size": FULL if plan.full else SMALL,
        "seed": plan.seed,
    } | sizes_of(plan) | ({} if recording is None else facts_of(recording, larger))  # fmt: skip
    RunFolder(out, dict.fromkeys(SIZES) | facts, "papers.jsonl", dict)
    bench = PapersBench(
        settings, watch, out, pair.target, pair.draft, plan.prompts, plan.seed, recording=recording, larger=larger
    )
    runnable = [job for job in jobs if job.entry.run and not _done(out, job)]
    if recording is not None:
        known = range(1, 2 + (larger is not None))
        runnable = [job for job in runnable if job.entry.run and job.entry.run.kind.replays in known]
    minutes = minutes_of(runnable, plan.full)
    about = f"about {sum(minutes.values()):.0f} min on one core by the catalogue's estimates"
    watch.say(f"{len(runnable)} entries to run, {about}.")
    measure_all(runnable, lambda job: _run(bench, job, plan), watch, work=lambda job: minutes[str(job)])
    run = run_of(out)
    files, rows = leave(run, others, out), _rows(run, jobs)
    return BenchResult("papers", facts, _figures(run, jobs, rows), {"Claims": rows}, files, watch.stopped)


def facts_of(recording: Recording, larger: Recording | None = None) -> dict[str, Any]:
    """Return what makes a run over a recording, or over those of two drafts, what it is."""
    target, draft = (Path(name).name for name in (recording.target, recording.draft))
    sets = list(dict.fromkeys(trace.data_set for trace in recording.traces))
    draft += f"; {Path(larger.draft).name}" if larger else ""
    return {"target": target, "draft": draft, "prompts": sets, "seed": recording.seed}


def told(model: str, shipped: bool) -> str:
    """Return a model's name as any machine may read it: a hub name, a folder's name (with the one above where it says
    nothing), or that it ships with osd."""
    path = Path(model)
    name = path.name if path.is_dir() else model
    if name in ("target", "draft") and path.parent.name and not shipped:
        name = f"{path.parent.name}/{name}"
    return f"osd's own {name}" if shipped else name


def _done(out: Path, job: EntryJob) -> bool:
    result = kept(out, job)
    return result is not None and not result.failure


def sizes_of(plan: PapersPlan) -> dict[str, Any]:
    """Return the sizes and recipes that are asked for in place of the catalogue's."""
    return {name: size for name in SIZES if (size := getattr(plan, name))}


def _run(bench: PapersBench, job: EntryJob, plan: PapersPlan) -> EntryResult:
    assert job.entry.run
    begun, failure = time.perf_counter(), ""
    experiment = job.entry.run.plan(plan.full).model_copy(update=sizes_of(plan))
    try:
        findings = experiment.run(bench)
    except OsdError as error:
        findings, failure = PaperFindings({}), str(error)
        bench.watch.say(f"{job} could not be run: {error}")
    seconds = round(time.perf_counter() - begun, 1)
    result = EntryResult(job.paper.name, job.entry.id, str(experiment), seconds, findings, failure)
    keep(bench.out, job, result)
    for verdict in result.verdicts(job.entry):
        bench.watch.say(f"{job}: {verdict}")
    return result


def minutes_of(jobs: Sequence[EntryJob], full: bool) -> dict[str, float]:
    """Return about how long each entry takes, by its name; one that shares its run with one before it takes nothing."""
    seen: set[str] = set()
    found = {}
    for job in jobs:
        assert job.entry.run
        run = job.entry.run.shares or job.entry.run.model_dump_json()
        found[str(job)] = 0.02 if run in seen else max(0.02, job.entry.run.minutes(full))
        seen.add(run)
    return found


def _rows(run: PapersRun, jobs: Sequence[EntryJob]) -> list[dict[str, str]]:
    return [
        {"paper": job.paper.name, "entry": job.entry.id, "claim": verdict.claim.text, "rule": verdict.claim.rule,
         "figure": str(verdict.figure or "–"), "verdict": verdict.state}
        for job in jobs for verdict in run.verdicts(job)
    ]  # fmt: skip


def _figures(run: PapersRun, jobs: Sequence[EntryJob], rows: Sequence[dict[str, str]]) -> dict[str, object]:
    """Count verdicts and entries, and name what failed."""
    return {
        "claims": {s: sum(row["verdict"] == s for row in rows) for s in ("confirmed", "refuted", "open")},
        "entries": len(jobs), "run": sum(str(job) in run.results for job in jobs),
        "planned": sum(bool(job.entry.planned) for job in jobs),
        "not_reproduced": sum(bool(job.entry.not_reproduced) for job in jobs),
        "failed": {name: result.failure for name, result in run.results.items() if result.failure},
    }  # fmt: skip
