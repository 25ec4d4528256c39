"""Training of a language model from texts whose language is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.language import FEATURES, LanguageModel
from router.language_tags import primary
from router.language_text import readable

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
