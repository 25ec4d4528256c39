"""What came of entries, as a run's folder keeps it: OUT/entries/<paper>/<entry>.json, judged by the rules as they are
written now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from benchmarks.papers.catalogue import Paper, PaperEntry, all_papers
from benchmarks.papers.claims import ClaimVerdict, judge
from benchmarks.papers.experiment import PaperFindings
from osd.bench.harness.folder import PLAN
from storage.errors import BadSetting
from storage.files.files import make_folder, write_whole


class EntryJob(NamedTuple):
    """An entry to be run."""

    paper: Paper
    entry: PaperEntry

    def __str__(self) -> str:
        return f"{self.paper.name}, {self.entry.id}"

    def __hash__(self) -> int:
        return hash(str(self))

    def path(self, out: Path) -> Path:
        """Return where the result is kept."""
        return out / "entries" / self.paper.name / f"{self.entry.slug}.json"


@dataclass(frozen=True, slots=True)
class EntryResult:
    """What came of an entry."""

    paper: str
    id: str
    sizes: str
    seconds: float
    findings: PaperFindings
    failure: str = ""
    """Why there are no findings."""

    def verdicts(self, entry: PaperEntry) -> list[ClaimVerdict]:
        """Judge the entry's claims."""
        return [judge(claim, self.findings.figures) for claim in entry.claims]


RESULT = TypeAdapter(EntryResult)


@dataclass(frozen=True, slots=True)
class PapersRun:
    """A run as its folder holds it: another pair, other prompts or another seed are another run."""

    name: str
    """Its folder's."""
    facts: Mapping[str, Any]
    """Target, draft, prompts, size, seed."""
    results: Mapping[str, EntryResult]
    """By paper and id: osd, Table 4."""

    @property
    def pair(self) -> tuple[Any, Any]:
        """Its target and draft."""
        return self.facts.get("target"), self.facts.get("draft")

    def verdicts(self, job: EntryJob) -> list[ClaimVerdict]:
        """Return what became of an entry's claims; nothing where it was not run."""
        result = self.results.get(str(job))
        return result.verdicts(job.entry) if result else []

    def differs(self, other: PapersRun) -> str:
        """What this run has and the other one has not, for people: seed 1."""
        own = {name: value for name, value in self.facts.items() if value != other.facts.get(name)}
        told = {name: ", ".join(value) if isinstance(value, list) else str(value) for name, value in own.items()}
        return "; ".join(f"{name} {value}" for name, value in told.items()) or "the same once more"


def all_jobs() -> Iterator[EntryJob]:
    """Yield every entry of the catalogue."""
    return (EntryJob(paper, entry) for paper in all_papers() for entry in paper.entries)


def keep(out: Path, job: EntryJob, result: EntryResult) -> None:
    """Keep a result. Raises StoreWriteFailed."""
    path = job.path(out)
    make_folder(path.parent)
    write_whole(path, memoryview(RESULT.dump_json(result, indent=1)))


def kept(out: Path, job: EntryJob) -> EntryResult | None:
    """Return the result that is there. Raises BadSetting for one that cannot be read."""
    path = job.path(out)
    if not path.exists():
        return None
    try:
        return RESULT.validate_json(path.read_bytes())
    except ValueError:
        reason = f"{path} is not a result; remove that file, or give another folder"
        raise BadSetting(source="option", key="--out", reason=reason) from None


def run_of(folder: Path, option: str = "--out") -> PapersRun:
    """Return the run that a folder holds. Raises BadSetting where there is none, or a result cannot be read."""
    try:
        facts = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        reason = f"{folder} holds no run; give the --out of another `python -m benchmarks papers`"
        raise BadSetting(source="option", key=option, reason=reason) from None
    found = {str(job): result for job in all_jobs() if (result := kept(folder, job))}
    return PapersRun(folder.resolve().name, {name: value for name, value in facts.items() if value is not None}, found)
