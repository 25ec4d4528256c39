"""Tokens a second of gamma rules, captured and eager, and of transformers, over the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from benchmarks.gpu import passes
from benchmarks.gpu.findings import Findings, GpuSizes
from osd.bench.contenders import Contender, assisted_contender, generate, plain_contender, run_in_order
from osd.bench.decode import DecodedTurns
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.turns import shifted
from osd.engine.engine import Engine
from osd.models.pair import Pair
from storage.records import Request
from storage.settings import Settings

RULES = {"alone": ("fixed", 0), "fixed 4": ("fixed", 4), "goodput": ("goodput", 4)}
MORE_RULES = {"fixed 2": ("fixed", 2), "fixed 8": ("fixed", 8), "analytic": ("analytic", 4)}
ASSISTED = ("assisted_constant", "assisted_dynamic")
WARMING = 6
"""Turns at most in which what an engine asks for is captured."""
MAKING = 0.6
"""Share of a part's time after which no further arm is made: those that are there must be measured."""
COMPILING = 30.0
"""Seconds that transformers' static cache must have on a GPU, where every layer is compiled."""


@dataclass(frozen=True, slots=True)
class Arms:
    """What decodes one batch size."""

    pair: Pair
    settings: Settings
    batch: int
    sizes: GpuSizes

    def all(self) -> dict[str, Callable[[], Contender]]:
        """Return how each arm is made, the most telling first."""
        slow = replace(self, pair=replace(self.pair, target=passes.eager(self.pair.target),
                                          draft=passes.eager(self.pair.draft)))  # fmt: skip
        made: dict[str, Callable[[], Contender]] = {name: partial(self.rule, name) for name in RULES}
        made |= {f"{name}, eager": partial(slow.rule, name) for name in ("goodput", "fixed 4")}
        made["transformers"] = partial(plain_contender, self.pair, self.batch, self.sizes.new_tokens)
        for name in ASSISTED if self.batch == 1 else ():
            made[f"transformers {name}"] = partial(assisted_contender, self.pair, name, self.sizes.new_tokens)
        made |= {name: partial(self.rule, name) for name in MORE_RULES}
        return made | {"alone, eager": partial(slow.rule, "alone")}

    def rule(self, name: str) -> Contender:
        """Return an engine with a rule, whose passes are captured."""
        rule, initial = (RULES | MORE_RULES)[name]
        own = self.settings.changed(serve={"max_batch": self.batch}, gamma={"rule": rule, "initial": initial})
        engine = Engine(self.pair, own)

        def decode(prompts: Any) -> list[list[int]]:
            asked = [Request(prompt, max_new_tokens=self.sizes.new_tokens) for prompt in prompts]
            return [list(done.tokens) for done in run_in_order(engine, asked)]

        for turn in range(WARMING):
            decode(some_prompts(self.batch, self.pair.vocab_size, seed=turn))
            if not passes.waits(engine.target) and not passes.waits(engine.pool.decoder):
                break
        return Contender(name, self.batch, decode)


def measure_rules(arms: Arms, oracle: float | None, found: Findings) -> dict[str, float]:
    """Return the tokens a second of every arm that there was time for. ``oracle``: what drafts of the right length
    would make by the costs that were measured."""
    contenders = _make(arms, found)
    prompts = some_prompts(2 * arms.batch + 2, arms.pair.vocab_size, seed=99)
    measured = {name: DecodedTurns() for name in contenders}
    for turn in range(arms.sizes.turns):
        for name in shifted(list(contenders), turn):
            if not found.late:
                found.tried(name, partial(measured[name].take_turn, contenders[name], prompts))
    rates = {name: max(each.rates) for name, each in measured.items() if each.rates}
    missing = [name for name in arms.all() if name not in rates]
    if missing:
        found.leave_out(f"{arms.pair.target.name} batch {arms.batch}: {', '.join(missing)}")
    found.tables[_title(arms, measured)] = _rows(rates, oracle)
    return rates


def _make(arms: Arms, found: Findings) -> dict[str, Contender]:
    """Make the arms while there is time, and let each read a batch once."""
    made: dict[str, Contender] = {}
    spare = found.remaining * (1 - MAKING)
    first = some_prompts(arms.batch, arms.pair.vocab_size, seed=98)
    for name, make in arms.all().items():
        if made and found.remaining < spare:
            break
        if contender := found.tried(name, make):
            found.tried(name, partial(contender.decode, first))
            made[name] = contender
    return made


def _title(arms: Arms, measured: Mapping[str, DecodedTurns]) -> str:
    alone, other = (measured[name].texts if name in measured else {} for name in ("alone", "goodput"))
    same = sum(text == alone.get(prompt) for prompt, text in other.items())
    return f"{arms.pair.target.name}: batch {arms.batch} ({same} of {len(other)} texts of goodput equal to alone's)"


def _rows(rates: Mapping[str, float], oracle: float | None) -> list[dict[str, Any]]:
    alone, rows = rates.get("alone"), []
    for name, rate in rates.items():
        against = {"÷ alone": alone and rate / alone, "÷ oracle": oracle and rate / oracle}
        rows.append({"how": name, "tokens/s": rate} | against)
    return rows


def measure_static(pair: Pair, found: Findings) -> float:
    """Return the tokens a second of transformers with a static cache, one prompt: each length is compiled anew. Raises
    RuntimeError where there is no time to compile."""
    sizes, compiles = found.sizes, pair.device.type == "cuda"
    if compiles and found.remaining < COMPILING:
        raise RuntimeError("no time to compile all layers")
    prompts, turns = some_prompts(1, pair.vocab_size, seed=99), DecodedTurns()

    def decode(some: Any) -> list[list[int]]:
        return [generate(pair, some, sizes.new_tokens, cache_implementation="static")[0]]

    decode([prompts[0][::-1]])
    for _ in range(sizes.turns):
        turns.take_turn(Contender("static", 1, decode), prompts)
    return max(turns.rates)


def some_prompts(count: int, vocabulary: int, seed: int) -> list[Tokens]:
    """Return prompts of 64 to 160 random tokens."""
    draws = torch.Generator().manual_seed(seed)
    sizes = torch.randint(64, 161, (count,), generator=draws).tolist()
    return [tuple(torch.randint(2, vocabulary, (size,), generator=draws).tolist()) for size in sizes]
