"""Clusters of unlabelled traffic."""

from __future__ import annotations

import gzip
import json
import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from router.clusters import LEAST, find_clusters

KINDS = {name: range(begin, begin + 40) for name, begin in (("sql", 0), ("code", 30), ("chat", 80), ("law", 200))}
"""Ranges of tokens, of which the first two overlap."""


def documents(count: int, seed: int = 0) -> tuple[list[list[int]], list[str]]:
    chance = random.Random(seed)
    names = [chance.choice(list(KINDS)) for _ in range(count)]
    common = range(300, 310)
    return [[*chance.choices(KINDS[n], k=30), *chance.choices(common, k=10)] for n in names], names


def test_kinds_are_found_and_as_many_as_there_are() -> None:
    found, names = documents(200)
    clusters = find_clusters(found)
    assert len(clusters) == len(KINDS)
    assert adjusted_rand_score(names, clusters.labels) > 0.95
    assert clusters.separation > 0


def test_the_words_of_a_cluster_are_its_own() -> None:
    found, names = documents(200)
    clusters = find_clusters(found)
    for label in range(len(clusters)):
        name = names[clusters.members(label)[0]]
        assert clusters.typical[label]
        assert sum(token in KINDS[name] for token in clusters.typical[label]) >= len(clusters.typical[label]) - 1


def test_the_largest_comes_first_and_the_same_seed_gives_the_same() -> None:
    found, _ = documents(150, seed=3)
    first, again = find_clusters(found, seed=1), find_clusters(found, seed=1)
    sizes = np.bincount(first.labels)
    assert (np.diff(sizes) <= 0).all()
    assert (first.labels == again.labels).all()


@pytest.mark.parametrize("count", [0, 1, 2 * LEAST - 1])
def test_too_little_traffic_is_one_cluster(count: int) -> None:
    clusters = find_clusters(documents(count)[0])
    assert len(clusters) == 1
    assert clusters.members(0) == list(range(count))


SHARED = Path(__file__).resolve().parents[2].parent / "shared"


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the open prompts beside the repository")
def test_the_four_domains_of_the_data_are_found() -> None:
    """Adjusted Rand index at least 0.8 on prompts alone; answers, which discovery sees too, make it easier."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SHARED / "models" / "reference" / "target")
    documents, names = [], []
    for name in ("wikisql", "gsm8k", "mbxp", "oasst_fi"):
        with gzip.open(SHARED / "data" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            documents += [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in islice(lines, 120)]
        names += [name] * 120
    assert adjusted_rand_score(names, find_clusters(documents).labels) >= 0.8
