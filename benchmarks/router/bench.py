"""How often language and topic of a prompt are guessed right, how well the unknown is known, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.router import guesses
from benchmarks.router.folder import KEPT, BenchSides, LabelledFolder
from benchmarks.router.train_languages import save_languages
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all
from osd.bench.harness.watch import Watch, note
from router.language import LanguageModel
from router.topic import TopicModel
from storage.errors import BadBenchFile
from storage.settings import Settings

Figures = dict[str, float | None]
PROMPTS = 1000
KEPT_PART = f"{KEPT:.0%} of --train, by SHA-256 of the English sentence or the prompt"


@dataclass(frozen=True, kw_only=True)
class RouterPlan:
    """How often language and topic of a prompt are guessed right, how well the unknown is known, and how fast.

    Languages are learned from tatoeba (xquad and mbxp are only measured on), topics from clinc150 and banking77.

    Example: `python -m benchmarks router --train ./data --json`
    """

    train: Path
    """Folder with tatoeba, xquad, clinc150, banking77, mbxp as NAME.jsonl.gz or .jsonl; those that are missing are left
    out."""
    test: Path | None = None
    """Folder with the same files to measure on. Default: 15 % of --train, chosen by a hash of the English sentence or
    the prompt, which is then not learned from."""
    out: Path | None = None
    """Only learn the languages of all tatoeba, and write the model here."""


def bench_router(plan: RouterPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Measure, or only write the model of languages."""
    folder = LabelledFolder(plan.train, note)
    if plan.out:
        return keep_languages(folder, plan.out)
    figures = guess_all(BenchSides(folder, LabelledFolder(plan.test, note) if plan.test else None), watch)
    facts = {"languages_20": guesses.MOST_SPOKEN, "tested_on": "--test" if plan.test else KEPT_PART}
    tables = {"Language and topic": [{"figure": name, "value": value} for name, value in figures.items()]}
    return BenchResult("router", facts, figures, tables, interrupted=watch.stopped)


def keep_languages(folder: LabelledFolder, out: Path) -> BenchResult:
    """Learn all sentences of the folder and write the model. Raises BadBenchFile without tatoeba."""
    rows = folder.rows("tatoeba")
    if not rows:
        raise BadBenchFile(path=folder.path, reason="has no tatoeba.jsonl or tatoeba.jsonl.gz")
    model = guesses.language_model(rows)
    save_languages(model, out)
    figures = {"languages": len(model.labels), "n_grams": model.ids.size, "bytes": out.stat().st_size}
    return BenchResult("router", {"train": folder.path}, figures, files={"languages": out})


def guess_all(sides: BenchSides, watch: Watch) -> Figures:
    """Learn, guess and time; what cannot be measured with these files is left out."""
    models: dict[str, Any] = {}

    def languages() -> Figures:
        models["languages"], found = guesses.measure_languages(sides)
        return found

    def intents() -> Figures:
        models["topics"], found = guesses.measure_intents(sides, "label")
        return guesses.intent_figures(found)

    def ten_topics() -> Figures:
        found = guesses.measure_intents(sides, "topic", calibrate=False)[1]
        return {"topic_accuracy_clinc10": guesses.accuracy(found)}

    def never_seen() -> Figures:
        found = guesses.measure_intents(sides, "label", negatives=False, calibrate=False)[1]
        return {"oos_auroc_never_seen": guesses.auroc(found)}

    steps: dict[str, Callable[[], Figures]] = {
        "languages": languages, "10 topics": ten_topics, "150 intents": intents,
        "150 intents, outside never seen": never_seen,
        "77 banking intents": lambda: {"banking77_accuracy": guesses.measure_banking(sides)},
        "latency": lambda: measure_speed(sides, models["languages"], models["topics"]),
    }  # fmt: skip
    found: Figures = {}
    for figures in measure_all(steps, lambda name: steps[name](), watch):
        found |= figures
    return found


def measure_speed(sides: BenchSides, languages: LanguageModel | None, intents: TopicModel | None) -> Figures:
    """Return microseconds a prompt to guess both, one prompt at a time, without threads."""
    if not languages or not intents:
        return {}
    texts = [row.text for row in sides.unlearned("clinc150")[::7]][:PROMPTS]
    taken = []
    for text in [*texts[:50], *texts]:
        start = time.perf_counter_ns()
        languages.predict(text)
        intents.predict(text)
        taken.append((time.perf_counter_ns() - start) / 1000)
    return {"latency_us_median": float(np.median(taken[50:])), "latency_us_p99": float(np.percentile(taken[50:], 99))}
