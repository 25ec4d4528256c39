"""Files of small linear models: an .npz of plain arrays with a JSON header. Nothing in one is ever unpickled."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import ModelFileDamaged
from storage.files.files import write_whole

HEADER = "header"


def write_arrays(path: Path, kind: str, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a file whole or not at all; a reader sees the old one or the new one.

    ``kind`` is the format's name and version, such as ``osd-topics-1``. Raises StoreWriteFailed.
    """
    header = np.frombuffer(json.dumps({"kind": kind, **facts}, ensure_ascii=False).encode(), np.uint8)
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **{HEADER: header, **arrays})
    write_whole(path, data.getbuffer())


def read_arrays(path: Path, kind: str, what: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the facts and arrays of a file that :func:`write_arrays` wrote.

    ``what`` names the file in the error, as "a topic model". Raises ModelFileDamaged when the file is missing, not
    whole, or of another kind.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            facts = json.loads(file[HEADER].tobytes())
            found = facts.pop("kind")
            if found != kind:
                raise ModelFileDamaged(path=path, what=what, reason=f"its format is {found!r}, not {kind!r}")
            return facts, {name: file[name] for name in file.files if name != HEADER}
    except OSError as error:
        raise ModelFileDamaged(path=path, what=what, reason=error.strerror or error) from None
    except ModelFileDamaged:
        raise
    except Exception as error:  # the readers of zip and of npy headers raise almost anything on arbitrary bytes
        raise ModelFileDamaged(path=path, what=what, reason=f"not written by osd, or damaged: {error}") from None


def insist(path: Path, what: str, holds: Mapping[str, bool]) -> None:
    """Raise ModelFileDamaged that names the first condition that does not hold."""
    for name, true in holds.items():
        if not true:
            raise ModelFileDamaged(path=path, what=what, reason=f"its {name} cannot be right")
