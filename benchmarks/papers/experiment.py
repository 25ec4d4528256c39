"""An experiment: a plan whose fields the catalogue gives, which runs its arms, measures, and tells rows and figures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from benchmarks.figures import PaperFigure
from benchmarks.papers.claims import Closed
from osd.bench.harness.prompts import Tokens, texts_by_set, tokens_by_set
from osd.bench.harness.watch import Watch
from storage.errors import OsdError
from storage.settings import Settings

if TYPE_CHECKING:
    from benchmarks.gamma.rounds import Recording
    from osd.models.pair import Pair

Rows = Sequence[Mapping[str, Any]]
Made = TypeVar("Made")


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


@dataclass
class PapersBench:
    """The surroundings of experiments: the pair, prompts, and a folder for runs that several entries share."""

    settings: Settings
    watch: Watch
    out: Path
    target: str
    draft: str
    prompts: Sequence[str] = ()
    """Files; none: the prompts that ship with osd."""
    seed: int = 0
    """Added to all seeds."""
    kept: dict[str, Any] = field(default_factory=dict)
    recording: Recording | None = None
    """Rounds of a pair that is not here; None records those of the pair."""
    larger: Recording | None = None
    """Those of a larger draft on texts of the same prompts."""

    @cached_property
    def pair(self) -> Pair:
        """The pair, loaded once."""
        return self.load(self.draft)

    def load(self, draft: str | Path) -> Pair:
        """Load the target with a draft."""
        from osd.models.pair import load_pair

        serve = self.settings.serve
        return load_pair(self.target, draft, device=serve.device, dtype=serve.dtype)

    def longest(self, tokens: int) -> int:
        """Return the tokens of the longest prompt that leaves room for so many."""
        from osd.models.pair import row_limit

        return row_limit(self.pair, self.settings.serve) - tokens

    def sets(self, texts: int, tokens: int) -> dict[str, list[Tokens]]:
        """Return so many prompts of each data set that leave room for an answer."""
        longest = self.longest(tokens)
        return tokens_by_set(self.pair.tokenizer, self.prompts, texts, longest, seed=self.seed)

    def others(self, count: int, measured: int) -> dict[str, list[str]]:
        """Return up to ``count`` prompts of each data set that are not among the ``measured`` ones of :meth:`sets`."""
        drawn = texts_by_set(self.prompts, 2 * measured, seed=self.seed)
        wanted = count + 2 * measured
        if self.prompts:
            found = texts_by_set(self.prompts, wanted, seed=self.seed + 1)
        else:
            from osd.demo.prompts import prompts

            found = {name: prompts(name, wanted, self.seed + 1) for name in drawn}
        return {name: [text for text in some if text not in drawn[name]][:count] for name, some in found.items()}

    def folder(self, name: str) -> Path:
        """Return the folder of a run that entries share."""
        path = self.out / "runs" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Return what ``make`` returned the first time that this name was asked for; raise the OsdError that it raised
        then, so that entries which share hours of work fail with it once. Raises KeyboardInterrupt where Ctrl-C ended
        it, for what it returned is not whole then."""
        if name not in self.kept:
            try:
                self.kept[name] = make()
            except OsdError as error:
                self.kept[name] = error
            if self.watch.stopped:
                raise KeyboardInterrupt
        found: Made | OsdError = self.kept[name]
        if isinstance(found, OsdError):
            raise found
        return found


class PaperExperiment(Closed):
    """What is run for an entry, and how much of it. What an experiment has no use for is 0."""

    replays: ClassVar[int] = 0
    """Recorded rounds of how many drafts are all that it needs; 0: no recording is enough."""
    texts: int = 0
    """Prompts or requests of each data set."""
    tokens: int = 0
    """Tokens of an answer at most."""
    seeds: int = 1
    """Runs with other draws."""
    recipes: tuple[str, ...] = ("newest", "reservoir", "printed")
    """Ways to learn, of experiments that compare some."""
    minutes: float = 0.0
    """About how long it takes on a core, for the estimate that progress begins with."""

    @abstractmethod
    def run(self, bench: PapersBench) -> PaperFindings:
        """Run the arms, measure, and tell what was found."""

    def named(self, run: str) -> str:
        """Return the name of a run of this size that entries share."""
        return f"{run}-{self.texts}x{self.tokens}"

    def __str__(self) -> str:
        parts = [f"{self.texts} texts of each data set" * bool(self.texts), f"{self.tokens} tokens" * bool(self.tokens)]
        return ", ".join([part for part in parts if part] + [f"{self.seeds} seeds"] * (self.seeds > 1)) or "no model"


Own = TypeVar("Own", bound=PaperExperiment)


def shared(name: str) -> Callable[[Callable[[Own, PapersBench], Made]], Callable[[Own, PapersBench], Made]]:
    """Let a method of experiments run once for all entries of the same size: what it returns is kept by this name."""

    def wrap(method: Callable[[Own, PapersBench], Made]) -> Callable[[Own, PapersBench], Made]:
        return wraps(method)(lambda own, bench: bench.once(own.named(name), lambda: method(own, bench)))

    return wrap
