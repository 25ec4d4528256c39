"""``osd bench gpu``: passes against the bandwidth limit, rules against each other and against transformers, learning
beside serving, and swaps, of models of real shapes with random weights. It needs no download, and ends in time: what
comes last is left out, and named, where the seconds are used up.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from osd.bench.contenders import Contender, generate, osd_contender, plain_contender
from osd.bench.decode import DecodedTurns
from osd.bench.gamma.costs import save_costs
from osd.bench.gpu import passes
from osd.bench.gpu.learning import trainer_beside
from osd.bench.gpu.shapes import AGREEMENT, SHAPES, ModelShape, other_draft, random_pair
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import shifted
from osd.bench.harness.watch import Watch
from osd.drafters.residency import LoadedVersion
from osd.engine.engine import Engine
from osd.models.pair import Pair
from storage.records import DEFAULT_DRAFT, Request
from storage.settings import Settings

RULES = {"alone": ("fixed", 0), "fixed 2": ("fixed", 2), "fixed 4": ("fixed", 4), "fixed 8": ("fixed", 8)}
RULES |= {"goodput": ("goodput", 4), "analytic": ("analytic", 4)}


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """What is measured, and how much of it."""

    shapes: tuple[str, ...] = ("8b", "1b", "8b-128k")
    rows: tuple[int, ...] = (1, 8, 32)
    widths: tuple[int, ...] = (1, 2, 3, 5, 9)
    batches: tuple[int, ...] = (1, 8)
    new_tokens: int = 64
    turns: int = 2
    repeats: int = 20
    copied: int = 2 << 30
    """Bytes that tell the bandwidth."""
    seconds: float = 330.0


SMALL = GpuPlan(("tiny",), (1, 2), (1, 3), (1, 2), new_tokens=16, turns=1, repeats=3, copied=1 << 22, seconds=60.0)
"""For a CPU."""


@dataclass(slots=True)
class Findings:
    """What was found, while there is time."""

    plan: GpuPlan
    watch: Watch
    figures: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    def take(self, what: str, part: Callable[[], Any]) -> Any:
        """Run a part of the bench and keep what it returns; leave it out once the time is used up, or where it fails:
        the other parts are worth having."""
        if time.monotonic() - self.begun > self.plan.seconds:
            self.left_out.append(f"{what}: no time")
            return None
        self.watch.at(what)
        try:
            self.figures[what] = found = part()
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            self.left_out.append(f"{what}: {type(error).__name__}: {str(error)[:200]}")
            return None
        self.watch.did()
        return found


def bench_gpu(plan: GpuPlan, device: torch.device, settings: Settings, out: Path, watch: Watch) -> BenchResult:
    """Measure everything, shape after shape; cost tables go to ``out``."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    settings = settings.changed(serve={"max_length": 512, "record": "off"})
    found = Findings(plan, watch)
    watch.begin(6 * len(plan.shapes))
    with watch.until_ctrl_c():
        speed = passes.bandwidth(device, plan.copied)
        found.figures["bytes_a_second"] = speed
        for name in plan.shapes:
            _measure(SHAPES[name], device, dtype, settings, speed, out, found)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    facts = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", "dtype": str(dtype),
        "torch": torch.__version__, "agreement": AGREEMENT, "context": passes.CONTEXT, "new_tokens": plan.new_tokens,
        "seconds": round(time.monotonic() - found.begun, 1),
    }  # fmt: skip
    found.figures["left_out"] = found.left_out
    return BenchResult("gpu", facts, found.figures, found.tables, found.files, interrupted=watch.stopped)


def _measure(
    shape: ModelShape, device: torch.device, dtype: torch.dtype, settings: Settings, speed: float, out: Path,
    found: Findings,
) -> None:  # fmt: skip
    """Measure one shape."""
    made: list[Pair] = []
    found.take(f"{shape.name} made", lambda: made.append(random_pair(shape, device, dtype)))
    for pair in made:
        found.take(f"{shape.name} passes", partial(_passes, pair, speed, out, found))
        if shape.vocabulary <= SHAPES["8b"].vocabulary:
            for batch in found.plan.batches:
                found.take(f"{shape.name} batch {batch}", partial(_rules, pair, settings, batch, found))
            found.take(f"{shape.name} learning", partial(_learning, pair, settings, found.plan))
        found.take(f"{shape.name} swaps", partial(_swaps, pair, settings))


def _passes(pair: Pair, speed: float, out: Path, found: Findings) -> dict[str, Any]:
    """Passes of the target and chains of the draft, as multiples of what reading their weights once takes."""
    plan, name = found.plan, pair.target.name
    cells = [(rows, width) for rows in plan.rows for width in plan.widths]
    read, read_draft = (1e3 * passes.read_bytes(model) / speed for model in (pair.target, pair.draft))
    plain = passes.measure(passes.eager(pair.target), [(rows, plan.widths[-1]) for rows in plan.rows], plan.repeats)
    quick = passes.measure(pair.target, cells, plan.repeats)
    chains = {rows: passes.measure_chain(pair.draft, rows, plan.repeats) for rows in plan.rows}
    slow = {rows: passes.measure_chain(passes.eager(pair.draft), rows, plan.repeats) for rows in plan.rows}
    table = passes.cost_table(f"{name}-captured", f"osd bench gpu, {pair.device}, agreement {AGREEMENT}", chains, quick)
    save_costs(out / f"{name}-captured.json", table)
    found.files[f"costs of {name}"] = out / f"{name}-captured.json"
    rows = [
        {"rows": r, "tokens of a row": w, "ms": ms, "÷ reading": ms / read, "eager ms": plain.get((r, w))}
        for (r, w), ms in quick.items()
    ]
    once = passes.CHAIN * read_draft
    rows += [
        {"rows": r, "chain of": passes.CHAIN, "ms": ms, "÷ reading": ms / once, "eager ms": slow[r]}
        for r, ms in chains.items()
    ]
    found.tables[f"{name}: passes (reading the target once: {read:.2f} ms, the draft {read_draft:.2f})"] = rows
    oracles = {str(batch): passes.oracle(table, batch, AGREEMENT) for batch in plan.batches}
    return {"read_ms": read, "read_draft_ms": read_draft, "passes": rows, "oracle": oracles}


