"""Table 1 of Online Speculative Decoding: one draft after another is distilled offline in a process of the trainer, and
reads the target's answers to prompts that none has seen (:mod:`benchmarks.distil.texts`). A stopped run goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from benchmarks.distil.texts import AnsweredSet, PromptSplit, TextTest, answered
from benchmarks.figures import PaperFigure, difference_of_shares, ratio_of_sums
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import Count, PairPlan, data_sets, facts_of, new_folder, sampling_of
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import Cell, Job, measure_all
from osd.bench.harness.watch import Watch
from osd.demo.runner.process import command, environment, save_settings
from osd.engine.session import in_folder
from osd.models.pair import Pair, row_limit, with_draft
from osd.server.start import choose_pair
from storage.errors import BadInput, TrainingFailed
from storage.settings import Settings

LOG = "arms.jsonl"
TAIL = 6
"""Lines of a failed process that are told."""
SAMPLINGS = {"TF": "teacher", "SF": "student", "MixF": "mixed"}
"""The paper's names, by learn.sampling."""
LOSSES = {"forward_kl": "forward KL", "reverse_kl": "reverse KL", "jsd": "JSD"}
DRAWN_AT = 1.0
"""Temperature of texts that the draft has a part in, as the paper's: greedy ones are a small draft's own loops."""
ORIGINAL, FINE_TUNED = "Original", "FT"


@dataclass(frozen=True, slots=True)
class DistilArm:
    """One way to make a draft."""

    name: str
    """Original, FT, TF, SF or MixF."""
    loss: str = ""
    """A name of learn.loss; empty for the original draft."""

    @property
    def learns(self) -> bool:
        """Whether the draft is trained at all."""
        return bool(self.loss)

    @property
    def draws(self) -> bool:
        """Whether its texts are drawn with the draft's own part, anew in each epoch."""
        return self.name in ("SF", "MixF")

    @property
    def learn(self) -> dict[str, Any]:
        """``[learn]`` of this arm."""
        return {"loss": self.loss, "sampling": SAMPLINGS.get(self.name, "teacher"), "positions": "verified"}

    def __str__(self) -> str:
        return f"{self.name}, {LOSSES[self.loss]}" if self.name in SAMPLINGS else self.name


REFERENCE = DistilArm("TF", "forward_kl")
"""What the paper found best."""


@dataclass(frozen=True, kw_only=True)
class DistilPlan(PairPlan):
    """Table 1 of Online Speculative Decoding: what a draft learns from offline, by whose tokens and which distance.

    Original: as it is. FT: fine-tuned on the target's tokens. TF, SF, MixF: distilled behind the target's tokens, the
    draft's own, or tokens drawn from learn.mix · p + (1 − learn.mix) · q, each with forward KL, reverse KL and JSD. α
    is measured on the target's own answers to further prompts, greedy and at temperature 1; errors are over texts.

    Example: `python -m benchmarks distil --prompts sql.jsonl,chat.jsonl.gz --positions 5000 --out out/table1`
    """

    requests: Count = 200
    """Prompts of each file to learn from."""
    test_requests: Annotated[int, Ge(2)] = 50
    """Further ones to test on."""
    positions: Count = 10_000
    """Positions of a file that a draft learns from at most, once an epoch."""
    max_tokens: Count = 64
    """Tokens of an answer at most."""
    epochs: Count = 2
    """Passes over them; the paper's are two."""
    temperature: tuple[Annotated[float, Ge(0)], ...] = (0.0, 1.0)
    """Temperature of answers; 0 is greedy. Texts that the draft has a part in are drawn at 1."""
    top_p: Annotated[float, Le(1)] = 1.0
    """Answers are drawn from the likeliest tokens with this much probability."""
    sampling: tuple[Literal["TF", "SF", "MixF"], ...] = ("TF", "SF", "MixF")
    """Whose tokens are learned behind."""
    loss: tuple[Literal["forward_kl", "reverse_kl", "jsd"], ...] = ("forward_kl", "reverse_kl", "jsd")
    """By which distances."""
    seed: int = 0
    """Which prompts of a file are drawn."""
    out: Path | None = None
    """Folder of the run; a stopped one goes on there. Default: out/bench-distil-…"""

    @property
    def arms(self) -> list[DistilArm]:
        """The original draft, the fine-tuned one, and each sampling with each loss."""
        crossed = [DistilArm(name, loss) for name in self.sampling for loss in self.loss]
        return [DistilArm(ORIGINAL), DistilArm(FINE_TUNED, "cross_entropy"), *crossed]


