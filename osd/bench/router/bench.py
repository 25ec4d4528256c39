"""The steps of `osd bench router`, in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from osd.bench.router import topics
from osd.bench.router.folder import KEPT, Sides
from osd.bench.router.languages import MOST_SPOKEN, measure_languages
from osd.bench.router.speed import PROMPTS, distilbert, latencies

Report = Callable[[int, int, str], None]
"""Told steps done, steps in all, and what comes next."""
KEPT_PART = f"{KEPT:.0%} of --train, by SHA-256 of the English sentence or the prompt"
STEPS = (
    "languages: learning and guessing", "10 topics", "150 intents", "150 intents, outside never seen",
    "77 banking intents", "latency", "DistilBERT beside it",
)  # fmt: skip


def bench_router(sides: Sides, report: Report) -> dict[str, Any]:
    """Learn, guess and time; what cannot be measured with these files is None."""
    began = time.perf_counter()
    result: dict[str, float | None] = dict.fromkeys(RESULTS)
    steps = iter(range(len(STEPS)))

    def next_step() -> None:
        done = next(steps)
        report(done, len(STEPS), STEPS[done])

    next_step()
    languages, accuracies = measure_languages(sides)
    result |= accuracies
    next_step()
    result["topic_accuracy_clinc10"] = topics.accuracy(topics.measure_intents(sides, "topic", calibrate=False)[1])
    next_step()
    intents, found = topics.measure_intents(sides, "label")
    result |= _of_intents(found)
    next_step()
    result["oos_auroc_never_seen"] = topics.auroc(
        topics.measure_intents(sides, "label", negatives=False, calibrate=False)[1]
    )
    next_step()
    result["banking77_accuracy"] = topics.measure_banking(sides)
    next_step()
    texts = [row.text for row in sides.unlearned("clinc150")[::7]][:PROMPTS]
    if languages and intents:
        median, result["latency_us_p99"] = latencies(languages, intents, texts)
        next_step()
        beside, result["distilbert_million_parameters"] = distilbert(texts)
        result |= {
            "latency_us_median": median,
            "distilbert_us_median": beside,
            "speedup_vs_distilbert": beside / median,
        }
    tested = "--test" if sides.test else KEPT_PART
    return {**result, "languages_20": MOST_SPOKEN, "tested_on": tested, "seconds": time.perf_counter() - began}


def _of_intents(found: list[topics.Guessed]) -> dict[str, float | None]:
    return {
        "intent_accuracy_clinc150": topics.accuracy(found),
        "oos_auroc": topics.auroc(found),
        "unsure_inside": topics.unsure(found, True),
        "unsure_outside": topics.unsure(found, False),
        "calibration_error": topics.calibration_error(found),
    }


RESULTS = (
    *(f"language_accuracy_{name}" for name in (
        "all", "20", "xquad", "xquad_question", "short", "mixed", "code_fenced", "code_bare")),
    "topic_accuracy_clinc10", "intent_accuracy_clinc150", "oos_auroc", "oos_auroc_never_seen", "unsure_inside",
    "unsure_outside", "calibration_error", "banking77_accuracy", "latency_us_median", "latency_us_p99",
    "distilbert_us_median", "distilbert_million_parameters", "speedup_vs_distilbert",
)  # fmt: skip
"""What the last line holds, whether it could be measured or not."""
