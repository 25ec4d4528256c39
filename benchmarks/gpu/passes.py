"""What passes take: eager and captured, beside what reading the weights once takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks.gamma.costs import CostCells, CostTable
from benchmarks.gpu.findings import Findings
from osd.models.captured_pass import CapturedPass
from osd.models.decoder import Decoder
from osd.models.forward import ForwardPass
from osd.models.model import Model
from osd.models.pair import Pair

CONTEXT = 512
"""Positions of each row before the pass."""
CHAIN = 4
"""Tokens of a draft chain."""
READY_SECONDS = 60
"""How long a shape is waited for at most."""
Cells = dict[tuple[int, int], float]
"""Milliseconds of a pass by rows and tokens of a row."""


def eager(model: Model) -> Model:
    """Return the model without captured passes."""

    def build(module: Any) -> ForwardPass | None:
        forward = model.build(module)
        assert forward is not None
        forward.compiled = None
        return forward

    return replace(model, build=build)


@dataclass(slots=True)
class PairPasses:
    """Milliseconds of a pair's passes."""

    quick: Cells = field(default_factory=dict)
    """The target's, captured."""
    slow: Cells = field(default_factory=dict)
    """The target's, eager."""
    chains: dict[int, float] = field(default_factory=dict)
    """CHAIN passes of the draft, captured, by rows."""
    slow_chains: dict[int, float] = field(default_factory=dict)

    def rows(self, read: float, read_draft: float) -> list[dict[str, Any]]:
        """Return a table, beside the milliseconds that reading the weights takes."""
        passes = [
            {"rows": r, "tokens of a row": w, "ms": ms, "÷ reading": ms / read, "eager ms": self.slow.get((r, w))}
            for (r, w), ms in sorted(self.quick.items())
        ]
        chains = [
            {"rows": r, "chain of": CHAIN, "ms": ms, "÷ reading": ms / read_draft / CHAIN,
             "eager ms": self.slow_chains.get(r)}
            for r, ms in self.chains.items()
        ]  # fmt: skip
        return passes + chains


def measure_pair(pair: Pair, found: Findings) -> PairPasses:
    """Measure the passes of a pair, those over the first two widths and the chains first, while there is time."""
    measured, sizes = PairPasses(), found.sizes
    first = [(rows, width) for width in sizes.widths[:2] for rows in sizes.rows]
    rest = [(rows, width) for width in sizes.widths[2:] for rows in sizes.rows]
    target, draft = eager(pair.target), eager(pair.draft)
    jobs = [TimedPass(measured.quick, cell, partial(measure_pass, pair.target, *cell)) for cell in first]
    jobs += [TimedPass(measured.chains, rows, partial(measure_chain, pair.draft, rows)) for rows in sizes.rows]
    jobs += [TimedPass(measured.slow, cell, partial(measure_pass, target, *cell)) for cell in first]
    jobs += [TimedPass(measured.slow_chains, rows, partial(measure_chain, draft, rows)) for rows in sizes.rows]
    jobs += [TimedPass(measured.quick, cell, partial(measure_pass, pair.target, *cell)) for cell in rest]
    for number, job in enumerate(jobs):
        if found.late:
            found.leave_out(f"{pair.target.name} passes: {len(jobs) - number} of {len(jobs)} cells")
            break
        job.into[job.key] = job.measure(sizes.repeats, found)
    return measured


class TimedPass(NamedTuple):
    """One thing to be measured."""

    into: dict[Any, float]
    key: Any
    measure: Callable[[int, Findings], float]


def measure_pass(model: Model, rows: int, width: int, repeats: int, found: Findings) -> float:
    """Return the median milliseconds of passes over rows that hold CONTEXT positions."""
    with torch.inference_mode():
        decoder = filled(model, rows)
        tokens, starts = torch.ones(rows, width, dtype=torch.long, device=decoder.device), [CONTEXT] * rows
        ms = timed(decoder, lambda: decoder.scored(tokens, starts, [width] * rows), repeats, found)
        decoder.cache.drop()
    return ms


def measure_chain(model: Model, rows: int, repeats: int, found: Findings) -> float:
    """Return the median milliseconds of CHAIN draft passes, one after another: one graph where there is one."""
    with torch.inference_mode():
        decoder = filled(model, rows)
        tokens, starts = torch.ones(rows, 1, dtype=torch.long, device=decoder.device), [CONTEXT] * rows

        def chain() -> None:
            if decoder.drafts and decoder.draft(tokens, starts, [1] * rows, CHAIN, None):
                return
            fed = tokens
            for step in range(CHAIN):
                fed = decoder.logits(fed, [start + step for start in starts])[:, -1].argmax(-1, keepdim=True)

        ms = timed(decoder, chain, repeats, found)
        decoder.cache.drop()
    return ms


def filled(model: Model, rows: int) -> Decoder:
    """Return a decoder whose rows hold CONTEXT positions."""
    decoder = model.decoder(rows, CONTEXT + 128)
    for row in range(rows):
        decoder.prefill(row, [2 + i % 97 for i in range(CONTEXT)])
    return decoder


def timed(decoder: Decoder, run: Callable[[], object], repeats: int, found: Findings) -> float:
    """Run until what can be captured is, then return the median milliseconds of ``repeats`` runs."""
    until = time.monotonic() + READY_SECONDS
    for _ in range(6):
        run()
    while waits(decoder) and time.monotonic() < until and not found.late:
        decoder.prepare() or time.sleep(0.02)  # type: ignore[func-returns-value]
        run()
    run()
    times = []
    for _ in range(repeats):
        settle(decoder.device)
        begun = time.perf_counter()
        run()
        settle(decoder.device)
        times.append(1e3 * (time.perf_counter() - begun))
    return sorted(times)[len(times) // 2]


def waits(decoder: Decoder) -> bool:
    """Return whether a shape that was asked for is not captured yet."""
    compiled = decoder.forward.compiled
    return isinstance(compiled, CapturedPass) and compiled.waits


def settle(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth(device: torch.device, size: int) -> float:
    """Return bytes a second that copying ``size`` bytes reads and writes."""
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    times = []
    for _ in range(5):
        settle(device)
        begun = time.perf_counter()
        target.copy_(source)
        settle(device)
        times.append(time.perf_counter() - begun)
    return 2 * size / min(times)


def read_bytes(model: Model) -> int:
    """Return the bytes of weights that a pass reads: all but the embeddings, of which it reads lines."""
    module: Any = model.module
    table = module.get_input_embeddings().weight
    head = module.get_output_embeddings().weight
    return sum(w.nbytes for w in module.parameters() if w is not table or w is head)


def cost_table(name: str, source: str, chains: dict[int, float], verify: Cells) -> CostTable:
    """Return what was measured in the simulator's form; chains by rows."""
    draft = CostCells([(rows, CHAIN, ms / CHAIN) for rows, ms in chains.items()])
    return CostTable(name, source, draft, CostCells([(rows, rows * width, ms) for (rows, width), ms in verify.items()]))


def oracle(costs: CostTable, rows: int, agreement: float, most: int = 16) -> float:
    """Return the tokens a second of rounds that are drafted just as far as the draft is right, each draft right with
    this probability by itself."""
    chances = [agreement**n * (1 - agreement) for n in range(most)] + [agreement**most]
    ms = [costs.draft_ms(rows, n) * (n > 0) + costs.verify_ms(rows, rows * (n + 1)) for n in range(most + 1)]
    tokens = sum(p * (n + 1) for n, p in enumerate(chances))
    return 1e3 * rows * tokens / sum(p * each for p, each in zip(chances, ms, strict=True))
