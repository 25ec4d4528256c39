"""What one pass of a distillation trains on: chosen positions, their weights, and the batches that hold them.

A row holds a text and its branches only for a model that computes them there as it computes each as a text by itself:
:func:`packs` shows it, and does not assume it. A step's batch may be cut into micro-batches of a time limit, sized by
the measured pace. Its gradient is the sum over them, so their number changes rounding and nothing else. A request is
never divided: the shortest is one request, forward and backward, and the optimizer takes one step for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from osd.models.proof import TOLERANCE, off, unit
from storage.branches import Branches
from storage.records import RequestSamples
from storage.settings import LearnSettings
from trainer.distil.branching import SampleWeights, context_length, count, unfold
from trainer.distil.collate import TrainingBatch, collate, device_of, plan, predict, select
from trainer.distil.teacher import Teacher


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass trains on."""

    chosen: list[RequestSamples]
    weights: SampleWeights
    requests: int

    @classmethod
    def of(
        cls, model: nn.Module, samples: Sequence[RequestSamples], learn: LearnSettings, *, texts: bool = False
    ) -> Epoch:
        """Choose the positions that ``learn`` names, with ``texts`` of texts alone; branches become requests of their
        own for a model that cannot read them behind their text."""
        sampling = "teacher" if texts else learn.sampling
        chosen = [s for s in (select(s, learn.positions, sampling) for s in samples) if count(s)]
        requests = len(chosen)
        if any(s.branches is not None for s in chosen) and not packs(model):
            chosen = [part for s in chosen for part in unfold(s)]
        return cls(chosen, SampleWeights.of(chosen, learn), requests)

    def planned(self, learn: LearnSettings, number: int) -> list[list[int]]:
        """Return the batches of pass ``number``."""
        return plan(self.chosen, learn.batch_tokens, learn.seed + number, learn.batch_positions)

    def batch(self, part: Sequence[int], kept: int, teacher: Teacher | None = None) -> TrainingBatch:
        """Return the requests of these indices as one batch, with ``kept`` tokens of the target at each position, and
        what a ``teacher`` adds."""
        some = [self.chosen[i] for i in part]
        batch = collate(some, part, kept, self.weights)
        return batch if teacher is None else teacher.complete(batch, some)


TEXT, BEGINS, LENGTHS = 9, (3, 7), (2, 3)
"""Tokens of the text that is tried, and its branches."""


@torch.no_grad()
def packs(model: nn.Module) -> bool:
    """Return whether a row may hold a text and its branches: the model takes a mask and positions of a text's own, has
    no window that would count tokens of other branches, and says of a small text what it says of its parts."""
    if _has_window(model):
        return False
    was = model.training
    try:
        return _agrees(model.train(False))
    except (TypeError, ValueError, RuntimeError, IndexError):  # a pass that takes no such mask: then each by itself
        return False
    finally:
        model.train(was)


def _has_window(model: nn.Module) -> bool:
    config = model.config.get_text_config()  # type: ignore[union-attr,operator]
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size"))
    return getattr(config, "use_sliding_window", True) is not False and any(map(bool, windows))


def _agrees(model: nn.Module) -> bool:
    samples = _example(int(model.get_output_embeddings().weight.shape[0]))  # type: ignore[operator]
    device, worst = device_of(model), 0.0
    whole = predict(model, collate([samples]).to(device))
    apart = torch.cat([predict(model, collate([each]).to(device)) for each in unfold(samples)])
    for one, other in zip(whole, apart, strict=True):
        worst = max(worst, off(one, other))
    return worst <= TOLERANCE * unit(model)  # type: ignore[arg-type]


def _example(vocabulary: int) -> RequestSamples:
    n = sum(LENGTHS)
    branches = Branches(
        np.array(BEGINS, np.int32), np.array(LENGTHS, np.int32), (np.arange(n, dtype=np.int32) * 5 + 1) % vocabulary,
        np.zeros((n, 1), np.int32), np.zeros((n, 1), np.float16), np.zeros(n, np.float32),
    )  # fmt: skip
    tokens = (np.arange(TEXT, dtype=np.int32) * 3 + 1) % vocabulary
    positions = np.array([2, TEXT - 1], np.int32)
    nothing = np.zeros(2, np.uint8), tokens[positions], np.zeros((2, 1), np.int32), np.zeros((2, 1), np.float16)
    return RequestSamples(
        "example", "", "", "", 0.0, 1, tokens, positions, *nothing, np.zeros(2, np.float32), branches=branches
    )


NEWEST = 0.3
"""Weight of the newest slice in the measured pace."""
FIRST_TOKENS = 64
"""Tokens of the first slice, before anything was measured."""


class MicroBatches:
    """The micro-batches of one run; ``between`` is called after each, to wait while others need the device."""

    def __init__(self, seconds: float, between: Callable[[], None]) -> None:
        self.seconds, self._between = seconds, between
        self._per_token: float | None = None

    def cut(self, samples: Sequence[RequestSamples], chunk: Sequence[int]) -> Iterator[list[int]]:
        """Yield the chunk's indices into ``samples`` slice by slice, timing the caller's work between them."""
        tokens = FIRST_TOKENS if self._per_token is None else self.seconds / self._per_token
        left = list(chunk)
        while left:
            count = 1
            widest = context_length(samples[left[0]])
            while count < len(left):
                wider = max(widest, context_length(samples[left[count]]))
                if wider * (count + 1) > tokens:
                    break
                widest, count = wider, count + 1
            part, left = left[:count], left[count:]
            began = time.perf_counter()
            yield part
            self._measure(widest * count, time.perf_counter() - began)
            tokens = self.seconds / (self._per_token or 1.0)
            self._between()

    def _measure(self, tokens: int, seconds: float) -> None:
        pace = seconds / max(1, tokens)
        self._per_token = pace if self._per_token is None else self._per_token + NEWEST * (pace - self._per_token)
