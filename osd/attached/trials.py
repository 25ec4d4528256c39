"""Trials on a running vLLM: whether publishing to it works, and how many tokens it should draft at each batch size.

A self-test publishes its own draft to it once more, which must change nothing.

Draft lengths are tried: its own tokens a second decide. At some batch sizes, so many clients complete texts at once
with one draft length after the other, in turns that are shifted from round to round. The shortest length counts
that is no worse than the best by more than their errors. It takes a minute or two of the engine's time; requests that
others send meanwhile blur it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from osd.attached.base import EngineFacts, EngineUnsuited
from osd.attached.vllm.engine import VllmEngine, trial_prompt
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest

PROMPTS, OUTPUT = 6, 32
"""Answers of a self-test, and tokens of each."""
Tokens = Sequence[int]
Measure = Callable[[int, int], float]
"""Batch size and draft length → tokens a second."""
Progress = Callable[[int, int], None]
"""Called after each turn with turns done and turns in all."""
TUNED_OUTPUT = 48
"""Tokens of an answer, where draft lengths are tried."""
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Selftest:
    """What a self-test saw."""

    tokens: int
    same_ids: bool
    """Whether token ids were the same before and after."""
    accepted_before: int
    accepted_after: int
    drafted: int


def selftest(engine: VllmEngine) -> Selftest:
    """Decode a few prompts, publish the draft that is served, decode them again.

    Raises EngineUnsuited where that draft's folder is not seen from here, or ids or acceptance have changed.
    """
    facts = engine.probe()
    folder = Path(facts.ranks[0].folder or facts.draft)
    serves = facts.serves
    if not folder.is_dir() or weights_digest(folder) != serves:
        reason = "the folder of the draft that it serves is not seen from here, so there is nothing to publish again"
        raise EngineUnsuited(engine=engine.name, reason=reason)
    before = _decode(engine)
    engine.publish(folder, serves, facts.ranks[0].version or serves)
    after = _decode(engine)
    found = Selftest(sum(map(len, before[0])), before[0] == after[0], before[1], after[1], after[2])
    if not found.same_ids:
        raise EngineUnsuited(engine=engine.name, reason="publishing the weights that it had changed its answers")
    if found.accepted_after < 0.9 * found.accepted_before:
        reason = f"publishing what it had lowered what is accepted: {found.accepted_before} to {found.accepted_after}"
        raise EngineUnsuited(engine=engine.name, reason=reason)
    return found


def _decode(engine: VllmEngine) -> tuple[list[list[int]], int, int]:
    """Return the ids of each answer, and accepted and drafted tokens in all, by the engine's own counters."""
    start = engine.counters()
    answers = [engine.complete(trial_prompt(number), OUTPUT) for number in range(PROMPTS)]
    end = engine.counters()
    names = "vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_draft_tokens"
    accepted, drafted = (int(end.get(name, 0) - start.get(name, 0)) for name in names)
    return answers, accepted, drafted


@dataclass(frozen=True, slots=True)
class TunedBatch:
    """What one batch size was measured to do."""

    batch: int
    rates: dict[int, float]
    """Draft length → tokens a second, the mean of all rounds."""
    errors: dict[int, float]
    """Its standard error."""
    best: int
    """The length to draft: the shortest whose rate is within the error of the best one's."""


def batch_sizes(most: int) -> list[int]:
    """Return 1, 2, 4 … up to ``most``."""
    return sorted({min(2**i, most) for i in range(math.ceil(math.log2(most)) + 1)}) if most > 1 else [1]


def draft_lengths(most: int) -> list[int]:
    """Return 0, 1, 2, 3, 4, 6, 8 … up to ``most``."""
    return sorted({length for length in (0, 1, 2, 3, 4, 6, 8, 12, 16, most) if length <= most})


def tune(batches: Sequence[int], lengths: Sequence[int], measure: Measure, progress: Progress) -> Iterator[TunedBatch]:
    """Measure each draft length at each batch size, and yield what was found, batch by batch."""
    turns, done = len(batches) * len(lengths) * ROUNDS, 0
    for batch in batches:
        rates: dict[int, list[float]] = {length: [] for length in lengths}
        for number in range(ROUNDS):
            shift = number * len(lengths) // ROUNDS
            for length in (*lengths[shift:], *lengths[:shift]):
                rates[length].append(measure(batch, length))
                done += 1
                progress(done, turns)
        yield judged(batch, rates)


def judged(batch: int, rates: dict[int, list[float]]) -> TunedBatch:
    """Choose a draft length by the rates that were measured: at least one each."""
    means = {length: fmean(some) for length, some in rates.items()}
    errors = {
        length: stdev(some) / math.sqrt(len(some)) if len(some) > 1 else 0.0 for length, some in rates.items()
    }  # fmt: skip
    top = max(means, key=lambda length: means[length])
    good = [length for length in means if means[top] - means[length] <= math.hypot(errors[top], errors[length])]
    return TunedBatch(batch, means, errors, min(good))


def schedule_of(found: Sequence[TunedBatch]) -> list[tuple[int, int, int]]:
    """Join batch sizes to (first, last, length) triples, as vLLM's ``num_speculative_tokens_per_batch_size`` has them:
    each size stands for those down to the one measured before it, and neighbours that agree are one."""
    schedule: list[tuple[int, int, int]] = []
    first = 1
    for one in found:
        if schedule and schedule[-1][2] == one.best:
            schedule[-1] = (schedule[-1][0], one.batch, one.best)
        else:
            schedule.append((first, one.batch, one.best))
        first = one.batch + 1
    return schedule


def measure_by(engine: VllmEngine, prompts: Sequence[Tokens]) -> Measure:
    """Return a measure of an engine whose draft lengths can be changed while it runs."""
    place = 0

    def measure(batch: int, length: int) -> float:
        nonlocal place
        engine.set_gamma([(1, 1 << 20, length)])
        time.sleep(0.3)  # the scheduler looks ten times a second
        some = [prompts[(place + i) % len(prompts)] for i in range(2 * batch)]
        place += len(some)
        began = time.perf_counter()
        with ThreadPoolExecutor(batch) as clients:
            answers = list(clients.map(lambda prompt: engine.complete(prompt, TUNED_OUTPUT), some))
        return sum(map(len, answers)) / (time.perf_counter() - began)

    return measure


def require_live(engine: str, facts: EngineFacts) -> None:
    """Raise EngineUnsuited for an engine whose draft lengths cannot be changed while it runs."""
    if not facts.live_gamma:
        reason = "its draft lengths cannot be changed while it runs, so they cannot be tried; start it with "
        reason += "OSD_VLLM_GAMMA=FILE and --scheduler-cls osd_vllm.scheduler.OsdScheduler for as long as this takes"
        raise EngineUnsuited(engine=engine, reason=reason)
