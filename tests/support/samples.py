"""Recorded requests position by position, as a test reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage.records import RequestSamples, TokenKind


@dataclass(frozen=True)
class Sample:
    """One position; the names are those of :class:`storage.records.RequestSamples`."""

    position: int
    kind: TokenKind
    drafted: int
    topk_ids: Any
    topk_logprobs: Any
    outside: float
    acceptance: float | None


def each_position(samples: RequestSamples) -> Iterator[Sample]:
    """Yield the positions of a request."""
    for i in range(len(samples)):
        chance = np.nan if samples.acceptance is None else float(samples.acceptance[i])
        yield Sample(
            int(samples.positions[i]), TokenKind(int(samples.kinds[i])), int(samples.drafted[i]), samples.topk_ids[i],
            samples.topk_logprobs[i], float(samples.outside[i]), None if np.isnan(chance) else chance,
        )  # fmt: skip
