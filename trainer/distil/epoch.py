"""What one pass of a distillation trains on: chosen positions, their weights, and the batches that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from storage.records import RequestSamples
from storage.settings import LearnSettings
from trainer.distil.branching import SampleWeights, count, unfold
from trainer.distil.collate import TrainingBatch, collate, plan, select
from trainer.distil.packing import packs
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
