"""The distance of a draft from the target on one request, computed from the request's stored samples.

A drafted token x ~ q is accepted with min(1, p(x)/q(x)), whose mean under q is Σ_v min(p(v), q(v)); so 1 minus the mean
acceptance of the drafted tokens is an unbiased estimate of the total variation distance between the two, under the
sampling that the request itself asked for. For a greedy request it is the share of its drafted tokens that were
rejected.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from storage.records import RequestSamples, TokenKind


def of_requests(batch: Sequence[RequestSamples]) -> list[float | None]:
    """Return the estimated total variation distance of each request, in [0, 1]; None where no drafted token was
    judged."""
    kinds = np.concatenate([samples.kinds for samples in batch])
    chances = np.concatenate([_chances(samples) for samples in batch])
    distances = np.where(np.isnan(chances), kinds == TokenKind.REJECTED, 1 - chances)
    judged = kinds != TokenKind.UNDRAFTED
    number = np.repeat(np.arange(len(batch)), [len(samples) for samples in batch])[judged]
    counts = np.bincount(number, minlength=len(batch))
    sums = np.bincount(number, distances[judged], len(batch))
    return [total / count if count else None for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]


def _chances(samples: RequestSamples) -> npt.NDArray[np.float64]:
    known = np.full(len(samples), np.nan) if samples.acceptance is None else samples.acceptance
    return known.astype(np.float64)
