"""The catalogue: what five papers show, what is run for each table and figure, and the rule of each verdict.

A paper is a file beside this one, `<name>.toml`, an entry a table in it:

    [[entries]]
    id = "Table 3"                # as the paper names it
    title = "…"                   # what it shows
    says = "…"                    # what the paper says: its numbers with their set-up
    ran = "…"                     # what is run here
    differs = "…"                 # what the paper had and this has not; may be left out
    claims = [{ text = "…", figure = "speed_up", at_least = 1.0 }]      # at_least, at_most or both
    [entries.run]
    experiment = "distilled.DistilledSpeeds"   # a class of experiments/distilled.py
    both = { gamma = 5 }          # its fields, in both sizes and in one
    small = { texts = 4, tokens = 24, minutes = 1.5 }
    full = { texts = 16, tokens = 64, minutes = 8 }

An entry of which the same is run as for an earlier one says `run = "osd, Table 3"`. One that is not run says why
instead: `not_reproduced`, or `planned` and what is missing. `{name}` stands for a text of the file's `[words]`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError, model_validator

from benchmarks.papers.claims import Claim, Closed
from benchmarks.papers.experiment import PaperExperiment
from storage.errors import BadBenchFile

FOLDER = Path(__file__).parent
Part = TypeVar("Part", bound=Closed)
Raw = dict[str, Any]


class EntryRun(Closed):
    """What is run for an entry."""

    experiment: str
    """Module and class in experiments/."""
    shares: str = ""
    """A name for what it runs, where other experiments run the same: to them it costs nothing any more."""
    both: Raw = Field(default_factory=dict)
    small: Raw = Field(default_factory=dict)
    full: Raw = Field(default_factory=dict)

    def fields(self, full: bool) -> Raw:
        """Return the experiment's fields."""
        return {**self.both, **(self.full if full else self.small)}

    @property
    def kind(self) -> type[PaperExperiment]:
        """The class of the experiment. Raises ImportError and AttributeError for what there is not."""
        module, name = self.experiment.split(".")
        found: type[PaperExperiment] = getattr(import_module(f"benchmarks.papers.experiments.{module}"), name)
        return found

    def plan(self, full: bool) -> PaperExperiment:
        """Return the experiment. Raises ValidationError, ImportError and AttributeError for what there is not."""
        return self.kind.model_validate(self.fields(full))

    def minutes(self, full: bool) -> float:
        """Return about how long it takes on a core."""
        return float(self.fields(full).get("minutes", 0.0))


class PaperEntry(Closed):
    """A table, figure, equation or claim of a paper. Exactly one of ``run``, ``planned`` and ``not_reproduced`` says
    what becomes of it."""

    id: str
    title: str
    says: str
    ran: str = ""
    run: EntryRun | None = None
    claims: tuple[Claim, ...] = ()
    differs: str = ""
    planned: str = ""
    not_reproduced: str = ""

    @model_validator(mode="after")
    def _one_fate(self) -> PaperEntry:
        told = [bool(self.run), bool(self.planned), bool(self.not_reproduced)]
        if sum(told) != 1 or bool(self.run) != bool(self.claims) or bool(self.run) != bool(self.ran):
            raise ValueError("say what is run and its claims, or what is missing, or why it is not run")
        return self

    @property
    def slug(self) -> str:
        """The id as a folder's name: table-4."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.id.lower()).split())


class Paper(Closed):
    """A paper and everything that it shows."""

    name: str
    """As --paper takes it."""
    place: int
    """Where it stands among the papers."""
    title: str
    authors: str
    entries: tuple[PaperEntry, ...]

    @model_validator(mode="after")
    def _each_once(self) -> Paper:
        ids = [entry.id for entry in self.entries]
        if twice := {each for each in ids if ids.count(each) > 1}:
            raise ValueError(f"{', '.join(sorted(twice))} twice")
        return self

    def command(self, entry: PaperEntry, size: str = "--full") -> str:
        """Return the command for one entry alone."""
        return f'python -m benchmarks papers --paper {self.name} --table "{entry.id}" {size} --out out/papers'


@cache
def all_papers() -> tuple[Paper, ...]:
    """Return the papers in their order."""
    return load_papers(FOLDER)


def load_papers(folder: Path) -> tuple[Paper, ...]:
    """Read every paper of a folder. Raises BadBenchFile, which names the file and the entry."""
    files = {path: _read(path) for path in sorted(folder.glob("*.toml"))}
    runs = {
        f"{path.stem}, {entry.get('id')}": entry["run"]
        for path, raw in files.items() for entry in raw.get("entries", ()) if isinstance(entry.get("run"), dict)
    }  # fmt: skip
    return tuple(sorted((_paper(path, raw, runs) for path, raw in files.items()), key=lambda paper: paper.place))


def _paper(path: Path, raw: Raw, runs: Mapping[str, Raw]) -> Paper:
    entries = tuple(_entry(path, each, runs) for each in raw.get("entries", ()))
    return _checked(Paper, {"name": path.stem, **raw, "entries": entries}, path, "the paper")


def _entry(path: Path, raw: Raw, runs: Mapping[str, Raw]) -> PaperEntry:
    if isinstance(same := raw.get("run"), str):
        if same not in runs:
            raise BadBenchFile(path=path, reason=f"{raw.get('id')}: run: there is no entry {same!r} that is run")
        raw = {**raw, "run": runs[same]}
    return _checked(PaperEntry, raw, path, str(raw.get("id", "an entry without id")))


def _checked(kind: type[Part], raw: Raw, path: Path, name: str) -> Part:
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'all'}: {each['msg']}" for each in error.errors())
        raise BadBenchFile(path=path, reason=f"{name}: {told}") from None


def _read(path: Path) -> Raw:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadBenchFile(path=path, reason=str(error)) from None
    words = {f"{{{name}}}": word for name, word in _told(raw.pop("words", {}), {}).items()}
    found: Raw = _told(raw, words)
    return found


def _told(value: Any, words: Mapping[str, str]) -> Any:
    """Return a value of the file with every text on one line and its words put in."""
    if isinstance(value, dict):
        return {key: _told(inner, words) for key, inner in value.items()}
    if isinstance(value, list):
        return [_told(inner, words) for inner in value]
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    for name, word in words.items():
        text = text.replace(name, word)
    return text
