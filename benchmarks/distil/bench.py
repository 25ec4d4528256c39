"""One draft after another: distilled offline in a process of the trainer, then measured on texts that none has seen."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.distil.arms import DistilArm
from benchmarks.distil.texts import AnsweredSet, PromptSplit, TextTest, answered
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from osd.demo.runner.process import command, environment, save_settings
from osd.engine.session import in_folder
from osd.models.pair import Pair, load_model
from storage.errors import BadInput, TrainingFailed
from storage.sampling import Sampling
from storage.settings import Settings

LOG = "arms.jsonl"
TAIL = 6
"""Lines of a failed process that are told."""


@dataclass(frozen=True, slots=True)
class DistilPlan:
    """What is compared, on what."""

    arms: Sequence[DistilArm]
    temperatures: Sequence[float]
    epochs: int
    positions: int
    """Positions of each data set that an arm learns from at most, once an epoch."""
    max_new_tokens: int
    top_p: float
    out: Path

    def sampling(self, temperature: float) -> Sampling:
        """Return how answers at a temperature are sampled, whatever the model's generation_config.json says."""
        plain = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        return Sampling(temperature, top_p=self.top_p, **plain) if temperature else Sampling()  # type: ignore[arg-type]


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


def bench_distil(
    pair: Pair, settings: Settings, splits: Mapping[str, PromptSplit], plan: DistilPlan, folder: RunFolder[DistilCell],
    watch: Watch,
) -> list[DistilCell]:  # fmt: skip
    """Measure every cell that the folder does not hold yet. Raises TrainingFailed, StoreWriteFailed."""
    table = _Table(pair, settings, splits, plan)
    jobs = [DistilJob(name, t, arm) for t in plan.temperatures for name in splits for arm in plan.arms]
    return measure_all(jobs, table.measure, watch, folder=folder, job_of=lambda cell: cell.job)


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
        self._at: tuple[str, float] | None = None
        self._answered: AnsweredSet
        self._test: TextTest

    def measure(self, job: DistilJob) -> DistilCell:
        """Distil a draft, let it read the test texts, and delete it again."""
        plan, place = self._plan, (job.data_set, job.temperature)
        folder = plan.out / f"{job.data_set}-{job.temperature:g}"
        if self._at != place:
            sampling, split = plan.sampling(job.temperature), self._splits[job.data_set]
            self._answered = answered(
                self._pair, self._settings, split, sampling, plan.max_new_tokens, plan.positions, folder
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
        settings = self._settings.changed(learn=job.arm.learn, storage={"directory": plan.out / "data"})
        asked: list[object] = []
        if job.arm.draws:
            drawn = plan.sampling(job.temperature)
            asked += ["--target", in_folder(self._pair.target).name, "--temperature", drawn.temperature]
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
