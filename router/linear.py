"""Small linear models: one-versus-rest scores with weights stored by feature, and the files of such models.

A text touches only its own features' rows of weights (one weight a class). A row is created when its feature is first
learned; unknown features score nothing. A file is an .npz of plain arrays with a JSON header. Nothing in one is ever
unpickled.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.errors import ModelFileDamaged
from storage.files.files import write_whole

Vector = NDArray[np.float32]
Rows = NDArray[np.int64]

CONSTANT = 0.3
"""Value of the bias feature of every x. At 1, a new class would soon claim texts that share nothing with it."""


class Linear:
    """Scores s = Wᵀx + b of classes, for sparse x over ``features`` features."""

    def __init__(self, features: int, labels: Sequence[str] = ()) -> None:
        self.labels = list(labels)
        self.slots = np.zeros(features, np.int32)
        """(features,) row of each feature; row 0 is zero and stands for unknown features."""
        self.weights = np.zeros((1, len(self.labels)), np.float32)
        """(rows, classes) weights, perhaps with more rows than are in use."""
        self.bias = np.zeros(len(self.labels), np.float32)
        self.rows = 1

    def scores(self, features: Rows, values: Vector) -> Vector:
        """Return the score of each class, shape (classes,); a feature given twice counts twice."""
        found: Vector = np.einsum("f,fc->c", values, self.weights[self.slots[features]]) + self.bias
        return found  # not BLAS, whose threads cost more than they save and disturb decoding

    def learn(self, features: Rows, values: Vector, truth: str | None, most: float = 1.0) -> None:
        """Take one step of passive-aggressive learning (PA-I; Crammer et al. 2006, section 3), for each class by
        itself.

        With y = +1 for the true class and −1 for the others: w += min(most, max(0, 1 − y s) / ‖x‖²) y x, b likewise.
        ``truth`` None means none of the classes.
        """
        sides = np.full(len(self.labels), -1, np.float32)
        if truth is not None:
            sides[self.labels.index(truth)] = 1
        ids, values = _merged(features, values)
        rows = self._rows_of(ids)
        missing = 1 - sides * (values @ self.weights[rows] + self.bias)
        step = sides * np.clip(missing / (values @ values + CONSTANT**2), 0, most)
        self.weights[rows] += np.outer(values, step)
        self.bias += CONSTANT * step

    def add(self, label: str) -> None:
        """Add a class. Where others were learned before, it scores −1, as none of their texts was its own."""
        self.labels.append(label)
        self.weights = np.pad(self.weights, ((0, 0), (0, 1)))
        self.bias = np.append(self.bias, np.float32(0 if self.rows == 1 else -1))

    def replace(self, labels: Sequence[str], ids: Rows, weights: Vector, bias: Vector) -> None:
        """Replace all classes: (n,) features that have weights, and their (n, classes) weights."""
        self.labels, self.bias, self.rows = list(labels), bias.astype(np.float32), ids.size + 1
        self.weights = np.concatenate((np.zeros((1, len(labels)), np.float32), weights.astype(np.float32)))
        self.slots[:] = 0
        self.slots[ids] = np.arange(1, self.rows)

    def learned(self) -> tuple[Rows, Vector]:
        """Return the features that have weights, in order, shape (n,), and their weights, shape (n, classes)."""
        ids = np.flatnonzero(self.slots)
        return ids, self.weights[self.slots[ids]]

    def _rows_of(self, ids: Rows) -> Rows:
        """Return the rows of distinct features, creating missing ones."""
        fresh = ids[self.slots[ids] == 0]
        self._room(fresh.size)
        self.slots[fresh] = np.arange(self.rows, self.rows + fresh.size)
        self.rows += fresh.size
        return self.slots[ids].astype(np.int64)

    def _room(self, more: int) -> None:
        """Double the table until it has room for ``more`` rows."""
        size = len(self.weights)
        while self.rows + more > size:
            size = 2 * size + 256
        if size > len(self.weights):
            self.weights = np.pad(self.weights, ((0, size - len(self.weights)), (0, 0)))


def _merged(features: Rows, values: Vector) -> tuple[Rows, Vector]:
    """Return each feature once, with the sum of its values."""
    ids, places = np.unique(features, return_inverse=True)
    return ids, np.bincount(places, values, ids.size).astype(np.float32)


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
