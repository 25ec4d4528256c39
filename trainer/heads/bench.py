"""A comparison of two heads for one draft, one trained online and one offline, on requests that neither has seen.

    traffic ──> recorded ──> a run every learn.interval_requests ──> the online head ──┐
    the same prompts ──> token mixing, as many passes as asked ───> the offline head ──┼──> other prompts, served
    nothing but the mean ─────────────────────────────────────────> a constant ────────┘    with a fixed gamma

All predict the same tokens: those that serving drafted and judged. What a head costs is timed beside a draft step,
turn by turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from osd.engine.session import serving
from osd.models.acceptance_head import AcceptanceHead, HeadPass
from osd.models.llama_forward_compiled import PARTS
from osd.models.pair import Pair
from osd.verification import compiled_sampling
from storage.errors import BadInput
from storage.names import head_of
from storage.records import DEFAULT_DRAFT, Request, RunState
from storage.settings import Settings
from storage.store import Store, open_store
from trainer.distil.optimizer import Memory
from trainer.heads.examples import Examples, drafted_of, embed
from trainer.heads.loop import load_version, run_head_once
from trainer.heads.losses import binary_kl, calibration_error
from trainer.heads.offline import Recipe, Report, Tokens, answers, fit_offline, material

TEST_GAMMA = 8
"""Draft length of every round of the test requests."""
AT_ONCE = {"flush_seconds": 0.02}
"""Settings that flush the recorder at once: nobody is served meanwhile."""
TURNS, STEPS = 100, 20
"""Turns of the timing, and passes in each turn."""


@dataclass(frozen=True, slots=True)
class HeadBenchPlan:
    """The parameters of the comparison."""

    train: Sequence[Tokens]
    test: Sequence[Tokens]
    recipe: Recipe
    epochs: int
    """Offline passes; online there are ``learn.head_epochs`` a run."""


def bench_heads(pair: Pair, settings: Settings, plan: HeadBenchPlan, report: Report = lambda _: None) -> dict[str, Any]:
    """Run the comparison and return the dictionary that the command prints. Raises BadInput when nothing can be
    learned."""
    online, runs = learn_online(pair, settings, plan, report)
    report("answering and mixing the same prompts")
    items = material(
        pair, plan.train, answers(pair, settings, plan.train, plan.recipe), plan.recipe, settings.learn.seed
    )
    learn = settings.learn.model_copy(update={"head_epochs": plan.epochs})
    offline, done = fit_offline(pair, settings.model_copy(update={"learn": learn}), items)
    report(f"serving {len(plan.test)} requests to test on")
    examples = test_examples(pair, settings, plan)
    heads = {"online": online, "offline": offline}
    found = {name: measure(head.estimate(examples.embeddings), examples) for name, head in heads.items()}
    mean = examples.chances.mean().logit().expand(len(examples))
    return {
        "requests": len(plan.train),
        "test_requests": len(plan.test),
        "test_tokens": len(examples),
        "mean_acceptance": round(float(examples.chances.mean()), 4),
        **found,
        "constant": measure(mean, examples),
        "kl_ratio": round(found["online"]["binary_kl"] / found["offline"]["binary_kl"], 4),
        "runs": runs,
        "offline_tokens": done["tokens"],
        "offline_epochs": plan.epochs,
        "cost": cost(pair, online),
    }


def learn_online(
    pair: Pair, settings: Settings, plan: HeadBenchPlan, report: Report
) -> tuple[AcceptanceHead, dict[str, int]]:
    """Serve the requests in order and train whenever a run is due; return the head that serves at the end."""
    interval, memory, states = settings.learn.most_waiting, Memory(), []
    with _served(pair, settings, {"rule": "specdecpp"}) as (store, ask, changed):
        for begin in range(0, len(plan.train), interval):
            ask(plan.train[begin : begin + interval], plan.recipe)
            report(f"served {begin + interval} of {len(plan.train)} requests")
            if run := run_head_once(store, changed, DEFAULT_DRAFT, "bench", memory=memory):
                states.append(run.state)
        if RunState.PUBLISHED not in states:
            raise BadInput(reason=f"No head was published from {len(plan.train)} requests; give more.")
        head = load_version(store, store.versions.current(head_of(DEFAULT_DRAFT)))
    return head, {state.value: states.count(state) for state in set(states)}


def test_examples(pair: Pair, settings: Settings, plan: HeadBenchPlan) -> Examples:
    """What serving drafts and judges of the other prompts, with a fixed gamma so that no head has a say."""
    with _served(pair, settings, {"rule": "fixed", "initial": TEST_GAMMA}) as (store, ask, _):
        ask(plan.test, plan.recipe)
        kept = store.samples.read(store.samples.recent(limit=len(plan.test)))
    items = [item for item in map(drafted_of, kept) if item is not None]
    if not items:
        raise BadInput(reason="The requests to test on left no drafted tokens; give more of them, or longer answers.")
    return embed(pair.draft.module, items)


@contextmanager
def _served(
    pair: Pair, settings: Settings, gamma: dict[str, Any]
) -> Iterator[tuple[Store, Callable[[Sequence[Tokens], Recipe], None], Settings]]:
    """An engine over a store that is thrown away: the store, how to ask, and the settings that it has."""
    rules = {"max": 20, "routes": {}, "specdecpp": {"head": None}, **gamma}
    with TemporaryDirectory(prefix="osd-head-bench-") as folder:
        storage = {"directory": Path(folder), "url": None, **AT_ONCE}
        changed = settings.changed(gamma=rules, serve={"record": "verified"}, storage=storage)
        with open_store(changed) as store, serving(pair, changed, store) as engine:

            def ask(prompts: Sequence[Tokens], recipe: Recipe) -> None:
                fitting = (p for p in prompts if len(p) + recipe.max_tokens < engine.limit)
                for _ in engine.run(Request(p, recipe.max_tokens, recipe.sampling) for p in fitting):
                    pass
                assert engine.recorder is not None
                engine.recorder.wait(60)

            yield store, ask, changed


@torch.inference_mode()
def measure(logits: torch.Tensor, examples: Examples) -> dict[str, float]:
    """Return the prediction errors of estimates given as logits."""
    return {
        "calibration_error": round(calibration_error(examples.chances, logits.sigmoid()), 4),
        "binary_kl": round(float(binary_kl(examples.chances, logits).mean()), 4),
    }


@torch.inference_mode()
def cost(pair: Pair, head: AcceptanceHead) -> dict[str, float]:
    """Measure microseconds of a draft step at batch 1, and of a head's addition to it.

    Medians over turns in which steps with and without the head alternate, in alternating order, and the median of their
    ratios.
    """
    decoder, context = pair.draft.decoder(1, 256), 100
    for compiled in (PARTS, compiled_sampling.CHOOSING):  # as in an engine that has drafted a while
        compiled.wait()
    served = HeadPass(head, pair.device)
    decoder.cache.wants_embedding = True
    decoder.prefill(0, [0] * context)
    token = torch.zeros(1, 1, dtype=torch.long, device=pair.device)

    def step(head: HeadPass | None = None) -> object:
        logits, embedding = decoder.logits(token, [context]), decoder.cache.embedding
        if read_off := compiled_sampling.read_off(logits, embedding, head.arrays if head else None):
            return read_off.choices.tolist(), read_off.chances
        chances = head(embedding[:, 0]).tolist() if head and embedding is not None else None
        return logits[:, 0].argmax(-1).tolist(), chances

    def step_with_head() -> object:
        return step(served)

    def timed(run: Callable[[], object]) -> float:
        begun = time.perf_counter()
        for _ in range(STEPS):
            run()
        return (time.perf_counter() - begun) / STEPS * 1e6

    ways, turns = (step, step_with_head), []
    for turn in range(TURNS):
        took = {way: timed(way) for way in (ways if turn % 2 else ways[::-1])}
        turns.append((took[step], took[step_with_head]))
    return {
        "draft_step_us": round(statistics.median(plain for plain, _ in turns), 1),
        "head_us": round(statistics.median(both - plain for plain, both in turns), 1),
        "share": round(statistics.median(both / plain - 1 for plain, both in turns), 4),
    }
