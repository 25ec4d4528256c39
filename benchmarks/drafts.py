"""Does choosing among drafts pay? Each draft alone, and the router's choice, on the same prompts.

One engine holds all drafts. Every prompt is decoded by every contender, in an order drawn for each, one request at a
time, so that what else the machine does falls on all alike; finished texts are scored between requests, as in idle
moments of serving. In hindsight the best draft of a prompt is the one with the highest throughput by Eq. 3 of
on-the-fly adaptation, from its own acceptance on the finished text and from the costs measured in the run.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge

from osd.bench.harness.plan import Count, SampledPlan, TargetPlan, data_sets, facts_of
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all, median_error
from osd.bench.harness.watch import Watch
from osd.drafters.scoring import drawn_from, score
from osd.engine.engine import Engine
from osd.engine.session import in_folder, serving
from osd.models.pair import Pair, row_limit
from osd.sequence import Completion
from osd.server.start import choose_pair
from router.throughput import TextScore, gain
from storage.errors import BadSetting, ModelNotLoaded
from storage.records import DEFAULT_DRAFT, Request, Route
from storage.sampling import GREEDY, Sampling
from storage.settings import Settings
from storage.store import Store, open_store

AUTO = "auto"
CLEARLY = 0.02
"""A choice is a mistake where another draft would have been faster by more than this share."""
PATIENCE = 60.0
"""Seconds that a draft has to be loaded."""


class PromptOfSet(NamedTuple):
    """A prompt to be decoded by every contender."""

    data_set: str
    tokens: Tokens

    def __str__(self) -> str:
        return self.data_set


@dataclass(slots=True)
class OnePrompt:
    """What came of one prompt."""

    tokens: int
    seconds: dict[str, float]
    """By contender."""
    chosen: str
    seen: dict[str, TextScore]
    """By draft, on the finished text."""


@dataclass(slots=True)
class DraftsRun:
    """A run over one engine."""

    engine: Engine
    drafts: Sequence[str]
    max_new_tokens: int
    sampling: Sampling = GREEDY
    results: dict[str, list[OnePrompt]] = field(default_factory=dict)

    def warm_up(self, name: str, prompts: Sequence[Tokens]) -> None:
        """Decode prompts from which the router learns before anything is timed."""
        for prompt in prompts:
            self._decode(prompt, name)

    def measure(self, job: PromptOfSet) -> None:
        """Decode a prompt of a data set with every contender, in an order of its own."""
        name, prompt = job
        contenders = [AUTO, *self.drafts]
        turn = random.Random(f"{name} {prompt}").sample(contenders, len(contenders))
        done = {each: self._decode(prompt, name if each == AUTO else only(each)) for each in turn}
        completion = done[AUTO][0]
        p = drawn_from(self.engine.target, completion)
        seen = {draft: score(self.engine.pool.loaded_drafts[draft], completion, p) for draft in self.drafts}
        # sampled answers differ: what each would have taken for as many tokens
        share = {each: len(completion.tokens) / max(1, len(one.tokens)) for each, (one, _) in done.items()}
        seconds = {each: took * share[each] for each, (_, took) in done.items()}
        one = OnePrompt(len(completion.tokens), seconds, self._drafted(completion), seen)
        self.results.setdefault(name, []).append(one)

    def _decode(self, prompt: Tokens, route: str) -> tuple[Completion, float]:
        request = Request(prompt, self.max_new_tokens, self.sampling, route=route)
        begun = time.perf_counter()
        (completion,) = self.engine.run([request])
        seconds = time.perf_counter() - begun
        while self.engine.scorer.work(idle=True):  # now: the next contender's time is its own
            pass
        return completion, seconds

    def _drafted(self, completion: Completion) -> str:
        versions = {loaded.version: draft for draft, loaded in self.engine.pool.loaded_drafts.items()}
        return versions[completion.outcomes[-1].draft_version]


def only(draft: str) -> str:
    """The route that leads to one draft and to no other."""
    return f"{draft}-only"


def require_several(drafts: Sequence[str]) -> None:
    """Raise BadSetting unless there are two drafts or more to choose among, under different names."""
    if len({Path(path).name for path in drafts}) < max(2, len(drafts)):
        reason = "give --draft twice or more, with folders of different names"
        raise BadSetting(source="option", key="draft", reason=reason)


@dataclass(frozen=True, kw_only=True)
class DraftsPlan(SampledPlan, TargetPlan):
    """Choosing among drafts of different size against each of them alone. Each file of prompts is a route.

    Every prompt is decoded with each draft and with the router's choice, in turn. `mischosen` is the share of prompts
    on which another draft would, in hindsight, have been faster by more than 2 %. `auto_vs_best` is the choice's speed
    ÷ that of the better draft; `choices_vs_best` the same with the seconds that the chosen drafts took alone, free of
    what differs between two decodings of one prompt; `choosing` what that leaves, a prompt's speed with choosing ÷
    without, in the median.

    Example: `python -m benchmarks drafts --target ./target --draft ./small,./large --prompts sql.jsonl --json`
    """

    draft: tuple[str, ...]
    """Drafts' folders, two or more."""
    requests: Count = 60
    """Prompts of each file that are timed."""
    warm_up: Annotated[int, Ge(0)] = 25
    """Further prompts of each file that only teach the router."""
    max_tokens: Count = 64
    """Tokens of an answer at most."""
    seed: int = 0
    """Which prompts are drawn."""


