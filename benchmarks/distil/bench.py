"""Table 1 of Online Speculative Decoding: one draft after another is distilled offline in a process of the trainer, and
reads the target's answers to prompts that none has seen (:mod:`benchmarks.distil.texts`). A stopped run goes on."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from benchmarks.distil.texts import AnsweredSet, PromptSplit, TextTest, answered
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import Count, PairPlan, data_sets, facts_of, new_folder, sampling_of
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from osd.demo.runner.process import command, environment, save_settings
from osd.engine.session import in_folder
from osd.models.pair import Pair, load_model, row_limit
from osd.server.start import choose_pair
from storage.errors import BadInput, TrainingFailed
from storage.settings import Settings

LOG = "arms.jsonl"
TAIL = 6
"""Lines of a failed process that are told."""
SAMPLINGS = {"TF": "teacher", "SF": "student", "MixF": "mixed"}
"""The paper's names, by learn.sampling."""
LOSSES = {"forward_kl": "forward KL", "reverse_kl": "reverse KL", "jsd": "JSD"}
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
    """Of answers and of texts that are drawn; 0 is greedy."""
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
class DistilJob:
    """One cell of the table."""

    data_set: str
    temperature: float
    arm: DistilArm

    def __str__(self) -> str:
        return f"{self.data_set}, temperature {self.temperature:g}: {self.arm}"


@dataclass(frozen=True, slots=True)
class DistilCell:
    """What came of it, text by text."""

    data_set: str
    temperature: float
    name: str
    loss: str
    accepted: list[float]
    """Expected number of accepted positions, by test text."""
    positions: list[int]
    """Positions of each test text."""
    trained: int = 0
    """Positions that were learned from, counted once an epoch."""
    seconds: float = 0.0
    """What training took, drawing texts included."""
    loss_last: float = 0.0

    @property
    def job(self) -> DistilJob:
        """What was measured."""
        return DistilJob(self.data_set, self.temperature, DistilArm(self.name, self.loss))


