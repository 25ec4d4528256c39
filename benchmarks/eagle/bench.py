"""``python -m benchmarks eagle``: the draft, the arms, and Tables 10 and 11 of on-the-fly adaptation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from benchmarks.eagle.learn import trained_eagle
from benchmarks.eagle.paper_trees import Eagle2Trees
from benchmarks.eagle.told import ToldEngine
from benchmarks.gamma.costed import CostedText, CostedTexts
from benchmarks.gamma.costs import CostTable, Piece, Pieces, find_costs
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import Count, TargetPlan, data_sets, facts_of
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import Cell, Job, measure_all
from osd.bench.harness.watch import Watch
from osd.drafters.tree import DraftTrees
from osd.engine.engine import Engine
from osd.models.features.decoder import load_feature_model
from osd.models.pair import Pair, row_limit
from osd.server.start import choose_pair
from storage.settings import Settings

LOG = "arms.jsonl"
DEPTHS = (1, 2, 3, 4, 5, 6, 8)
"""Fixed depths that are tried."""
EAGLE_2 = 6
"""The depth of EAGLE-2's trees as its paper sets it (Section 5)."""
NODES = 60
"""Nodes that EAGLE-2 verifies with a target of 7B (Section 5)."""
DEEPEST = 8
"""The largest depth that a rule may choose."""
PAPERS_H = 6
"""h of the analytic rule: the middle of on-the-fly adaptation's Table 12."""
NO_COSTS = CostTable("no costs", "", *(Pieces((Piece(start_ms=1.0),)),) * 2)
"""The clock of arms that do not look at it."""
Rows = list[dict[str, Any]]


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


@dataclass(frozen=True, slots=True)
class DepthArm:
    """A way to choose the depth of trees."""

    name: str
    rule: str = "fixed"
    depth: int = EAGLE_2
    """The depth of the first rounds, or of all."""
    sized: bool = False
    """Whether nodes that are not worth their verification are left out: osd's own, and not the paper's."""
    papers: bool = False
    """Whether trees are EAGLE-2's own, and the analytic rule has its paper's constants: h rounds of the request, and no
    prior."""

    @property
    def told(self) -> bool:
        """Whether costs decide anything."""
        return self.rule != "fixed" or self.sized

    def engine(self, pair: Pair, settings: Settings, nodes: int) -> Engine:
        """Return an engine that drafts so, one text at a time."""
        analytic = {"history": PAPERS_H, "prior_trials": 0.0} if self.papers else {}
        gamma = {"rule": self.rule, "initial": self.depth, "max": DEEPEST, "routes": {}, "analytic": analytic}
        own = settings.changed(gamma=gamma, serve={"max_batch": 1, "record": "off", "lossy": ""})
        engine = Engine(pair, own.changed(drafters={"kind": "tree", "tree_nodes": nodes}))
        if self.papers:
            drafter: Any = engine.pool.default.body.drafter
            drafter.trees = Eagle2Trees
        engine.drafting = DraftTrees(engine.pool, nodes, engine.target, sized=self.sized)
        return engine


ALONE = DepthArm("target alone", depth=0)
FIXED = {depth: DepthArm(f"depth {depth}", depth=depth, papers=True) for depth in DEPTHS}
OURS = DepthArm(f"depth {EAGLE_2}, osd's levels", depth=EAGLE_2)
ANALYTIC = DepthArm("analytic", "analytic", papers=True)
ANALYTIC_SIZED = DepthArm("analytic, nodes by cost", "analytic", sized=True)
GOODPUT = DepthArm("goodput, nodes by cost", "goodput", sized=True)
ARMS = (ALONE, *FIXED.values(), OURS, ANALYTIC, ANALYTIC_SIZED, GOODPUT)
DepthJob = Job[str, str]
"""The name of a table of costs, and of an arm."""
DepthCell = Cell[DepthJob, list[CostedText]]


def jobs_of(costs: Sequence[str]) -> list[DepthJob]:
    """Return the arms with what they go by: those that ask no costs are decoded once for all tables."""
    return [Job(name, arm.name) for arm in ARMS for name in (costs if arm.told else (NO_COSTS.name,))]


@dataclass(frozen=True, slots=True)
class DepthRun:
    """What all arms decode."""

    pair: Pair
    settings: Settings
    prompts: Mapping[str, Sequence[Tokens]]
    new_tokens: int
    warm: int
    """First prompts of each data set, which are served and not counted: a rule learns from them what passes cost and
    what drafts are worth."""
    nodes: int = NODES

    def measure(self, job: DepthJob) -> DepthCell:
        """Decode all prompts with an arm, data sets in turn."""
        arm = next(each for each in ARMS if each.name == job.arm)
        costs = NO_COSTS if job.place == NO_COSTS.name else find_costs(job.place)
        engine, found = ToldEngine(arm.engine(self.pair, self.settings, self.nodes), costs), []
        for number in range(max(map(len, self.prompts.values()))):
            for name, some in self.prompts.items():
                if number < len(some):
                    found += [engine.decode(name, some[number], self.new_tokens)] * (number >= self.warm)
        return Cell(job, found)


