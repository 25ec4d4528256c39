"""Clustering of token sequences, to find kinds of traffic that have no route.

TF-IDF over tokens, reduced to a few dozen dimensions and unit length (latent semantic analysis), then k-means for each
possible k. The silhouette measures how well a k separates the clusters; among those nearly as good as the
best the smallest is taken, since a route needs traffic to learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LEAST = 16
"""Minimum number of documents in a cluster; with fewer than twice as many there is nothing to separate."""
DIMENSIONS = 64
NEARLY = 0.95
"""Share of the best silhouette that is good enough."""
WORDS = 32

Documents = Sequence[Sequence[int]]
Vectors = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """A clustering of documents."""

    labels: npt.NDArray[np.int64]
    """(n,) cluster of each document, from 0, the largest cluster first."""
    separation: float
    """The mean silhouette, in [−1, 1]; 0 where there is only one cluster."""
    typical: tuple[tuple[int, ...], ...]
    """The most distinctive tokens of each cluster, at most WORDS."""

    def __len__(self) -> int:
        return len(self.typical)

    def members(self, label: int) -> list[int]:
        """Return the indexes of a cluster's documents."""
        return np.flatnonzero(self.labels == label).tolist()


def find_clusters(documents: Documents, most: int = 12, seed: int = 0) -> Clusters:
    """Cluster documents (sequences of token ids) into at most ``most`` clusters, deterministically by ``seed``."""
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
    """Return one unit vector a document, shape (n, d); near where documents share tokens. Needs at least two
    documents."""
    return _reduced(_tfidf(documents)[0], seed)


def _tfidf(documents: Documents) -> tuple[Any, npt.NDArray[np.int64]]:
    """Return a sparse (n, v) TF-IDF matrix with rows of unit length, and the token of each column."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second to import

    vectorizer = TfidfVectorizer(analyzer=list, sublinear_tf=True, min_df=2)
    weights = vectorizer.fit_transform(documents)
    return weights, np.asarray(vectorizer.get_feature_names_out(), dtype=np.int64)


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
    """Return each cluster's tokens whose mean weight lies most above that of all documents."""
    overall = np.asarray(weights.mean(axis=0)).ravel()
    found = []
    for label in range(int(labels.max()) + 1):
        above = np.asarray(weights[labels == label].mean(axis=0)).ravel() - overall
        found.append(tuple(int(tokens[i]) for i in np.argsort(-above)[:WORDS] if above[i] > 0))
    return tuple(found)
