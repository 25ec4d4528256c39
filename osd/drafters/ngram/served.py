"""An index of suffixes over served texts, out of the replay store."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from osd.drafters.ngram.match_settings import MatchSettings
from osd.drafters.ngram.suffix import DEFAULTS, SuffixIndex
from storage.replay.samples import SampleStore

SOME = 256
"""Requests that are read at once."""


def index_of_requests(
    samples: SampleStore, most: int, settings: MatchSettings = DEFAULTS, routes: list[str] | None = None
) -> SuffixIndex:
    """Build an index of the newest ``most`` recorded requests, of all routes or of some. Raises SegmentDamaged."""
    return SuffixIndex.build(_texts(samples, samples.recent(limit=most, routes=routes)), settings)


def _texts(samples: SampleStore, ids: list[str]) -> Iterator[npt.NDArray[np.int32]]:
    for first in range(0, len(ids), SOME):
        for request in samples.read(ids[first : first + SOME]):
            yield request.tokens
