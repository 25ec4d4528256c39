"""The arms of `python -m benchmarks eagle`, and what came of each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.eagle.told import DepthText, ToldEngine
from benchmarks.gamma.costs import CostTable, Piece, Pieces, find_costs
from osd.bench.harness.prompts import Tokens
from osd.drafters.tree import DraftTrees
from osd.engine.engine import Engine
from osd.models.pair import Pair
from storage.settings import Settings

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
    """Whether the analytic rule has the paper's constants: h rounds of the request, and no prior."""

    @property
    def told(self) -> bool:
        """Whether costs decide anything."""
        return self.rule != "fixed" or self.sized

    def engine(self, pair: Pair, settings: Settings, nodes: int) -> Engine:
        """Return an engine that drafts so, one text at a time."""
        analytic = {"history": PAPERS_H, "prior_trials": 0.0} if self.papers else {}
        gamma = {"rule": self.rule, "initial": self.depth, "max": DEEPEST, "routes": {}, "analytic": analytic}
        serve = {"max_batch": 1, "record": "off", "lossy": ""}
        engine = Engine(
            pair, settings.changed(gamma=gamma, serve=serve, drafters={"kind": "tree", "tree_nodes": nodes})
        )
        assert isinstance(engine.drafting, DraftTrees)
        engine.drafting.pruner.sized = self.sized
        return engine


ALONE = DepthArm("target alone", depth=0)
FIXED = {depth: DepthArm(f"depth {depth}", depth=depth) for depth in DEPTHS}
ANALYTIC = DepthArm("analytic", "analytic", papers=True)
ANALYTIC_SIZED = DepthArm("analytic, nodes by cost", "analytic", sized=True)
GOODPUT = DepthArm("goodput, nodes by cost", "goodput", sized=True)
NO_COSTS = CostTable("none", "", *(Pieces((Piece(start_ms=1.0),)),) * 2)
"""The clock of arms that do not look at it."""
ARMS = (ALONE, *FIXED.values(), ANALYTIC, ANALYTIC_SIZED, GOODPUT)


@dataclass(frozen=True, slots=True)
class DepthJob:
    """An arm, and the costs that it goes by."""

    arm: str
    costs: str
    """Name of a profile; empty where costs decide nothing."""

    def __str__(self) -> str:
        return f"{self.arm}{f', costs of {self.costs}' if self.costs else ''}"


@dataclass(frozen=True, slots=True)
class DepthCell:
    """What came of an arm's texts."""

    job: DepthJob
    texts: list[DepthText]


def jobs_of(costs: Sequence[str]) -> list[DepthJob]:
    """Return the arms with what they go by: those that ask no costs are decoded once for all tables."""
    return [DepthJob(arm.name, name) for arm in ARMS for name in (costs if arm.told else ("",))]


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
        costs = find_costs(job.costs) if job.costs else NO_COSTS
        engine = ToldEngine(arm.engine(self.pair, self.settings, self.nodes), costs)
        found = []
        for number in range(max(map(len, self.prompts.values()))):
            for name, some in self.prompts.items():
                if number < len(some):
                    tokens, rounds = engine.decode(some[number], self.new_tokens)
                    found += [DepthText(name, tuple(tokens), rounds)] * (number >= self.warm)
        return DepthCell(job, found)
