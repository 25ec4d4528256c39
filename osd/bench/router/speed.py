"""Microseconds a prompt: language and topic, and a DistilBERT of the usual size beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

import numpy as np

from router.language import LanguageModel
from router.topic import TopicModel

T = TypeVar("T")

PROMPTS = 1000
DISTILBERT_PROMPTS = 40
TOKENS_A_WORD = 1.3
"""Of a word-piece vocabulary of 30,000, in English."""


def latencies(languages: LanguageModel, topics: TopicModel, texts: Sequence[str]) -> tuple[float, float]:
    """Median and 99th percentile of microseconds to guess both, one prompt at a time; no step of it uses threads."""

    def both(text: str) -> None:
        languages.predict(text)
        topics.predict(text)

    taken = _microseconds(both, [*texts[:50], *texts[:PROMPTS]])[50:]
    return float(np.median(taken)), float(np.percentile(taken, 99))


def distilbert(texts: Sequence[str]) -> tuple[float, float]:
    """Median microseconds a prompt, and millions of parameters, of a DistilBERT with random weights.

    Batch 1, torch's own number of threads, as many tokens as the prompts would have; time to make tokens left out.
    """
    import torch
    from transformers import DistilBertConfig, DistilBertModel

    model = DistilBertModel(DistilBertConfig()).train(False)
    size = sum(each.numel() for each in model.parameters()) / 1e6
    lengths = [2 + round(TOKENS_A_WORD * len(text.split())) for text in texts[: DISTILBERT_PROMPTS + 5]]

    def embed(length: int) -> None:
        with torch.inference_mode():
            model(torch.randint(1000, 30000, (1, length)))

    return median(_microseconds(embed, lengths)[5:]), size


def _microseconds(do: Callable[[T], None], what: Sequence[T]) -> list[float]:
    taken = []
    for each in what:
        start = time.perf_counter_ns()
        do(each)
        taken.append((time.perf_counter_ns() - start) / 1000)
    return taken
