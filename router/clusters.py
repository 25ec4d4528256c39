"""Kinds of traffic that nobody named: clusters of token sequences.

TF-IDF over tokens, brought to a few dozen dimensions and unit length (latent semantic analysis), then k-means, for each
k that is possible. The silhouette says how well a k sets the clusters apart; among those that are nearly as good as the
best the smallest is taken, since a route wants traffic to learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LEAST = 16
"""Documents a cluster has at least; with fewer than twice as many there is nothing to set apart."""
DIMENSIONS = 64
NEARLY = 0.95
"""Share of the best silhouette that is good enough."""
WORDS = 32

Documents = Sequence[Sequence[int]]
Vectors = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """Which document belongs where."""

    labels: npt.NDArray[np.int64]
    """(n,) from 0, the largest cluster first."""
    separation: float
    """The mean silhouette, in [−1, 1]; 0 where there is one cluster only."""
    typical: tuple[tuple[int, ...], ...]
    """Of each cluster the tokens that set it apart most, at most WORDS."""

    def __len__(self) -> int:
        return len(self.typical)

    def members(self, label: int) -> list[int]:
        """The documents of a cluster."""
        return np.flatnonzero(self.labels == label).tolist()


def find_clusters(documents: Documents, most: int = 12, seed: int = 0) -> Clusters:
    """Clusters of documents, each a sequence of token ids, at most ``most``. The same seed gives the same."""
    if len(documents) < 2 * LEAST:
        return Clusters(np.zeros(len(documents), np.int64), 0.0, ((),))
    weights, tokens = _tfidf(documents)
    vectors = _reduced(weights, seed)
    possible = range(2, min(most, len(documents) // LEAST) + 1)
    tried = [_labelled(vectors, k, seed) for k in possible]
    best = max(separation for _, separation in tried)
    labels, separation = next(one for one in tried if one[1] >= NEARLY * best or one[1] == best)
    labels = _by_size(labels)
    return Clusters(labels, separation, _typical(weights, tokens, labels))


def vectors_of(documents: Documents, seed: int = 0) -> Vectors:
    """(n, d) one vector of unit length a document, near where the same tokens stand in both. At least two documents."""
    return _reduced(_tfidf(documents)[0], seed)


def _tfidf(documents: Documents) -> tuple[Any, npt.NDArray[np.int64]]:
    """A sparse (n, v) matrix with rows of unit length, and the token of each column."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # a second to load

    vectorizer = TfidfVectorizer(analyzer=_as_they_are, sublinear_tf=True, min_df=2)
    weights = vectorizer.fit_transform(documents)
    return weights, np.asarray(vectorizer.get_feature_names_out(), dtype=np.int64)


def _as_they_are(document: Sequence[int]) -> Sequence[int]:
    return document


def _reduced(weights: Any, seed: int) -> Vectors:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.preprocessing import normalize

    dimensions = min(DIMENSIONS, *(side - 1 for side in weights.shape))
    reduced: Vectors = normalize(TruncatedSVD(dimensions, random_state=seed).fit_transform(weights))
    return reduced


def _labelled(vectors: Vectors, k: int, seed: int) -> tuple[npt.NDArray[np.int64], float]:
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    labels = KMeans(k, n_init=4, random_state=seed).fit_predict(vectors)
    found = len(np.unique(labels))
    separation = float(silhouette_score(vectors, labels)) if 1 < found < len(vectors) else -1.0
    return labels.astype(np.int64), separation


def _by_size(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    found, counts = np.unique(labels, return_counts=True)
    place = {label: i for i, label in enumerate(found[np.argsort(-counts, kind="stable")])}
    return np.array([place[label] for label in labels], dtype=np.int64)


def _typical(weights: Any, tokens: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    """Tokens whose mean weight within the cluster lies most above that of all."""
    overall = np.asarray(weights.mean(axis=0)).ravel()
    found = []
    for label in range(int(labels.max()) + 1):
        above = np.asarray(weights[labels == label].mean(axis=0)).ravel() - overall
        found.append(tuple(int(tokens[i]) for i in np.argsort(-above)[:WORDS] if above[i] > 0))
    return tuple(found)