@dataclass(frozen=True, slots=True)
class DistilSet:
    """Where drafts are compared: a data set at one temperature."""

    name: str
    temperature: float

    def __str__(self) -> str:
        return f"{self.name}, temperature {self.temperature:g}"


@dataclass(frozen=True, slots=True)
class DistilResult:
    """What came of a draft, text by text."""

    accepted: list[float]
    """Expected number of accepted positions, by test text."""
    positions: list[int]
    """Positions of each test text."""
    trained: int = 0
    """Positions that were learned from, counted once an epoch."""
    seconds: float = 0.0
    """What training took, drawing texts included."""
    loss_last: float = 0.0


DistilJob = Job[DistilSet, DistilArm]
DistilCell = Cell[DistilJob, DistilResult]


def bench_distil(plan: DistilPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Load the pair, and make the table."""
    sampling_of(max(plan.temperature), plan.top_p)  # refuses a top-p that keeps nothing
    pair = choose_pair(settings.serve, plan.target, plan.draft).load(settings.serve)
    out = plan.out or new_folder("bench-distil")
    facts, cells = distil_table(replace(plan, out=out), plan.arms, pair, settings, watch)
    return BenchResult("distil", facts, figures_of(cells), tables_of(cells), {"every text": out / LOG}, watch.stopped)


def distil_table(
    plan: DistilPlan, arms: Sequence[DistilArm], pair: Pair, settings: Settings, watch: Watch
) -> tuple[dict[str, Any], list[DistilCell]]:
    """Measure every cell that the plan's folder does not hold yet; return facts and cells. Raises BadInput,
    BadPromptFile, BadSetting, TrainingFailed and StoreWriteFailed."""
    assert plan.out
    longest = row_limit(pair, settings.serve) - plan.max_tokens
    sets = data_sets(plan, pair.tokenizer, plan.requests + plan.test_requests, longest, seed=plan.seed)
    splits, learn = split(sets, plan.test_requests), settings.learn
    facts = facts_of(
        plan, target=pair.target.name, draft=pair.draft.name, mix=learn.mix, learning_rate=learn.learning_rate,
        jsd_beta=learn.jsd_beta,
    )  # fmt: skip
    folder, table = RunFolder(plan.out, facts, LOG, DistilCell), _Table(pair, settings, splits, plan)
    jobs = [Job(DistilSet(name, t), arm) for t in plan.temperature for name in splits for arm in arms]
    return facts, measure_all(jobs, table.measure, watch, folder=folder)


def split(prompts: Mapping[str, Sequence[Tokens]], test: int) -> dict[str, PromptSplit]:
    """Take the last ``test`` prompts of each data set to test on, and the others to learn from. Raises BadInput where
    there are too few."""
    for name, some in prompts.items():
        if len(some) <= test:
            reason = f"{name} has {len(some)} different prompts that fit, and {test} of them are to test on"
            raise BadInput(reason=f"{reason}; give a larger file, or fewer --test-requests.")
    return {name: PromptSplit(some[:-test], some[-test:]) for name, some in prompts.items()}


class _Table:
    def __init__(self, pair: Pair, settings: Settings, splits: Mapping[str, PromptSplit], plan: DistilPlan) -> None:
        self._pair, self._settings, self._splits, self._plan = pair, settings, splits, plan
        self._out = plan.out or Path()
        self._at: DistilSet | None = None
        self._answered: AnsweredSet
        self._test: TextTest

    def measure(self, job: DistilJob) -> DistilCell:
        """Distil a draft, let it read the test texts, and delete it again."""
        folder = self._out / f"{job.place.name}-{job.place.temperature:g}"
        if self._at != job.place:
            self._answer(job.place, folder)
        positions = self._test.positions
        if not job.arm.learns:
            return Cell(job, DistilResult(self._test.accepted(self._pair.draft), positions))
        made = folder / "draft"
        shutil.rmtree(made, ignore_errors=True)  # of a run that was stopped
        done = self._distil(job, made)
        accepted = self._test.accepted(with_draft(self._pair, made, self._settings.serve.dtype).draft)
        shutil.rmtree(made)
        seconds = done["drawn_seconds"] + done["seconds"]
        return Cell(job, DistilResult(accepted, positions, done["positions"], seconds, done["loss_last"]))

    def _answer(self, place: DistilSet, folder: Path) -> None:
        plan, sampling = self._plan, sampling_of(place.temperature, self._plan.top_p)
        split, limits = self._splits[place.name], (plan.max_tokens, plan.positions)
        self._answered = answered(self._pair, self._settings, split, sampling, *limits, folder)
        self._test, self._at = TextTest(self._pair.target, self._answered.test, sampling), place

    def _distil(self, job: DistilJob, out: Path) -> dict[str, Any]:
        """Return the trainer's summary."""
        plan = self._plan
        settings = self._settings.changed(learn=job.arm.learn, storage={"directory": self._out / "data"})
        asked: list[object] = []
        if job.arm.draws:
            asked += ["--target", in_folder(self._pair.target).name, "--temperature", DRAWN_AT]
            asked += ["--top-p", plan.top_p]
        draft = in_folder(self._pair.draft).name
        return distil_draft(settings, self._answered.learn, draft, out, plan.epochs, *asked, told=str(job))


def distil_draft(
    settings: Settings, samples: Path, draft: str | Path, out: Path, epochs: int, *asked: object, told: str
) -> dict[str, Any]:
    """Distil a draft on a file of samples, in a process of the trainer, into ``out``, which must not be there; return
    its summary. ``asked``: further options of `python -m trainer distil`; ``told``: what is distilled. Raises
    TrainingFailed."""
    config = save_settings(settings, out.parent / "osd.toml")
    plain = ("--samples", samples, "--draft", draft, "--out", out, "--epochs", epochs)
    said = trainer_said("distil", *plain, "--config", config, "--json", *asked, told=told)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def trainer_said(action: str, *asked: object, told: str, variables: Mapping[str, str] | None = None) -> str:
    """Return what `python -m trainer` prints; ``told``: what it trains. Raises TrainingFailed, with the end of what it
    said."""
    own = environment() | dict(variables or {})
    done = subprocess.run(command(action, *asked), env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrainingFailed(run="(offline)", draft=told, reason="\n".join(done.stderr.splitlines()[-TAIL:]))
    return done.stdout


def alpha(cell: DistilCell) -> PaperFigure:
    """Return the share of test positions at which the target accepts, and its standard error over texts."""
    return ratio_of_sums(cell.found.accepted, cell.found.positions)


def against(cells: Sequence[DistilCell], cell: DistilCell) -> PaperFigure | None:
    """Return α less that of TF with forward KL on the same texts; None where that is not there, or is the draft."""
    same = (c for c in cells if c.job == Job(cell.job.place, REFERENCE))
    if (beside := next(same, cell)) is cell:
        return None
    return difference_of_shares(cell.found.accepted, beside.found.accepted, cell.found.positions)


def figures_of(cells: Sequence[DistilCell]) -> dict[str, Any]:
    """Return every cell with its α, error, and paired difference to TF with forward KL."""
    found = []
    for cell in cells:
        own, less, place, arm = alpha(cell), against(cells, cell), cell.job.place, cell.job.arm
        facts = {
            "set": place.name, "temperature": place.temperature, "arm": arm.name, "loss": arm.loss or None,
            "alpha": own.value, "error": own.error, "positions_trained": cell.found.trained,
            "seconds": cell.found.seconds,
        }  # fmt: skip
        found.append(facts | ({"against_tf": less.value, "against_tf_error": less.error} if less else {}))
    return {"cells": found}


def tables_of(cells: Sequence[DistilCell]) -> dict[str, list[dict[str, str]]]:
    """Return a table a temperature: a line a draft, a column a data set."""
    tables: dict[str, list[dict[str, str]]] = {}
    for temperature in dict.fromkeys(cell.job.place.temperature for cell in cells):
        some = [cell for cell in cells if cell.job.place.temperature == temperature]
        rows = {cell.job.arm: {"draft": str(cell.job.arm)} for cell in some}
        for cell in some:
            own, less = alpha(cell), against(cells, cell)
            beside = f" ({less.value:+.3f} ± {less.error or 0:.3f})" if less else ""
            rows[cell.job.arm][cell.job.place.name] = f"{own.value:.3f} ± {own.error or 0:.3f}{beside}"
        name = "greedy" if temperature == 0 else f"temperature {temperature:g}"
        tables[f"α ± standard error, {name} (in brackets: less TF with forward KL, paired)"] = list(rows.values())
    return tables
