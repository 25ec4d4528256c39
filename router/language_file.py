"""The file format of a language model. Counts are stored as logarithms in a byte, within 2 % of each."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router.language import FEATURES, LanguageModel
from router.linear_file import insist, read_arrays, write_arrays

KIND = "osd-languages-1"
WHAT = "a language model"
STEPS = 25
"""Levels of a count as it grows by a factor of e: 255 levels reach to 27,000."""
SHIPPED = Path(__file__).parent / "data" / "languages.npz"
PARTS = ("gaps", "lengths", "languages", "levels")


def save_languages(model: LanguageModel, path: Path) -> None:
    """Write a model as one file. Raises StoreWriteFailed."""
    levels = np.minimum(np.round(np.log(model.counts) * STEPS), 255)
    arrays: dict[str, NDArray[Any]] = {
        "gaps": np.diff(model.ids, prepend=0).astype(np.uint32),
        "lengths": np.diff(model.ends, prepend=0).astype(np.uint16),
        "languages": model.languages.astype(np.uint8 if len(model.labels) <= 256 else np.uint16),
        "levels": levels.astype(np.uint8),
    }
    facts = {"labels": model.labels, "shares": model.shares.tolist(), "sharpness": model.sharpness}
    write_arrays(path, KIND, facts, arrays)


def load_languages(path: Path) -> LanguageModel:
    """Read a model. Raises ModelFileDamaged for a file that is missing, damaged, or of another kind."""
    facts, arrays = read_arrays(path, KIND, WHAT)
    whole = set(PARTS) <= set(arrays) and {"labels", "shares", "sharpness"} <= set(facts)
    insist(path, WHAT, {"list of parts": whole})
    gaps, lengths, languages, levels = (arrays[part] for part in PARTS)
    shares = np.asarray(facts["shares"], np.float64)
    insist(path, WHAT, _holds(facts, gaps, lengths, languages, levels, shares))
    ids, ends = np.cumsum(gaps, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)
    insist(path, WHAT, {"n-grams": ids[0] >= 0 and ids[-1] < 1 << FEATURES.bits, "counts": ends[-1] == levels.size})
    counts = np.exp(levels / STEPS)
    return LanguageModel(
        tuple(facts["labels"]), ids, ends, languages.astype(np.int64), counts, shares, facts["sharpness"]
    )


def _holds(facts: dict[str, Any], *parts: NDArray[Any]) -> dict[str, bool]:
    """Return the conditions that a file's parts must meet, beyond the format's."""
    gaps, lengths, languages, levels, shares = parts
    labels = facts["labels"]
    return {
        "labels": bool(labels) and all(isinstance(label, str) for label in labels) and len(set(labels)) == len(labels),
        "shares": shares.shape == (len(labels),) and bool((shares > 0).all() and np.isfinite(shares).all()),
        "sharpness": isinstance(facts["sharpness"], float) and 0 < facts["sharpness"] < 1000,
        "n-grams": gaps.ndim == 1 and gaps.size > 0 and bool((gaps[1:] > 0).all()),
        "lengths": lengths.shape == gaps.shape and bool((lengths > 0).all()),
        "languages": languages.shape == levels.shape == (languages.size,)
        and bool((languages < len(labels)).all()),
    }  # fmt: skip


@cache
def shipped() -> LanguageModel:
    """Load the model that comes with osd (router/data/README.md says what it was made of)."""
    return load_languages(SHIPPED)
