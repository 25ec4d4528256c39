"""Tables and figures of papers, and the experiments that are run for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.papers.claims import Claim, ClaimVerdict, PaperFigure, judge
from osd.bench.harness.watch import Watch
from storage.errors import OsdError
from storage.settings import Settings

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a picture."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Picture:
    """Curves over one axis."""

    x: str
    y: str
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True)
class PaperFindings:
    """What an experiment found for one entry."""

    figures: Mapping[str, PaperFigure]
    """What claims are judged by."""
    tables: Mapping[str, Rows] = field(default_factory=dict)
    """By title, rows for people."""
    pictures: Mapping[str, Picture] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PaperSizes:
    """How much is measured. What an experiment has no use for is 0."""

    texts: int = 0
    """Prompts or requests of each data set."""
    tokens: int = 0
    """Tokens of an answer at most."""
    seeds: int = 1
    """Runs with other draws."""
    minutes: float = 0.0
    """About how long it takes on a core, for the estimate that progress begins with."""

    def __str__(self) -> str:
        parts = [f"{self.texts} texts of each data set" * bool(self.texts), f"{self.tokens} tokens" * bool(self.tokens)]
        return ", ".join([part for part in parts if part] + [f"{self.seeds} seeds"] * (self.seeds > 1)) or "no model"


@dataclass
class PapersBench:
    """The surroundings of experiments: the pair, prompts, and a folder for runs that several entries share."""

    settings: Settings
    watch: Watch
    out: Path
    target: str
    draft: str
    full: bool = False
    prompts: Sequence[str] = ()
    """Files; none: the prompts that ship with osd."""
    seed: int = 0
    """Added to all seeds."""
    kept: dict[str, Any] = field(default_factory=dict)

    def folder(self, name: str) -> Path:
        """Return the folder of a run that entries share."""
        path = self.out / "runs" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returned the first time that this name was asked for; raise the OsdError that it raised
        then, so that entries which share hours of work fail with it once."""
        if name not in self.kept:
            try:
                self.kept[name] = make()
            except OsdError as error:
                self.kept[name] = error
        if isinstance(found := self.kept[name], OsdError):
            raise found
        return found


@dataclass(frozen=True, slots=True)
class PaperExperiment:
    """What is run for an entry."""

    run: Callable[[PapersBench, PaperSizes], PaperFindings]
    small: PaperSizes = PaperSizes()
    full: PaperSizes = PaperSizes()
    shares: str = ""
    """A name for what it runs, where other experiments run the same: to them it costs nothing any more."""

    def sizes(self, full: bool) -> PaperSizes:
        """Return how much is measured."""
        return self.full if full else self.small


@dataclass(frozen=True, slots=True)
class PaperEntry:
    """A table, figure, equation or claim of a paper. Exactly one of ``experiment``, ``planned`` and ``not_reproduced``
    says what becomes of it."""

    id: str
    """As the paper names it: Table 4."""
    title: str
    says: str
    """What the paper says: its numbers with their set-up."""
    ran: str = ""
    """What is run here: arms, subject."""
    experiment: PaperExperiment | None = None
    claims: tuple[Claim, ...] = ()
    differs: str = ""
    """What the paper had and this has not."""
    planned: str = ""
    """What is missing before it can be run."""
    not_reproduced: str = ""
    """Why it is not to be run."""

    def __post_init__(self) -> None:
        told = [bool(self.experiment), bool(self.planned), bool(self.not_reproduced)]
        if sum(told) != 1 or bool(self.experiment) != bool(self.claims) or bool(self.experiment) != bool(self.ran):
            raise ValueError(f"{self.id}: say what is run and its claims, or what is missing, or why it is not run")

    @property
    def slug(self) -> str:
        """The id as a folder's name: table-4."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.id.lower()).split())


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper and everything that it shows."""

    name: str
    """As --paper takes it."""
    title: str
    authors: str
    entries: tuple[PaperEntry, ...]

    def __post_init__(self) -> None:
        ids = [entry.id for entry in self.entries]
        if twice := {each for each in ids if ids.count(each) > 1}:
            raise ValueError(f"{self.name} has {', '.join(sorted(twice))} twice")

    def command(self, entry: PaperEntry, size: str = "--full") -> str:
        """Return the command for one entry alone."""
        return f'python -m benchmarks papers --paper {self.name} --table "{entry.id}" {size} --out out/papers'


@dataclass(frozen=True, slots=True)
class EntryResult:
    """What came of an entry, as it is kept."""

    paper: str
    id: str
    sizes: str
    seconds: float
    findings: PaperFindings
    failure: str = ""
    """Why there are no findings."""

    def verdicts(self, entry: PaperEntry) -> list[ClaimVerdict]:
        """Judge the entry's claims, by the rules as they are written now."""
        return [judge(claim, self.findings.figures) for claim in entry.claims]


@dataclass(frozen=True, slots=True)
class PapersRun:
    """A run as its folder holds it: another pair, other prompts or another seed are another run."""

    name: str
    """Its folder's."""
    facts: Mapping[str, Any]
    """Target, draft, prompts, size, seed."""
    results: Mapping[tuple[str, str], EntryResult]
    """By paper and id."""

    def differs(self, other: PapersRun) -> str:
        """What this run has and the other one has not, for people: seed 1."""
        own = {name: value for name, value in self.facts.items() if value != other.facts.get(name)}
        told = {name: ", ".join(value) if isinstance(value, list) else str(value) for name, value in own.items()}
        return "; ".join(f"{name} {value}" for name, value in told.items()) or "the same once more"
