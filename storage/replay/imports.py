"""Taking in what `osd replay export` wrote, here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.errors import BadExport, CannotDecrypt
from storage.files.cipher import Cipher
from storage.records import RequestSamples
from storage.replay import segments
from storage.replay.samples import SampleStore


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import found and kept."""

    requests: int
    positions: int
    known: int
    """Requests that were kept already, were forgotten, or whose tenant does not let them be kept."""


def import_file(samples: SampleStore, path: Path) -> Imported:
    """Keep every request of an exported file under its own id, route and tenant; what is kept already stays as it is.

    The file is read to its end before the first request is kept. Raises BadExport for a file that is missing, damaged,
    not an export, or of a newer format; StoreError.
    """
    cipher = samples.place.cipher
    for _ in read_export(path, cipher):
        pass
    requests = positions = known = 0
    for batch in read_export(path, cipher):
        before = set(samples.kept([each.request_id for each in batch]))
        samples.add(batch)
        fresh = samples.kept([each.request_id for each in batch]) - before
        requests, known = requests + len(fresh), known + len(batch) - len(fresh)
        positions += sum(len(each) for each in batch if each.request_id in fresh)
    return Imported(requests, positions, known)


def read_export(path: Path, cipher: Cipher | None = None) -> Iterator[list[RequestSamples]]:
    """The requests of an exported file, some at a time. Raises BadExport, CannotDecrypt."""
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
