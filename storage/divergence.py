"""How far a draft was from the target on one request, from what was kept of it.

A drafted token x ~ q is accepted with min(1, p(x)/q(x)), whose mean under q is Σ_v min(p(v), q(v)); so 1 minus the mean
acceptance of the drafted tokens is an unbiased estimate of the total variation distance between the two, under the
sampling that the request itself asked for. A greedy request's is the share of its drafted tokens that were refused.
"""

from __future__ import annotations

import numpy as np

from storage.records import RequestSamples, TokenKind


def of_request(samples: RequestSamples) -> float | None:
    """In [0, 1]; None where nothing was drafted and judged."""
    judged = samples.kinds != TokenKind.UNDRAFTED
    if not judged.any():
        return None
    refused = (samples.kinds[judged] == TokenKind.REJECTED).astype(np.float64)
    if samples.acceptance is None:
        return float(refused.mean())
    chances = samples.acceptance[judged].astype(np.float64)
    return float(np.where(np.isnan(chances), refused, 1 - chances).mean())
