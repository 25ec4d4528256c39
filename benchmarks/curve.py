"""Acceptance of a feature draft by the number of the target's answers that it learned from, and the law of that curve.

Each point is a draft of random weights that learned from the first n answers. All are judged on the same answers, which
none learns from, as the gate does: expected acceptance over chains of three tokens, errors clustered by answer.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.curve_law import draw, laws_of
from benchmarks.drafting import DraftingPlan, bench_drafting
from benchmarks.eagle.learn import eagle_settings, recorded, teach_draft, text_of
from benchmarks.figures import PaperFigure, difference_of_shares, ratio_of_sums
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import Count, TargetPlan, facts_of
from osd.bench.harness.prompts import Tokens, choose
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.turns import Cell, measure_all
from osd.bench.harness.watch import Watch
from osd.models.features.files import load_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.pair import Pair
from osd.prompts import Prompt, encode, read_prompts
from osd.server.start import choose_pair
from storage.records import RequestSamples
from storage.settings import Settings
from storage.versions.feature_kinds import DFLASH, EAGLE, EAGLE3, MEDUSA, PEAGLE
from trainer.distil.optimizer import RATE_TIMES_WIDTH, width
from trainer.distil.resident import ResidentModels
from trainer.distil.scores import score
from trainer.distil.teacher import Lessons, RecomputeTeacher

JUDGED = 3
"""Tokens of the chains that judge, whatever was learned."""
CACHE_MB = 4096
"""Memory for the target's hidden states: it reads each answer once."""
KINDS = ("causal", "tree")
LOG, DEFAULT, OWN, RATE, KIND = "points.jsonl", "default", "own-answers", "rate", "kind"
NEW = (MEDUSA, EAGLE, EAGLE3, PEAGLE, DFLASH)
"""Kinds of drafts that begin with random weights."""
WAYS: Mapping[str, Mapping[str, Any]] = {
    DEFAULT: {}, "one-step": {"steps": 1}, "step-weight-1": {"step_weight": 1.0},
    "step-weight-0.6": {"step_weight": 0.6}, **{f"rate-{times}": {RATE: float(times)} for times in (1, 2, 4, 8)},
    "epochs-6": {"epochs": 6}, "vocabulary-8192": {"draft_vocabulary": 8192}, OWN: {},
    **{kind: {KIND: kind} for kind in NEW},
}  # fmt: skip
"""What ``[learn]`` has otherwise; ``rate`` is a multiple of the default learning rate, ``kind`` the draft's (EAGLE)."""


class Taught(NamedTuple):
    """A draft: the way it learned, several joined by +, and from how many answers."""

    way: str
    answers: int

    def __str__(self) -> str:
        return f"{self.way}, {self.answers} answers"


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a draft."""

    expected: list[float]
    """Expected number of accepted tokens, by judging answer."""
    positions: list[float]
    """Drafted tokens that they are of."""
    depths: list[float]
    """Share of first choices that were the target's, by depth, where all before them were."""
    steps: int
    seconds: float
    processor_seconds: float

    @property
    def acceptance(self) -> PaperFigure:
        """Accepted ÷ drafted."""
        return ratio_of_sums(self.expected, self.positions)


CurveCell = Cell[Taught, Judged]


@dataclass(frozen=True, kw_only=True)
class CurvePlan(TargetPlan):
    """How a feature draft's acceptance grows with the answers that it learned from, by which law, and what is faster.

    Example: `python -m benchmarks curve --prompts gsm8k.jsonl,wikisql.jsonl --ways rate-2,one-step --out out/curve`
    """

    out: Path
    """Folder; a stopped run goes on in it."""
    points: tuple[Count, ...] = (300, 600, 1200, 2500, 5000)
    """Numbers of answers."""
    way: str = DEFAULT
    """How drafts of the curve learn; see ways."""
    ways: tuple[str, ...] = ()
    """Other ways, each tried beside the curve's: one-step, step-weight-1, step-weight-0.6, rate-1, rate-2, rate-4,
    rate-8, epochs-6, vocabulary-8192, own-answers (of the data sets); or kinds: medusa, eagle, eagle3, peagle,
    dflash."""
    at: tuple[Count, ...] = (1500,)
    """Numbers of answers at which they are tried."""
    judges: Count = 250
    """Answers that judge."""
    longest: Count = 256
    """Tokens of a prompt at most."""
    max_tokens: Count = 48
    """Tokens of an answer at most."""
    epochs: Count = 3
    """Passes over the answers."""
    decode: tuple[str, ...] = ()
    """Files of prompts that are decoded with the draft of the last point at the end."""
    seed: int = 0
    """Which prompts are drawn."""

    @property
    def jobs(self) -> list[Taught]:
        """The curve's points and the ways, those of few answers first."""
        beside = [self.way, *(f"{self.way}+{way}" for way in self.ways)] if self.ways else []
        points = [Taught(self.way, n) for n in self.points]
        ways = [Taught(way, n) for n in self.at for way in beside]
        return sorted(dict.fromkeys((*points, *ways)), key=lambda job: job.answers)

    @property
    def facts(self) -> dict[str, Any]:
        """What all drafts of a folder have in common."""
        free = ("points", "way", "ways", "at", "decode")
        return {name: value for name, value in facts_of(self).items() if name not in free}


