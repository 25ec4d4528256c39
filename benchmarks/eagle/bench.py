"""``python -m benchmarks eagle``: the draft, the arms, and Tables 10 and 11 of on-the-fly adaptation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from benchmarks.eagle.arms import ALONE, ARMS, EAGLE_2, FIXED, NODES, DepthCell, DepthRun, jobs_of
from benchmarks.eagle.learn import trained_eagle
from benchmarks.eagle.told import ToldTexts
from benchmarks.figures import ratio_of_sums
from benchmarks.gamma.costs import find_costs
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import Count, TargetPlan, data_sets, facts_of
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch
from osd.models.features.decoder import load_feature_model
from osd.models.pair import Pair, row_limit
from osd.server.start import choose_pair
from storage.settings import Settings

LOG = "arms.jsonl"
Tables = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class EaglePlan(TargetPlan):
    """EAGLE-2's trees at fixed depths and at depths that a rule sets, by told time.

    An EAGLE draft of random weights learns from the target's answers first. Time is that of a table of costs: a draft
    pass for each level of a tree, a target pass by the nodes in it.

    Example: `python -m benchmarks eagle --prompts gsm8k.jsonl,wikisql.jsonl --out out/eagle`
    """

    out: Path
    """Folder; a stopped run goes on in it."""
    learn: Annotated[int, Ge(8)] = 200
    """Answers of each data set to learn from."""
    count: Annotated[int, Ge(2)] = 24
    """Prompts of each data set that are measured."""
    warm: Annotated[int, Ge(0)] = 6
    """Prompts of each data set before them, not counted: a rule learns from them what passes cost and what drafts are
    worth."""
    max_tokens: Annotated[int, Ge(2)] = 48
    """Tokens of an answer at most."""
    costs: tuple[str, ...] = ("a100-c013", "a100-c008")
    """Profiles by which time is told: an A100 with a 7B and a 33B target, whose drafts cost about what an EAGLE layer
    does."""
    nodes: Count = NODES
    """Nodes of a tree at most."""
    seed: int = 0
    """Which prompts are drawn."""


def bench_eagle(plan: EaglePlan, settings: Settings, watch: Watch) -> BenchResult:
    """Decode with every arm, and tell the time."""
    pair = choose_pair(settings.serve, plan.target, drafter="lookup").load(settings.serve)  # its draft is yet to come
    cells = decode_all(plan, pair, settings, watch)
    facts, stopped = facts_of(plan, target=pair.target.name), watch.stopped
    if stopped:
        return BenchResult("eagle", facts, {}, interrupted=True)
    speeds, details = tables_of(cells, plan.costs)
    return BenchResult("eagle", facts, figures_of(cells, plan.costs), speeds | details)


def decode_all(plan: EaglePlan, pair: Pair, settings: Settings, watch: Watch) -> list[DepthCell]:
    """Train a draft, then run every arm that the folder does not hold yet; fewer where Ctrl-C ended it.

    Raises BadSetting where it holds a run of another plan, BadBenchFile for costs that there are not, TrainingFailed,
    StoreError.
    """
    for name in plan.costs:
        find_costs(name)
    folder = RunFolder(plan.out, facts_of(plan, target=pair.target.name), LOG, DepthCell)
    longest, first = row_limit(pair, settings.serve) - plan.max_tokens, plan.warm + plan.count
    drawn = data_sets(plan, pair.tokenizer, first + plan.learn, longest, seed=plan.seed)
    others = [text for some in drawn.values() for text in some[first:]]
    draft = load_feature_model(trained_eagle(pair, settings, others, plan.max_tokens, plan.out, watch), pair.target)
    measured = {name: some[:first] for name, some in drawn.items()}
    run = DepthRun(replace(pair, draft=draft), settings, measured, plan.max_tokens, plan.warm, plan.nodes)
    return measure_all(jobs_of(plan.costs), run.measure, watch, folder=folder, job_of=lambda cell: cell.job)


def texts_by_arm(cells: Sequence[DepthCell], costs: str) -> dict[str, ToldTexts]:
    """Return each arm's texts by one table."""
    table = find_costs(costs)
    return {c.job.arm: ToldTexts.of(c.texts, table) for c in cells if c.job.costs in ("", costs)}


def differing(cells: Sequence[DepthCell]) -> int:
    """Count the texts, of all arms, that are not what the target says alone: 0, but for ties that rounding breaks."""
    alone = next(cell for cell in cells if cell.job.arm == ALONE.name)
    pairs = [zip(cell.texts, alone.texts, strict=True) for cell in cells]
    return sum(own.tokens != theirs.tokens for some in pairs for own, theirs in some)


def figures_of(cells: Sequence[DepthCell], costs: Sequence[str]) -> dict[str, Any]:
    """Return the columns of Table 11 by costs, arm and data set."""
    found: dict[str, Any] = {"differing": differing(cells)}
    for name in costs:
        texts = texts_by_arm(cells, name)
        sets = dict.fromkeys(texts[ALONE.name].data_sets)
        found[name] = {
            arm: {"all": own.table_11()} | {each: own.only(each).table_11() for each in sets}
            for arm, own in texts.items()
        }
    return found


def tables_of(cells: Sequence[DepthCell], costs: Sequence[str]) -> tuple[Tables, Tables]:
    """Return Table 10 and Table 11 for each table of costs."""
    told = {name: texts_by_arm(cells, name) for name in costs}
    speeds = {f"Speed by data set, costs of {name}": table_10(texts) for name, texts in told.items()}
    parts = {
        f"All data sets, costs of {name}": [{"": arm.name, **texts[arm.name].table_11()} for arm in ARMS]
        for name, texts in told.items()
    }
    return speeds, parts


def table_10(texts: Mapping[str, ToldTexts]) -> list[dict[str, Any]]:
    """Return the speed of each arm, by data set, ÷ EAGLE-2's depth with its error, and ÷ the target alone."""
    rows = []
    for arm in ARMS:
        row: dict[str, Any] = {"": arm.name}
        for name in dict.fromkeys(texts[ALONE.name].data_sets):
            own, base, alone = (texts[each].only(name) for each in (arm.name, FIXED[EAGLE_2].name, ALONE.name))
            row[f"{name} ÷ depth {EAGLE_2}"] = str(ratio_of_sums(base.ms, own.ms))
            row["÷ alone, " + name] = ratio_of_sums(alone.ms, own.ms).value
        rows.append(row)
    return rows
