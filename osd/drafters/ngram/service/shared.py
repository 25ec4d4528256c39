"""Recorded requests that a server may draft from for every tenant."""

from __future__ import annotations

from collections.abc import Sequence

from storage.records import RequestSamples
from storage.replay.samples import SampleStore


def shared_requests(samples: SampleStore, ids: Sequence[str], vocabulary: int) -> list[RequestSamples]:
    """Return those of tenants that share, in their order; without forgotten ones and those of another tokenizer.

    Raises SegmentDamaged, StoreError.
    """
    found = samples.without_forgotten(samples.read(ids))
    shares = {tenant: samples.tenants.get(tenant).share for tenant in {request.tenant for request in found}}
    return [request for request in found if shares[request.tenant] and request.tokens.max(initial=0) < vocabulary]
