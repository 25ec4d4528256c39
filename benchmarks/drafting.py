"""``python -m benchmarks drafting``: an engine that may draft ÷ the same engine without drafts, from a cold start.

A machine changes its speed from second to second by more than what is looked for. So every arm is an engine of its own
that serves the same endless requests in the same order, and they take short turns of some tokens a row each, in the
middle of their requests. A turn is compared with the turn beside it. Nothing is warmed up: what a rule loses until it
knows the draft counts.

Clock and processor time are both told. The processor's has less noise, and leaves out what other processes take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, NamedTuple

import torch

from benchmarks.gamma.contest import with_random_draft
from osd.bench.contenders import wait_for_compiled
from osd.bench.harness.plan import Count, PairPlan, all_prompts, data_sets, facts_of
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import shifted
from osd.bench.harness.watch import Watch
from osd.engine.engine import Engine
from osd.models.pair import Pair, row_limit
from osd.server.start import choose_pair
from storage.records import Request
from storage.settings import Settings

ALONE, RULE = "alone", "rule"
Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class DraftingPlan(PairPlan):
    """What drafting by the settings' gamma rule wins or loses, in pairs of short turns, from the first token on.

    Example: `python -m benchmarks drafting --rows 1,8,32 --fixed 1,2,4`
    """

    rows: tuple[Count, ...] = (1, 8, 32)
    """Requests decoded together."""
    fixed: tuple[int, ...] = ()
    """Fixed draft lengths that take turns too; the best of them in hindsight is what the rule is held against."""
    random_draft: bool = True
    """Also with a draft of random weights."""
    count: Count = 32
    """Prompts of each file."""
    max_tokens: Count = 64
    """Tokens of an answer."""
    tokens: Count = 32
    """Tokens a row in a turn."""
    turns: Count = 60
    """Turns of each arm."""
    threads: Count = 1
    """Torch's threads."""


class Took(NamedTuple):
    """One turn."""

    tokens: int
    seconds: float
    processor: float
    """Seconds of processor time of the thread that decodes."""


@dataclass(slots=True)
class Arm:
    """An engine in the middle of its requests."""

    engine: Engine
    requests: Iterator[Request]
    turns: list[Took] = field(default_factory=list)
    rounds: int = 0
    drafted: int = 0
    said: int = 0
    """Tokens of the texts that are whole, whose rounds and drafts are counted."""

    def take(self, tokens: int) -> None:
        """Decode until so many tokens came out."""
        begun, worked, got = time.perf_counter(), time.thread_time(), 0
        while got < tokens:
            while self.engine.room > 0:
                self.engine.submit(next(self.requests))
            progress = self.engine.step()
            got += sum(len(one.tokens) for one in progress)
            for one in progress:
                if one.completion:
                    self.rounds += len(one.completion.rounds)
                    self.said += len(one.completion.tokens)
                    self.drafted += sum(each.drafted for each in one.completion.rounds)
        self.turns.append(Took(got, time.perf_counter() - begun, time.thread_time() - worked))


def ratio(one: Sequence[Took], other: Sequence[Took], clock: str = "processor") -> tuple[float, float]:
    """Return tokens a second of all turns of one arm ÷ the other's, and its standard error by leaving out one pair of
    turns after another."""
    ours = [(a.tokens, getattr(a, clock), b.tokens, getattr(b, clock)) for a, b in zip(one, other, strict=True)]
    whole = [sum(column) for column in zip(*ours, strict=True)]
    left = [_rate(*(total - part for total, part in zip(whole, pair, strict=True))) for pair in ours]
    mean, n = sum(left) / len(left), len(left)
    return _rate(*whole), math.sqrt((n - 1) / n * sum((value - mean) ** 2 for value in left))


def _rate(tokens: float, seconds: float, others: float, their: float) -> float:
    return tokens / seconds * their / others if others and seconds else math.nan


def bench_drafting(plan: DraftingPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Load the pair and take turns. Raises PairError, BadInput."""
    names = choose_pair(settings.serve, plan.target, plan.draft)
    torch.set_num_threads(plan.threads)
    pair = names.load(settings.serve)
    prompts = all_prompts(
        data_sets(plan, pair.tokenizer, plan.count, row_limit(pair, settings.serve) - plan.max_tokens)
    )
    wait_for_compiled()
    drafts = {"given": pair} | ({"random": with_random_draft(pair)} if plan.random_draft else {})
    found: Rows = []
    watch.begin(len(drafts) * len(plan.rows) * plan.turns)
    with watch.until_ctrl_c():
        for draft, own in drafts.items():
            for rows in plan.rows:
                watch.at(f"{draft} draft, {rows} rows")
                arms = _arms(plan, own, settings.changed(serve={"max_batch": rows}), prompts)
                found.append({"draft": draft, "rows": rows} | measured(plan, rows, arms, watch))
    figures = {f"{row['draft']}@{row['rows']}": {k: v for k, v in row.items() if k != "draft"} for row in found}
    facts = facts_of(plan, target=names.target, draft=names.draft, gamma=settings.gamma.rule)
    return BenchResult("drafting", facts, figures, {"÷ without drafts": found}, interrupted=watch.stopped)


def _arms(plan: DraftingPlan, pair: Pair, settings: Settings, prompts: Sequence[Tokens]) -> dict[str, Arm]:
    rules = {ALONE: {"rule": "fixed", "initial": 0}, RULE: {}}
    rules |= {f"fixed {length}": {"rule": "fixed", "initial": length} for length in plan.fixed}
    arms = {}
    for name, gamma in rules.items():
        engine = Engine(pair, settings.changed(gamma=gamma))
        engine.probe()
        arms[name] = Arm(engine, (Request(prompt, plan.max_tokens) for prompt in cycle(prompts)))
    return arms


def measured(plan: DraftingPlan, rows: int, arms: Mapping[str, Arm], watch: Watch) -> dict[str, Any]:
    """Let arms take their turns; return the ratios, with errors."""
    for turn in range(plan.turns):
        for name in shifted(list(arms), turn):
            arms[name].take(plan.tokens * rows)
        watch.did()
    mine, alone = arms[RULE], arms[ALONE]
    told: dict[str, Any] = {}
    for clock, name in (("processor", "vs_alone"), ("seconds", "vs_alone_clock")):
        told[name], told[f"{name}_error"] = ratio(mine.turns, alone.turns, clock)
    told["drafted_a_round"] = mine.drafted / max(1, mine.rounds)
    told["tokens_a_round"] = mine.said / max(1, mine.rounds)
    told["tokens_a_second"], told["alone_a_second"] = (
        sum(one.tokens for one in arm.turns) / sum(one.processor for one in arm.turns) for arm in (mine, alone)
    )
    against = {name: ratio(mine.turns, arm.turns) for name, arm in arms.items() if name != RULE}
    best = min(against, key=lambda name: against[name][0])
    return told | {"best": best, "vs_best": against[best][0], "vs_best_error": against[best][1]}