def bench_eagle(plan: EaglePlan, settings: Settings, watch: Watch) -> BenchResult:
    """Decode with every arm, and tell the time."""
    pair = choose_pair(settings.serve, plan.target, drafter="lookup").load(settings.serve)  # its draft is yet to come
    cells = decode_all(plan, pair, settings, watch)
    facts = facts_of(plan, target=pair.target.name)
    if watch.stopped:
        return BenchResult("eagle", facts, {}, interrupted=True)
    tables = speeds_of(cells, plan.costs) | details_of(cells, plan.costs)
    return BenchResult("eagle", facts, figures_of(cells, plan.costs), tables)


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
    return measure_all(jobs_of(plan.costs), run.measure, watch, folder=folder)


def texts_by_arm(cells: Sequence[DepthCell], costs: str) -> dict[str, CostedTexts]:
    """Return each arm's texts by one table."""
    table = find_costs(costs)
    return {c.job.arm: CostedTexts.of(c.found, table) for c in cells if c.job.place in (NO_COSTS.name, costs)}


def differing(cells: Sequence[DepthCell]) -> int:
    """Count the texts, of all arms, that are not what the target says alone: 0, but for ties that rounding breaks."""
    alone = next(cell for cell in cells if cell.job.arm == ALONE.name)
    pairs = [zip(cell.found, alone.found, strict=True) for cell in cells]
    return sum(tuple(own.tokens) != tuple(theirs.tokens) for some in pairs for own, theirs in some)


def figures_of(cells: Sequence[DepthCell], costs: Sequence[str]) -> dict[str, Any]:
    """Return the columns of Table 11 by costs, arm and data set."""
    found: dict[str, Any] = {"differing": differing(cells)}
    for name in costs:
        texts = texts_by_arm(cells, name)
        sets = dict.fromkeys(texts[ALONE.name].data_sets.tolist())
        found[name] = {
            arm: {"all": table_11(own)} | {each: table_11(own.only(each)) for each in sets}
            for arm, own in texts.items()
        }
    return found


def speeds_of(cells: Sequence[DepthCell], costs: Sequence[str]) -> dict[str, Rows]:
    """Return Table 10 for each table of costs."""
    return {f"Speed by data set, costs of {name}": table_10(texts_by_arm(cells, name)) for name in costs}


def details_of(cells: Sequence[DepthCell], costs: Sequence[str]) -> dict[str, Rows]:
    """Return Table 11 for each table of costs."""
    told = {name: texts_by_arm(cells, name) for name in costs}
    return {
        f"All data sets, costs of {name}": [{"": arm.name, **table_11(texts[arm.name])} for arm in ARMS]
        for name, texts in told.items()
    }


def table_10(texts: Mapping[str, CostedTexts]) -> Rows:
    """Return the speed of each arm, by data set, ÷ EAGLE-2's depth with its error, and ÷ the target alone."""
    rows = []
    for arm in ARMS:
        row: dict[str, Any] = {"": arm.name}
        for name in dict.fromkeys(texts[ALONE.name].data_sets.tolist()):
            own, base, alone = (texts[each].only(name) for each in (arm.name, FIXED[EAGLE_2].name, ALONE.name))
            row[f"{name} ÷ depth {EAGLE_2}"] = str(own.faster_than(base))
            row["÷ alone, " + name] = own.faster_than(alone).value
        rows.append(row)
    return rows


def table_11(own: CostedTexts) -> dict[str, float]:
    """Return the columns of on-the-fly adaptation's Table 11: tokens a second served, selected from trees, and
    verified, and the accepted share of the trees' levels; beside them the mean depth and nodes of a round."""
    drafting, nodes, levels, rounds, tokens = (
        float(each.sum()) for each in (own.draft_ms, own.drafted, own.passes, own.rounds, own.tokens)
    )
    return {
        "serving, tokens/s": own.rate,
        "speculation, tokens/s": 1e3 * nodes / drafting if drafting else 0.0,
        "verification, tokens/s": 1e3 * (nodes + rounds) / float(own.verify_ms.sum()),
        "acceptance": float(own.accepted.sum()) / levels if levels else 0.0,
        "depth": levels / rounds, "nodes": nodes / rounds, "tokens a round": tokens / rounds,
    }  # fmt: skip
