"""Runs entries of the catalogue, one folder each, and leaves the page.

OUT/plan.json                       pair, prompts, size and seed: another plan needs another folder
OUT/entries/<paper>/<entry>.json    what was found for an entry; removed, it is run again
OUT/runs/                           recordings and benches that entries share, each going on where it stopped
OUT/index.html, results.md, pictures/, results.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from benchmarks.papers.catalogue import PAPERS
from benchmarks.papers.entry import EntryResult, Paper, PaperEntry, PaperFindings, PapersBench, PapersRun
from benchmarks.papers.page import leave
from osd.bench.harness.folder import PLAN, RunFolder
from osd.bench.harness.prompts import name_of
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from osd.server.start import choose_pair
from storage.errors import BadSetting, OsdError
from storage.files.files import make_folder, write_whole
from storage.settings import Settings

SMALL, FULL = "small", "full"


class EntryJob(NamedTuple):
    """An entry to be run."""

    paper: Paper
    entry: PaperEntry

    def __str__(self) -> str:
        return f"{self.paper.name}, {self.entry.id}"


LINES = TypeAdapter(EntryResult)


def chosen(papers: Sequence[str], ids: Sequence[str]) -> list[EntryJob]:
    """Return the entries that are asked for; none named are all. An id is taken in every paper that has it. Raises
    BadSetting for a name or an id that there is not."""
    names = [paper.name for paper in PAPERS]
    for name in papers:
        if name not in names:
            raise BadSetting(source="option", key="--paper", reason=f"{name!r} is none of {', '.join(names)}")
    some = [paper for paper in PAPERS if not papers or paper.name in papers]
    jobs = [EntryJob(paper, entry) for paper in some for entry in paper.entries]
    wanted = {each.casefold() for each in ids}
    if missing := wanted - {job.entry.id.casefold() for job in jobs}:
        known = ", ".join(dict.fromkeys(job.entry.id for job in jobs))
        raise BadSetting(source="option", key="--table", reason=f"there is no {missing.pop()!r}; there are {known}")
    return [job for job in jobs if not wanted or job.entry.id.casefold() in wanted]


def bench_papers(
    settings: Settings, watch: Watch, out: Path, *, papers: Sequence[str] = (), ids: Sequence[str] = (),
    full: bool = False, target: str | None = None, draft: str | None = None, prompts: Sequence[str] = (), seed: int = 0,
    beside: Sequence[Path] = (),
) -> BenchResult:  # fmt: skip
    """Run what is asked for and not yet in ``out``, then write the page of everything that is there. ``beside``:
    folders of other runs, whose figures the page tells beside.

    An entry that fails with an error of osd is kept without findings, its claims open, until the next run, which tries
    it again. Raises BadSetting for what there is not, or where ``out`` holds a run of another plan; StoreWriteFailed.
    """
    others = [run_of(path, "--beside") for path in beside]
    if len({other.name for other in others}) < len(others):
        reason = "two of the folders have one name, by which the page tells them apart; rename one"
        raise BadSetting(source="option", key="--beside", reason=reason)
    jobs, pair = chosen(papers, ids), choose_pair(settings.serve, target, draft)
    facts = {
        "target": told(pair.target, pair.shipped), "draft": told(pair.draft, pair.shipped),
        "prompts": [name_of(Path(name)) for name in prompts], "size": FULL if full else SMALL, "seed": seed,
    }  # fmt: skip
    RunFolder(out, facts, "papers.jsonl", dict)
    bench = PapersBench(settings, watch, out, pair.target, pair.draft, full, prompts, seed)
    runnable = [job for job in jobs if job.entry.experiment and not _done(out, job)]
    minutes = minutes_of(runnable, full)
    about = f"about {sum(minutes.values()):.0f} min on one core by the catalogue's estimates"
    watch.say(f"{len(runnable)} entries to run, {about}.")
    measure_all(runnable, lambda job: _run(bench, job), watch, work=lambda job: minutes[str(job)])
    run = run_of(out)
    files = leave(run, others, out)
    figures = _figures(run.results, jobs)
    return BenchResult("papers", facts, figures, {"Claims": _rows(run.results, jobs)}, files, watch.stopped)


def run_of(folder: Path, option: str = "--out") -> PapersRun:
    """Return the run that a folder holds. Raises BadSetting where there is none, or a result cannot be read."""
    try:
        facts = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        reason = f"{folder} holds no run; give the --out of another `python -m benchmarks papers`"
        raise BadSetting(source="option", key=option, reason=reason) from None
    found = ((job, kept(folder, job)) for job in chosen((), ()))
    return PapersRun(
        folder.resolve().name, facts, {(job.paper.name, job.entry.id): result for job, result in found if result}
    )


def told(model: str, shipped: bool) -> str:
    """Return a model's name as any machine may read it: a hub name, a folder's name (with the one above where it says
    nothing), or that it ships with osd."""
    path = Path(model)
    name = path.name if path.is_dir() else model
    if name in ("target", "draft") and path.parent.name and not shipped:
        name = f"{path.parent.name}/{name}"
    return f"osd's own {name}" if shipped else name


def place(out: Path, job: EntryJob) -> Path:
    """Return where an entry's result is kept."""
    return out / "entries" / job.paper.name / f"{job.entry.slug}.json"


