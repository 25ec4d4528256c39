"""What the tests hand over."""

from __future__ import annotations

from osd.recording.writer import StoreWriter
from tests.storage.make import outcome, samples

ALL = range(12)


def keep(writer: StoreWriter, *numbers: int) -> None:
    """Requests with these numbers, and their totals."""
    totals = [outcome(request_id=f"r{n}", positions=((10, 8, 2), (8, 7, 1))) for n in numbers]
    writer.keep([samples(n, created_at=1e9 + n) for n in numbers], totals)