def bench_curve(plan: CurvePlan, settings: Settings, watch: Watch) -> BenchResult:
    """Record what is missing, let drafts learn, and judge them. Raises BadSetting, BadPromptFile, TrainingFailed."""
    choose([part for way in (plan.way, *plan.ways) for part in way.split("+")], WAYS, "--ways")
    names = choose_pair(settings.serve, plan.target, drafter="lookup")
    pair = names.load(settings.serve)
    folder = RunFolder(plan.out, plan.facts | {"target": pair.target.name}, LOG, CurveCell)
    school = School(plan, pair, settings, watch)
    cells = measure_all(plan.jobs, school.measure, watch, folder=folder, work=lambda job: float(job.answers))
    curves = curves_of(folder.finished, plan.way)
    laws = [{"way": way, **law} for way, points in curves.items() for law in laws_of(points)]
    rows = [_row(cell, cells, plan.way) for cell in cells]
    figures = {"drafts": rows, "laws": laws}
    tables = {"Acceptance ± standard error": rows, "Laws": laws}
    if watch.stopped:
        return BenchResult("curve", facts_of(plan), figures, tables, interrupted=True)
    if plan.decode:
        figures["decoded"] = tables["Decoded"] = [decoded(plan, names.target, settings, kind, watch) for kind in KINDS]
    others = [(row["way"], row["difference"], row["its error"]) for row in rows if "difference" in row]
    picture = draw(curves, laws, others, plan.out)
    return BenchResult("curve", facts_of(plan), figures, tables, {"picture": picture}, watch.stopped)


def curves_of(cells: Sequence[CurveCell], way: str) -> dict[str, list[tuple[int, PaperFigure]]]:
    """Return the points of a way, and of all others that have three or more."""
    found: dict[str, list[tuple[int, PaperFigure]]] = {way: []}
    for cell in sorted(cells, key=lambda cell: cell.job.answers):
        found.setdefault(cell.job.way, []).append((cell.job.answers, cell.found.acceptance))
    return {name: points for name, points in found.items() if name == way or len(points) >= 3}


def _row(cell: CurveCell, cells: Sequence[CurveCell], base: str) -> dict[str, Any]:
    job, found, own = cell.job, cell.found, cell.found.acceptance
    row = {"way": job.way, "answers": job.answers, "acceptance": own.value, "error": own.error}
    row |= {f"right at {depth}": share for depth, share in enumerate(found.depths, 1)}
    row |= {"steps": found.steps, "seconds": found.seconds, "processor s": found.processor_seconds}
    beside = next((c.found for c in cells if c.job == Taught(base, job.answers) and c is not cell), None)
    if beside and job.way != base:
        less = difference_of_shares(found.expected, beside.expected, found.positions)
        row |= {"difference": less.value, "its error": less.error}
    return row


