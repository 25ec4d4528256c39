"""Passes against the bandwidth limit, rules against each other and against transformers, learning
beside serving, and swaps, of models of real shapes with random weights. It needs no download, and ends in time: what
comes last is left out, and named, where the seconds are used up.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gamma.costs import save_costs
from benchmarks.gpu import passes
from benchmarks.gpu.findings import WEIGHTS, Findings, GpuPlan, GpuSizes
from benchmarks.gpu.rules import Arms, measure_rules, measure_static, some_prompts
from benchmarks.gpu.shapes import AGREEMENT, SHAPES, ModelShape, other_draft, random_pair
from osd.bench.contenders import wait_for_compiled
from osd.bench.decode import DecodedTurns
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch
from osd.drafters.residency import LoadedVersion
from osd.engine.engine import Engine
from osd.models.model import Model
from osd.models.pair import Pair, choose_device
from storage.records import DEFAULT_DRAFT, Request
from storage.settings import Settings

START_SECONDS = 20.0
"""How long a trainer may take to begin at least: it imports torch first."""


def bench_gpu(plan: GpuPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Measure on the device of the settings. Raises BadSetting."""
    return measure_gpu(plan, choose_device(settings.serve.device), settings, watch)


def measure_gpu(plan: GpuPlan, device: torch.device, settings: Settings, watch: Watch) -> BenchResult:
    """Measure everything, shape after shape; cost tables go to the plan's folder."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    settings = settings.changed(serve={"max_length": 512, "record": "off"})
    parts = {name: _parts(SHAPES[name], plan.sizes) for name in plan.measured}
    kinds = [kind for each in parts.values() for kind in each.values()]
    found = Findings(plan, watch, sum(WEIGHTS[kind] for kind in kinds))
    watch.begin(len(kinds))
    with watch.until_ctrl_c():
        wait_for_compiled()
        speed = passes.bandwidth(device, found.sizes.copied)
        found.figures["bytes_a_second"] = speed
        for name in plan.measured:
            _measure(SHAPES[name], device, dtype, settings, speed, parts[name], found)
    found.figures["left_out"] = found.left_out
    facts = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", "dtype": str(dtype),
        "torch": torch.__version__, "agreement": AGREEMENT, "context": passes.CONTEXT,
        "new_tokens": found.sizes.new_tokens, "seconds": round(time.monotonic() - found.begun, 1),
    }  # fmt: skip
    return BenchResult("gpu", facts, found.figures, found.tables, found.files, interrupted=watch.stopped)


def _parts(shape: ModelShape, sizes: GpuSizes) -> dict[str, str]:
    """Return what is measured of a shape, and of which kind each part is; of the large vocabulary passes alone."""
    parts = {"made": "made", "passes": "passes"}
    if shape.vocabulary <= SHAPES["8b"].vocabulary:
        parts |= {f"batch {batch}": "rules" for batch in sizes.batches} | {"learning": "learning"}
    static = {} if shape.hidden > SHAPES["1b"].hidden else {"static cache": "static"}  # it compiles all layers
    return parts | {"swaps": "swaps"} | static


def _measure(
    shape: ModelShape, device: torch.device, dtype: torch.dtype, settings: Settings, speed: float,
    parts: dict[str, str], found: Findings,
) -> None:  # fmt: skip
    """Measure one shape."""
    made: list[Pair] = []
    found.take(f"{shape.name} made", "made", partial(_made, shape, device, dtype, made))
    if not made:
        return
    (pair,), sizes = made, found.sizes
    oracles: dict[int, float] = {}
    work: dict[str, Any] = {"passes": partial(_passes, pair, speed, oracles, found)}
    for batch in sizes.batches:
        arms = Arms(pair, settings, batch, sizes)
        work[f"batch {batch}"] = partial(_rules, arms, oracles, found)
    work["learning"] = partial(_learning, pair, settings, found)
    work["swaps"] = partial(_swaps, pair, settings)
    work["static cache"] = partial(measure_static, pair, found)
    for part, kind in list(parts.items())[1:]:
        found.take(f"{shape.name} {part}", kind, work[part])
        gc.collect()  # engines and caches refer to each other
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _made(shape: ModelShape, device: torch.device, dtype: torch.dtype, made: list[Pair]) -> dict[str, float]:
    pair, agreement = random_pair(shape, device, dtype)
    made.append(pair)
    return {"agreement": agreement}


def _rules(arms: Arms, oracles: dict[int, float], found: Findings) -> dict[str, float]:
    return measure_rules(arms, oracles.get(arms.batch), found)


def _passes(pair: Pair, speed: float, oracles: dict[int, float], found: Findings) -> dict[str, Any]:
    """Passes of the target and chains of the draft, as multiples of what reading their weights once takes."""
    sizes, name = found.sizes, pair.target.name
    read, read_draft = (1e3 * passes.read_bytes(model) / speed for model in (pair.target, pair.draft))
    measured = passes.measure_pair(pair, found)
    if measured.quick and measured.chains:
        source = f"python -m benchmarks gpu, {pair.device}, agreement {AGREEMENT}"
        table = passes.cost_table(f"{name}-captured", source, measured.chains, measured.quick)
        found.files[f"costs of {name}"] = path = found.plan.out / f"{name}-captured.json"
        save_costs(path, table)
        oracles |= {batch: passes.oracle(table, batch, AGREEMENT) for batch in sizes.batches}
    rows = measured.rows(read, read_draft)
    found.tables[f"{name}: passes (reading the target once: {read:.2f} ms, the draft {read_draft:.2f})"] = rows
    return {"read_ms": read, "read_draft_ms": read_draft, "passes": rows, "oracle": oracles}


def _learning(pair: Pair, settings: Settings, found: Findings) -> dict[str, float]:
    """Positions a second of a trainer on this device, alone and beside an engine that serves, and what that loses."""
    sizes = found.sizes
    arms = Arms(pair, settings, sizes.batches[-1], sizes)
    arm, prompts = arms.rule("fixed 4"), some_prompts(4 * arms.batch, pair.vocab_size, seed=97)
    before, during = DecodedTurns(), DecodedTurns()
    before.take_turn(arm, prompts)
    folder = tempfile.TemporaryDirectory()
    with folder as place, trainer_beside(pair.draft, Path(place), found.remaining) as trainer:
        alone = trainer.rate(sizes.learning)
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
    engine.submit(Request(some_prompts(1, pair.vocab_size, seed=96)[0], max_new_tokens=40, ignore_eos=True))
    pauses = []
    with torch.inference_mode():
        for turn in range(2):
            for _ in range(4):
                engine.step()
            other = other_draft(pair)
            decoder = other.decoder(1, engine.pool.decoder.cache.length)
            arrived = LoadedVersion(DEFAULT_DRAFT, f"v{turn}", other.limit, f"d{turn}", decoder, owned=True)
            passes.settle(pair.device)
            begun = time.perf_counter()
            engine.draft_manager.residence.let_in(arrived)
            passes.settle(pair.device)
            pauses.append(1e3 * (time.perf_counter() - begun))
    return {"first_ms": pauses[0], "second_ms": pauses[1]}


class TrainerPace:
    """Positions that a training process has learned from so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.positions = process, 0
        self.began = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.positions = json.loads(line)["positions"]
            self.began.set()
        self.began.set()

    def rate(self, seconds: float) -> float:
        """Return the positions a second over the next ``seconds``."""
        before, begun = self.positions, time.perf_counter()
        time.sleep(seconds)
        return (self.positions - before) / (time.perf_counter() - begun)


@contextmanager
def trainer_beside(draft: Model, folder: Path, seconds: float) -> Iterator[TrainerPace]:
    """Train a random draft of this shape in another process within the block.

    Raises RuntimeError where it did not begin in so many seconds.
    """
    config = folder / "config.json"
    draft.module.config.to_json_file(config)
    command = [sys.executable, "-P", "-m", "benchmarks.gpu.pace", str(config), str(draft.device)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        pace = TrainerPace(process)
        pace.began.wait(max(START_SECONDS, seconds))
        if not pace.positions:
            raise RuntimeError("the trainer did not begin in time")
        yield pace
    finally:
        process.terminate()
        process.wait()