def bench_drafts(plan: DraftsPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Measure prompts of each file, after others that only teach the router.

    Raises PairError, StoreError, BadSetting, BadInput for a file none of whose prompts fits.
    """
    require_several(plan.draft)
    pair = choose_pair(settings.serve, plan.target, plan.draft[0]).load(settings.serve)
    longest = row_limit(pair, settings.serve) - plan.max_tokens
    sets = data_sets(plan, pair.tokenizer, plan.warm_up + plan.requests, longest, seed=plan.seed)
    with TemporaryDirectory(prefix="osd-bench-") as folder:
        storage = {"directory": Path(folder), "url": None}
        own = settings.changed(storage=storage, serve={"max_batch": 1, "record": "off"})
        with open_store(own) as store:
            names = _register(store, pair, plan.draft, list(sets))
            with serving(pair, own, store) as engine:
                _wait_for(engine, names)
                bench = DraftsRun(engine, names, plan.max_tokens, plan.sampling)
                _run(bench, sets, plan.warm_up, watch)
                figures = _summary(bench, settings.gamma.max) if bench.results else {}
    tables = {"Tokens a second": _rows(figures)} if figures else {}
    facts = facts_of(plan, target=pair.target.name)
    return BenchResult("drafts", facts, figures, tables, interrupted=watch.stopped)


def _rows(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts = [*figures["sets"].items(), ("all", figures["all"])]
    return [
        {"": name, **part["tokens_per_s"], "÷ best": part["auto_vs_best"], "mischosen": part["mischosen"]}
        for name, part in parts
    ]


def _register(store: Store, pair: Pair, drafts: Sequence[str], sets: Sequence[str]) -> list[str]:
    """Return the drafts' names; make a route for each data set with all of them, and one for each draft alone."""
    names = [DEFAULT_DRAFT]
    store.versions.register_root(DEFAULT_DRAFT, Path(in_folder(pair.draft).name))
    for path in drafts[1:]:
        names.append(Path(path).name)
        store.versions.register_root(names[-1], Path(path))
    for each in sets:
        store.routes.add(Route(each, names[0], candidates=tuple(names[1:])))
    for name in names:
        store.routes.add(Route(only(name), name))
    return names


def _wait_for(engine: Engine, names: Sequence[str]) -> None:
    """Until all drafts are in memory. Raises ModelNotLoaded."""
    end = time.monotonic() + PATIENCE
    while missing := [name for name in names if name not in engine.pool.loaded_drafts]:
        for name in missing:
            engine.draft_manager.want(name)
        engine.step()
        if time.monotonic() > end:
            raise ModelNotLoaded(path=missing[0], reason="It could not be loaded beside the first draft.")
        time.sleep(0.02)


def _run(bench: DraftsRun, sets: Mapping[str, Sequence[Tokens]], warm_up: int, watch: Watch) -> None:
    watch.at("warming up")
    with watch.until_ctrl_c():
        for name, prompts in sets.items():
            bench.warm_up(name, prompts[:warm_up])
    if not watch.stopped:
        measure_all(
            [PromptOfSet(name, each) for name, some in sets.items() for each in some[warm_up:]], bench.measure, watch
        )


def _summary(bench: DraftsRun, gamma_max: int) -> dict[str, Any]:
    everything = [one for some in bench.results.values() for one in some]
    costs = {draft: bench.engine.pass_costs.of(draft, gamma_max) for draft in bench.drafts}

    def mistaken(one: OnePrompt) -> bool:
        known = {draft: gain(one.seen[draft].alpha, cost) for draft, cost in costs.items() if cost}
        return max(known.values()) > known[one.chosen] * (1 + CLEARLY)

    def facts(some: Sequence[OnePrompt]) -> dict[str, Any]:
        speeds = {name: _speed(some, name) for name in (AUTO, *bench.drafts)}
        chosen = {draft: sum(one.chosen == draft for one in some) / len(some) for draft in bench.drafts}
        alphas = {draft: sum(one.seen[draft].alpha for one in some) / len(some) for draft in bench.drafts}
        taken = as_chosen(some)
        chose = [alone.seconds[AUTO] / one.seconds[AUTO] for alone, one in zip(taken, some, strict=True)]
        return {
            "prompts": len(some), "tokens_per_s": speeds,
            "auto_vs_best": _ratio(some, bench.drafts), "standard_error": _error(some, bench.drafts),
            "choices_vs_best": _ratio(taken, bench.drafts), "choices_error": _error(taken, bench.drafts),
            "choosing": statistics.median(chose), "choosing_error": median_error(chose),
            "alpha": alphas, "chosen": chosen, "mischosen": sum(map(mistaken, some)) / len(some),
        }  # fmt: skip

    passes = {draft: cost.draft_ms for draft, cost in costs.items() if cost}
    return {"sets": {name: facts(some) for name, some in bench.results.items()}, "all": facts(everything),
            "draft_ms": passes}  # fmt: skip


def as_chosen(some: Sequence[OnePrompt]) -> list[OnePrompt]:
    """With auto's seconds those of the draft it chose, decoding alone: the same work, so that what is left of a
    comparison is the choice and not how the machine's speed moved from one decoding to the other."""
    return [replace(one, seconds={**one.seconds, AUTO: one.seconds[one.chosen]}) for one in some]


def _speed(some: Sequence[OnePrompt], contender: str) -> float:
    return sum(one.tokens for one in some) / sum(one.seconds[contender] for one in some)


def _ratio(some: Sequence[OnePrompt], drafts: Sequence[str]) -> float:
    """Auto's speed ÷ that of the best single draft."""
    return sum(_singly(some, drafts)) / sum(one.seconds[AUTO] for one in some)


def _singly(some: Sequence[OnePrompt], drafts: Sequence[str]) -> list[float]:
    """Seconds of each prompt with the draft that was the fastest on the other half, every second prompt: the fastest of
    several on the prompts themselves is in part the one that was lucky there, and would beat any choice."""
    seconds = [one.seconds for one in some]
    best = [min(drafts, key=lambda draft: sum(each[draft] for each in seconds[1 - half :: 2])) for half in (0, 1)]
    return [each[best[number % 2]] for number, each in enumerate(seconds)]


def _error(some: Sequence[OnePrompt], drafts: Sequence[str]) -> float:
    """Standard error of that ratio, over prompts: residuals of seconds against the best draft's. Where drafts are worth
    the same it is a fifth too small."""
    singly, auto = _singly(some, drafts), [one.seconds[AUTO] for one in some]
    ratio = sum(singly) / sum(auto)
    residuals = [single - ratio * own for single, own in zip(singly, auto, strict=True)]
    return math.sqrt(sum(r * r for r in residuals)) / sum(auto)