class School:
    """The answers, those who learn from them, and the judges."""

    def __init__(self, plan: CurvePlan, pair: Pair, settings: Settings, watch: Watch) -> None:
        self._plan, self._pair, self._settings, self._watch = plan, pair, settings, watch
        self._shared = FeatureTarget(pair.target.module, pair.target.name, pair.target.digest)
        self._resident, self._judges = ResidentModels(), dict[tuple[int, ...], RecomputeTeacher]()

    @cached_property
    def _asked(self) -> list[AskedText]:
        plan = self._plan
        count = plan.judges + max(job.answers for job in plan.jobs)
        return asked(self._pair.tokenizer, plan.prompts, count, plan.longest, plan.seed)

    def measure(self, job: Taught) -> CurveCell:
        """Let a draft learn, and judge it."""
        plan = self._plan
        prompts = [one.prompt for one in self._asked[: plan.judges + job.answers]]
        whose = self._pair, self._settings
        texts = recorded(*whose, prompts, plan.max_tokens, plan.out / "answers", self._watch)
        judges, lessons = texts[: plan.judges], texts[plan.judges :]
        if OWN in job.way.split("+"):
            lessons = [self._own(one, text) for one, text in zip(self._asked[plan.judges :], lessons, strict=False)]
        self._watch.at(str(job))
        folder = plan.out / f"{job.way}-{job.answers}"
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
        folder.mkdir(parents=True)
        own, kind = self._settings_of(job, folder), _learn(job)[KIND]
        run = teach_draft(self._pair, own, lessons, folder, kind, self._resident)
        shutil.rmtree(folder / "data")
        return Cell(job, self._judged(folder / "draft", judges, run))

    def _settings_of(self, job: Taught, folder: Path) -> Settings:
        learn = {"epochs": self._plan.epochs, "teacher_cache_mb": CACHE_MB} | _learn(job)
        del learn[KIND]
        if times := learn.pop(RATE, None):
            learn["learning_rate"] = times * RATE_TIMES_WIDTH / width(self._pair.target.module)
        own = eagle_settings(self._settings, self._pair, folder / "data", job.answers, **learn)
        return own.changed(storage={"holdout": 0.0}, gate={"requests": 8, "min_gain": -1.0})  # judged here, not there

    def _own(self, one: AskedText, text: RequestSamples) -> RequestSamples:
        """Return the data set's answer; the target's where it has none."""
        tokenizer: Any = self._pair.tokenizer
        most = self._plan.max_tokens
        tokens = [*tokenizer.encode(one.own, add_special_tokens=False), tokenizer.eos_token_id][:most]
        return text_of(one.prompt, tokens) if one.own.strip() else text

    def _judged(self, folder: Path, judges: Sequence[RequestSamples], run: Mapping[str, Any]) -> Judged:
        draft = load_feature_draft(folder, self._shared)
        layers = draft.feature_layers(self._shared.module)
        judge = self._judges.setdefault(layers, RecomputeTeacher(self._shared, layers, CACHE_MB))
        found = score(draft, judges, lessons=Lessons(judge, JUDGED))
        depths = found.right.sum(0) / found.chains.sum(0).clip(min=1)
        took = [run[name] for name in ("steps", "seconds", "processor_seconds")]
        return Judged(found.expected.tolist(), found.positions.tolist(), depths.tolist(), *took)


def _learn(job: Taught) -> dict[str, Any]:
    """Return what all parts of a draft's way say; the last one counts."""
    found: dict[str, Any] = {KIND: EAGLE}
    for part in job.way.split("+"):
        found |= WAYS[part]
    return found


class AskedText(NamedTuple):
    """A prompt, and the answer that its data set has, which may be empty."""

    prompt: Tokens
    own: str


def asked(tokenizer: Any, files: Sequence[str], count: int, longest: int, seed: int) -> list[AskedText]:
    """Return prompts of at most ``longest`` tokens, the data sets in turn; fewer where there are no more."""
    drawn = [_drawn(tokenizer, Path(name), longest, seed) for name in files]
    found: dict[Tokens, AskedText] = {}
    for one in chain.from_iterable(zip_longest(*drawn)):
        if one is not None and len(found) < count:
            found.setdefault(one.prompt, one)
    return list(found.values())


def _drawn(tokenizer: Any, path: Path, longest: int, seed: int) -> Iterable[AskedText]:
    lines = [line for line in read_prompts(path) if isinstance(line, Prompt)]
    random.Random(seed).shuffle(lines)
    found = (AskedText(encode(tokenizer, line.text), str(line.fields.get("response") or "")) for line in lines)
    return (one for one in found if len(one.prompt) <= longest)


def decoded(plan: CurvePlan, target: str, settings: Settings, kind: str, watch: Watch) -> dict[str, Any]:
    """Return what drafting chains or trees brings with the last point's draft; what the folder has is read."""
    way, answers = plan.way, max(plan.points)
    path = plan.out / f"decoded-{way}-{answers}-{kind}.json"
    if not path.exists():
        draft = str(plan.out / f"{way}-{answers}" / "draft")
        asked = DraftingPlan(
            target=target, draft=draft, prompts=plan.decode, rows=(1,), random_draft=False, turns=20, count=9
        )
        found = bench_drafting(asked, settings.changed(drafters={"kind": kind}), watch)
        save_json(path, {"drafts": kind} | found.figures["given@1"])
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return kept
