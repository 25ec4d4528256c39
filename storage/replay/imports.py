"""Import of files that `osd replay export` wrote, here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.errors import BadExport, CannotDecrypt
from storage.files.cipher import Cipher
from storage.records import RequestSamples
from storage.replay import segments
from storage.replay.samples import SampleStore


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The counts of an import."""

    requests: int
    positions: int
    known: int
    """Requests not stored: known already, forgotten, or of a tenant that does not allow it."""


def import_file(samples: SampleStore, path: Path) -> ImportResult:
    """Store every request of an exported file under its own id, route and tenant; known ones stay as they are.

    The file is read to its end before the first request is stored. Raises BadExport for a file that is missing,
    damaged, not an export, or of a newer format; StoreError.
    """
    cipher = samples.place.cipher
    for _ in read_export(path, cipher):
        pass
    return keep_counted(samples, read_export(path, cipher))


def keep_counted(samples: SampleStore, batches: Iterable[list[RequestSamples]]) -> ImportResult:
    """Store batches and count what was not there before."""
    requests = positions = known = 0
    for batch in batches:
        before = set(samples.kept([each.request_id for each in batch]))
        samples.add(batch)
        fresh = samples.kept([each.request_id for each in batch]) - before
        requests, known = requests + len(fresh), known + len(batch) - len(fresh)
        positions += sum(len(each) for each in batch if each.request_id in fresh)
    return ImportResult(requests, positions, known)


def read_export(path: Path, cipher: Cipher | None = None) -> Iterator[list[RequestSamples]]:
    """Yield the requests of an exported file in batches. Raises BadExport, CannotDecrypt."""
    try:
        for batch in segments.decode_groups(path, cipher):
            for each in batch:
                segments.require_shapes(each)
            if batch:
                yield batch
    except CannotDecrypt:
        raise
    except FileNotFoundError:
        raise BadExport(path=path, reason="There is no such file.") from None
    except segments.NewerFormat as error:
        raise BadExport(path=path, reason=f"{error} Update osd, or export it anew with the older one.") from None
    except Exception as error:  # Arrow raises OSError, ValueError and classes of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadExport(path=path, reason=f"It is no whole file of `osd replay export` ({reason}).") from error