def bench_distil(plan: DistilPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Load the pair, and make the table."""
    sampling_of(max(plan.temperature), plan.top_p)  # refuses a top-p that keeps nothing
    pair = choose_pair(settings.serve, plan.target, plan.draft).load(settings.serve)
    return distil_table(replace(plan, out=plan.out or new_folder("bench-distil")), plan.arms, pair, settings, watch)


def distil_table(
    plan: DistilPlan, arms: Sequence[DistilArm], pair: Pair, settings: Settings, watch: Watch
) -> BenchResult:
    """Measure every cell that the plan's folder does not hold yet. Raises BadInput, BadPromptFile, BadSetting,
    TrainingFailed and StoreWriteFailed."""
    assert plan.out
    longest = row_limit(pair, settings.serve) - plan.max_tokens
    sets = data_sets(plan, pair.tokenizer, plan.requests + plan.test_requests, longest, seed=plan.seed)
    splits, learn = split(sets, plan.test_requests), settings.learn
    facts = facts_of(
        plan, target=pair.target.name, draft=pair.draft.name, mix=learn.mix, learning_rate=learn.learning_rate,
        jsd_beta=learn.jsd_beta,
    )  # fmt: skip
    folder, table = RunFolder(plan.out, facts, LOG, DistilCell), _Table(pair, settings, splits, plan)
    jobs = [DistilJob(name, t, arm) for t in plan.temperature for name in splits for arm in arms]
    cells = measure_all(jobs, table.measure, watch, folder=folder, job_of=lambda cell: cell.job)
    files = {"every text": plan.out / LOG}
    return BenchResult("distil", facts, figures_of(cells), tables_of(cells), files, watch.stopped)


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
        self._at: tuple[str, float] | None = None
        self._answered: AnsweredSet
        self._test: TextTest

    def measure(self, job: DistilJob) -> DistilCell:
        """Distil a draft, let it read the test texts, and delete it again."""
        plan, place = self._plan, (job.data_set, job.temperature)
        folder = self._out / f"{job.data_set}-{job.temperature:g}"
        if self._at != place:
            sampling, split = sampling_of(job.temperature, plan.top_p), self._splits[job.data_set]
            self._answered = answered(
                self._pair, self._settings, split, sampling, plan.max_tokens, plan.positions, folder
            )
            self._test, self._at = TextTest(self._pair.target, self._answered.test, sampling), place
        cell = DistilCell(job.data_set, job.temperature, job.arm.name, job.arm.loss, [], self._test.positions)
        if not job.arm.learns:
            return replace(cell, accepted=self._test.accepted(self._pair.draft))
        made = folder / "draft"
        shutil.rmtree(made, ignore_errors=True)  # of a run that was stopped
        done = self._distil(job, made)
        draft = load_model(made, self._pair.device, self._settings.serve.dtype)
        accepted = self._test.accepted(draft)
        shutil.rmtree(made)
        return replace(
            cell, accepted=accepted, trained=done["positions"], seconds=done["drawn_seconds"] + done["seconds"],
            loss_last=done["loss_last"],
        )  # fmt: skip

    def _distil(self, job: DistilJob, out: Path) -> dict[str, Any]:
        """Return the trainer's summary."""
        plan = self._plan
        settings = self._settings.changed(learn=job.arm.learn, storage={"directory": self._out / "data"})
        asked: list[object] = []
        if job.arm.draws:
            asked += ["--target", in_folder(self._pair.target).name, "--temperature", job.temperature]
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
    done = subprocess.run(
        command("distil", *plain, "--config", config, "--json", *asked), env=environment(), capture_output=True,
        text=True,
    )  # fmt: skip
    if done.returncode:
        reason = "\n".join(done.stderr.splitlines()[-TAIL:])
        raise TrainingFailed(run="(offline)", draft=told, reason=reason)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def alpha(cell: DistilCell) -> float:
    """Return the share of test positions at which the target accepts."""
    return sum(cell.accepted) / sum(cell.positions)


def error(cell: DistilCell, other: DistilCell | None = None) -> float:
    """Return the standard error of α, or of its difference to another draft's on the same texts: over texts, which are
    what was drawn (a ratio estimator, as the gate's)."""
    own = [a - (other.accepted[i] if other else 0.0) for i, a in enumerate(cell.accepted)]
    n, total = len(own), sum(cell.positions)
    mean = sum(own) / total
    squares = sum((a - mean * m) ** 2 for a, m in zip(own, cell.positions, strict=True))
    return math.sqrt(n / max(1, n - 1) * squares) / total


def figures_of(cells: Sequence[DistilCell]) -> dict[str, Any]:
    """Return every cell with its α, error, and paired difference to TF with forward KL."""
    found = []
    for cell in cells:
        facts = {
            "set": cell.data_set, "temperature": cell.temperature, "arm": cell.name, "loss": cell.loss or None,
            "alpha": alpha(cell), "error": error(cell), "positions_trained": cell.trained, "seconds": cell.seconds,
        }  # fmt: skip
        beside = _beside(cells, cell)
        if beside is not None and beside is not cell:
            facts |= {"against_tf": alpha(cell) - alpha(beside), "against_tf_error": error(cell, beside)}
        found.append(facts)
    return {"cells": found}


def _beside(cells: Sequence[DistilCell], cell: DistilCell) -> DistilCell | None:
    same = (c for c in cells if (c.data_set, c.temperature) == (cell.data_set, cell.temperature))
    return next((c for c in same if c.job.arm == REFERENCE), None)


def tables_of(cells: Sequence[DistilCell]) -> dict[str, list[dict[str, str]]]:
    """Return a table a temperature: a line a draft, a column a data set."""
    tables: dict[str, list[dict[str, str]]] = {}
    for temperature in dict.fromkeys(cell.temperature for cell in cells):
        some = [cell for cell in cells if cell.temperature == temperature]
        rows = {str(cell.job.arm): {"draft": str(cell.job.arm)} for cell in some}
        for cell in some:
            rows[str(cell.job.arm)][cell.data_set] = _shown(cells, cell)
        name = "greedy" if temperature == 0 else f"temperature {temperature:g}"
        tables[f"α ± standard error, {name} (in brackets: less TF with forward KL, paired)"] = list(rows.values())
    return tables


def _shown(cells: Sequence[DistilCell], cell: DistilCell) -> str:
    own, beside = f"{alpha(cell):.3f} ± {error(cell):.3f}", _beside(cells, cell)
    if beside is None or beside is cell:
        return own
    return f"{own} ({alpha(cell) - alpha(beside):+.3f} ± {error(cell, beside):.3f})"
