"""Language detection: a multinomial naive Bayes model over n-grams of characters, and words.

With C_fc occurrences of n-gram f in the texts of language c, T_c of all, V distinct ones and Lidstone's α,

    ln P(c | text) = λ ln P(c) + n^(−½) Σ_f [ ln(1 + C_fc / α) + ln(α / (T_c + α V)) ] + const.

The first term of the sum is 0 where f was never seen in c, so the model is as sparse as its counts; the second is one
number a language. n-grams that no language has are left out. A sum over n of them is divided by √n because they
overlap: they are not n independent witnesses, and the prior would count for nothing beside them.

In the model's file counts are stored as logarithms in a byte, within 2 % of each.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router.base import LabelGuess
from router.features import Buckets, Features
from router.language_text import readable
from router.linear import insist, read_arrays

FEATURES = Features(chars=(1, 2, 3, 4), words=True, digits=False, bits=20, limit=320)
ALPHA = 0.02
PRIOR = 0.5
"""λ: half the weight of the training texts' shares, as they are not the traffic's."""
KNOWN = 0.6
"""Share of a text's letters that must be known; below it, its script was never learned."""
CROWD = 8
"""Languages that share an n-gram, above which it is faster to sum a row of all languages."""


class LanguageModel:
    """A language model. Immutable and thread-safe. Counts are stored sparsely, an n-gram's languages side by side."""

    def __init__(
        self,
        labels: tuple[str, ...],
        ids: Buckets,
        ends: NDArray[np.int64],
        languages: NDArray[np.int64],
        counts: NDArray[np.float64],
        shares: NDArray[np.float64],
        sharpness: float = 1.0,
    ) -> None:
        """Index a model's counts.

        ``ids`` (n,) are buckets; ``ends`` (n,) where each bucket's entries end in ``languages`` and ``counts``, which
        give its count in each language. ``shares`` are P(c). ``sharpness`` is the fitted scale of confidence.
        """
        self.labels, self.ids, self.ends, self.languages, self.counts = labels, ids, ends, languages, counts
        self.shares, self.sharpness = shares, sharpness
        self._slots = np.zeros(1 << FEATURES.bits, np.int32)  # 0: never seen
        self._slots[ids] = np.arange(1, ids.size + 1)
        self._weights = np.log1p(counts / ALPHA)
        self._lengths = np.diff(ends, prepend=0)
        self._starts = ends - self._lengths
        self._crowded, self._table = self._crowd()
        totals = np.bincount(languages, counts, len(labels))
        self._base = np.log(ALPHA / (totals + ALPHA * ids.size))
        self._prior = PRIOR * np.log(shares)

    def predict(self, text: str) -> LabelGuess:
        """Detect the text's language, as :func:`router.language_text.primary` spells it.

        None for a text without words, and where too few of its letters are known. A language that is hard to tell
        has a label and a low confidence.
        """
        hashes = FEATURES.hashes(readable(text))
        buckets = FEATURES.into_buckets(hashes)
        rows = self._known(buckets)
        if not rows.size:
            return LabelGuess(None, 0.0, 1.0)
        known = float(np.count_nonzero(self._slots[buckets[: hashes[0].size]])) / hashes[0].size
        scores = self._scores(rows)
        sure = _certainty(scores * self.sharpness)
        if known < KNOWN:
            return LabelGuess(None, sure * known, 1 - known)
        return LabelGuess(self.labels[int(scores.argmax())], sure, 1 - known)

    def scores(self, buckets: Buckets) -> NDArray[np.float64]:
        """Return the scores that confidence is computed from, shape (languages,); zeros where no n-gram is known."""
        rows = self._known(buckets)
        return self._scores(rows) if rows.size else np.zeros(len(self.labels))

    def _known(self, buckets: Buckets) -> NDArray[np.int32]:
        """Return the rows of the n-grams that occur in some language."""
        rows = self._slots[buckets]
        return rows[rows > 0] - 1

    def _scores(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the module's formula for the n n-grams of these rows, shape (languages,)."""
        crowded = self._crowded[rows]
        found = self._table[crowded[crowded >= 0]].sum(0) + self._sum(rows[crowded < 0])
        scores: NDArray[np.float64] = (found + rows.size * self._base) / np.sqrt(rows.size) + self._prior
        return scores

    def _sum(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the sum of these rows of weights, entry by entry, shape (languages,)."""
        lengths = self._lengths[rows]
        before = np.cumsum(lengths) - lengths
        places = np.repeat(self._starts[rows] - before, lengths) + np.arange(lengths.sum())
        return np.bincount(self.languages[places], self._weights[places], len(self.labels)).astype(np.float64)

    def _crowd(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return a dense table of the rows shared by many languages: (rows,) the index into it, or −1, and the
        table."""
        many = np.flatnonzero(self._lengths > CROWD)
        places, table = np.full(self.ids.size, -1, np.int32), np.zeros((many.size, len(self.labels)), np.float32)
        places[many] = np.arange(many.size)
        entries = np.repeat(places, self._lengths)
        table[entries[entries >= 0], self.languages[entries >= 0]] = self._weights[entries >= 0]
        return places, table


def _certainty(scores: NDArray[np.float64]) -> float:
    """Return the softmax probability of the best score."""
    return float(1 / np.exp(scores - scores.max()).sum())


KIND = "osd-languages-1"
WHAT = "a language model"
STEPS = 25
"""Levels of a count as it grows by a factor of e: 255 levels reach to 27,000."""
SHIPPED = Path(__file__).parent / "data" / "languages.npz"
PARTS = ("gaps", "lengths", "languages", "levels")


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