def _prompts(count: int, vocabulary: int) -> list[Tokens]:
    draws = torch.Generator().manual_seed(5)
    sizes = torch.randint(64, 161, (count,), generator=draws).tolist()
    return [tuple(torch.randint(2, vocabulary, (size,), generator=draws).tolist()) for size in sizes]


def _rules(pair: Pair, settings: Settings, batch: int, found: Findings) -> dict[str, float]:
    """Tokens a second of each rule, of today's best two without captured passes, and of transformers."""
    plan = found.plan
    slow = replace(pair, target=passes.eager(pair.target), draft=passes.eager(pair.draft))
    arms = {name: _arm(name, pair, settings, batch, plan) for name in RULES}
    arms |= {f"{name}, eager": _arm(name, slow, settings, batch, plan) for name in ("alone", "fixed 4", "goodput")}
    arms["transformers"] = plain_contender(pair, batch, plan.new_tokens)
    if batch == 1:
        assistant = {"assistant_model": pair.draft.module}
        arms["transformers assisted"] = _generating("assisted", pair, plan, assistant)
        static = _generating("static", pair, plan, {"cache_implementation": "static"})
        arms["transformers static"] = replace(static, decode=lambda some: static.decode(some[:1]))  # one length
    prompts, measured = _prompts(2 * batch + 4, pair.vocab_size), {name: DecodedTurns() for name in arms}
    for arm in arms.values():
        arm.decode([prompt[::-1] for prompt in prompts[:batch]])
    for turn in range(plan.turns):
        for name in shifted(list(arms), turn):
            if time.monotonic() - found.begun < plan.seconds:
                measured[name].take_turn(arms[name], prompts)
    rates = {name: max(each.rates) for name, each in measured.items() if each.rates}
    alone = measured["alone"].texts
    same = sum(text == alone.get(prompt) for prompt, text in measured["goodput"].texts.items())
    rows = [{"how": name, "tokens/s": rate, "÷ alone": rate / rates["alone"]} for name, rate in rates.items()]
    found.tables[f"{pair.target.name}: batch {batch} ({same} of {len(alone)} texts of goodput equal to alone's)"] = rows
    return rates


def _arm(name: str, pair: Pair, settings: Settings, batch: int, plan: GpuPlan) -> Contender:
    rule, initial = RULES[name]
    own = settings.changed(serve={"max_batch": batch}, gamma={"rule": rule, "initial": initial})
    arm = osd_contender(name, pair, own, plan.new_tokens)
    for turn in range(3):  # graphs are captured meanwhile
        arm.decode(_prompts(2 * batch, pair.vocab_size + turn - 3))
    return arm


def _generating(name: str, pair: Pair, plan: GpuPlan, how: dict[str, Any]) -> Contender:
    def decode(prompts: Any) -> list[list[int]]:
        return [generate(pair, [prompt], plan.new_tokens, **how)[0] for prompt in prompts]

    return Contender(name, 1, decode)


def _learning(pair: Pair, settings: Settings, plan: GpuPlan) -> dict[str, float]:
    """Positions a second of a trainer on this device, alone and beside an engine that serves, and what that loses."""
    batch = plan.batches[-1]
    arm, prompts = _arm("fixed 4", pair, settings, batch, plan), _prompts(4 * batch, pair.vocab_size)
    before, during = DecodedTurns(), DecodedTurns()
    before.take_turn(arm, prompts)
    with tempfile.TemporaryDirectory() as folder, trainer_beside(pair.draft, Path(folder)) as trainer:
        if trainer is None:
            return {"positions_a_second": math.nan}
        alone = trainer.rate(min(5.0, plan.seconds / 30))
        begun, positions = time.perf_counter(), trainer.positions
        during.take_turn(arm, prompts)
        beside = (trainer.positions - positions) / (time.perf_counter() - begun)
    return {
        "positions_a_second": alone, "positions_a_second_serving": beside,
        "tokens_a_second": before.rates[0], "tokens_a_second_learning": during.rates[0],
    }  # fmt: skip


def _swaps(pair: Pair, settings: Settings) -> dict[str, float]:
    """Milliseconds of a pause in which other weights come in, between two steps: the first, whose passes are captured
    anew, and the second, which is copied."""
    engine = Engine(pair, settings.changed(gamma={"rule": "fixed", "initial": 4}))
    engine.submit(Request(_prompts(1, pair.vocab_size)[0], max_new_tokens=40, ignore_eos=True))
    pauses = []
    with torch.inference_mode():
        for turn in range(2):
            for _ in range(4):
                engine.step()
            other = other_draft(pair)
            decoder = other.decoder(1, engine.drafter.decoder.cache.length)
            arrived = LoadedVersion(DEFAULT_DRAFT, f"v{turn}", other.limit, f"d{turn}", decoder, owned=True)
            passes.settle(pair.device)
            begun = time.perf_counter()
            engine.draft_manager.residence.take(arrived)
            passes.settle(pair.device)
            pauses.append(1e3 * (time.perf_counter() - begun))
    return {"first_ms": pauses[0], "second_ms": pauses[1]}
