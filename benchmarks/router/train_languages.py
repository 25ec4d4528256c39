"""Trains the language model that ships with osd, and writes its file: :mod:`router.language` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router.language import FEATURES, KIND, STEPS, LanguageModel
from router.language_text import primary, readable
from router.linear import write_arrays

TWICE = 2
"""Minimum occurrences of an n-gram."""
HELD_OUT = 10
"""One text in this many is held out of a first model, to calibrate confidence."""
FEW = 100
"""Minimum held-out texts; below it confidence is not calibrated."""
SHARPNESS = np.geomspace(0.05, 20, 60)


def train_languages(texts: Sequence[str], languages: Sequence[str]) -> LanguageModel:
    """Train a model on these texts; languages in any spelling of ISO 639. Deterministic.

    Raises ValueError when the two differ in length, or when no n-gram occurs twice.
    """
    if len(texts) != len(languages):
        raise ValueError(f"{len(texts)} texts and {len(languages)} languages")
    names = [primary(language) for language in languages]
    labels = tuple(sorted(set(names)))
    places = np.searchsorted(labels, names)
    found = [FEATURES.buckets(readable(text)) for text in texts]
    kept = np.random.default_rng(0).permutation(len(texts)) % HELD_OUT == 0
    sharpness = 1.0
    if kept.sum() >= FEW:
        first = _count(labels, [found[i] for i in np.flatnonzero(~kept)], places[~kept])
        sharpness = _sharpness(first, [found[i] for i in np.flatnonzero(kept)], places[kept])
    return _count(labels, found, places, sharpness)


def _count(
    labels: tuple[str, ...], found: list[NDArray[np.int64]], places: NDArray[np.int64], sharpness: float = 1.0
) -> LanguageModel:
    """Count n-grams by language, leaving out those that occur once."""
    ids = np.concatenate(found)
    owners = np.repeat(places, [each.size for each in found])
    often = np.bincount(ids, minlength=1 << FEATURES.bits) >= TWICE
    ids, owners = ids[often[ids]], owners[often[ids]]
    if not ids.size:
        raise ValueError("too few texts: no part of a word stands there twice")
    pairs, counts = np.unique(ids * len(labels) + owners, return_counts=True)
    rows, ends = np.unique(pairs // len(labels), return_counts=True)
    shares = (np.bincount(places, minlength=len(labels)) + 1) / (len(places) + len(labels))
    return LanguageModel(
        labels, rows, np.cumsum(ends), pairs % len(labels), counts.astype(np.float64), shares, sharpness
    )


def _sharpness(model: LanguageModel, found: list[NDArray[np.int64]], places: NDArray[np.int64]) -> float:
    """Return the sharpness that maximises the likelihood of held-out texts."""
    scores = np.array([model.scores(buckets) for buckets in found])
    truth = np.arange(len(places)), places

    def likelihood(sharpness: float) -> float:
        sharp = scores * sharpness
        return float((sharp[truth] - np.logaddexp.reduce(sharp, axis=1)).mean())

    return float(max(SHARPNESS, key=likelihood))


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