def kept(out: Path, job: EntryJob) -> EntryResult | None:
    """Return the result that is there. Raises BadSetting for one that cannot be read."""
    path = place(out, job)
    if not path.exists():
        return None
    try:
        return LINES.validate_json(path.read_bytes())
    except ValueError:
        reason = f"{path} is not a result; remove that file, or give another folder"
        raise BadSetting(source="option", key="--out", reason=reason) from None


def _done(out: Path, job: EntryJob) -> bool:
    result = kept(out, job)
    return result is not None and not result.failure


def _run(bench: PapersBench, job: EntryJob) -> EntryResult:
    experiment = job.entry.experiment
    assert experiment is not None
    begun, sizes, failure = time.perf_counter(), experiment.sizes(bench.full), ""
    try:
        findings = experiment.run(bench, sizes)
    except OsdError as error:
        findings, failure = PaperFindings({}), str(error)
        bench.watch.say(f"{job} could not be run: {error}")
    result = EntryResult(
        job.paper.name, job.entry.id, str(sizes), round(time.perf_counter() - begun, 1), findings, failure
    )
    path = place(bench.out, job)
    make_folder(path.parent)
    write_whole(path, memoryview(LINES.dump_json(result, indent=1)))
    for verdict in result.verdicts(job.entry):
        bench.watch.say(f"{job}: {verdict}")
    return result


def minutes_of(jobs: Sequence[EntryJob], full: bool) -> dict[str, float]:
    """Return about how long each entry takes, by its name; one that shares its run with one before it takes nothing."""
    seen: set[object] = set()
    found = {}
    for job in jobs:
        assert job.entry.experiment is not None
        run = job.entry.experiment.shares or id(job.entry.experiment)
        found[str(job)] = 0.02 if run in seen else max(0.02, job.entry.experiment.sizes(full).minutes)
        seen.add(run)
    return found


def _rows(results: Mapping[tuple[str, str], EntryResult], jobs: Sequence[EntryJob]) -> list[dict[str, str]]:
    return [
        {"paper": job.paper.name, "entry": job.entry.id, "claim": verdict.claim.text, "rule": verdict.claim.rule,
         "figure": str(verdict.figure or "–"), "verdict": verdict.state}
        for job in jobs if (result := results.get((job.paper.name, job.entry.id)))
        for verdict in result.verdicts(job.entry)
    ]  # fmt: skip


def _figures(results: Mapping[tuple[str, str], EntryResult], jobs: Sequence[EntryJob]) -> dict[str, object]:
    """Count verdicts and entries, and name what failed."""
    rows = _rows(results, jobs)
    counts = {state: sum(row["verdict"] == state for row in rows) for state in ("confirmed", "refuted", "open")}
    failed = {f"{r.paper}, {r.id}": r.failure for r in results.values() if r.failure}
    return {
        "claims": counts, "entries": len(jobs), "run": sum((j.paper.name, j.entry.id) in results for j in jobs),
        "planned": sum(bool(job.entry.planned) for job in jobs),
        "not_reproduced": sum(bool(job.entry.not_reproduced) for job in jobs), "failed": failed,
    }  # fmt: skip
