"""How far a draft was from the target: a batch in one go beside one position after another."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from storage.records import RequestSamples, TokenKind
from storage.replay.sample_index import divergences
from tests.storage.make import samples


def plain(one: RequestSamples) -> float | None:
    """1 minus the mean chance of acceptance of what was drafted and judged."""
    distances = []
    for i, kind in enumerate(one.kinds.tolist()):
        if kind != TokenKind.UNDRAFTED:
            chance = float("nan") if one.acceptance is None else float(one.acceptance[i])
            distances.append(float(kind == TokenKind.REJECTED) if np.isnan(chance) else 1 - chance)
    return sum(distances) / len(distances) if distances else None


def test_a_batch_is_one_request_after_another() -> None:
    chance = random.Random(5)
    batch = []
    for number in range(60):
        one = samples(number)
        kinds = np.array(chance.choices([0, 1, 2], k=len(one)), np.uint8)
        known = np.array([chance.choice([np.nan, chance.random()]) for _ in kinds], np.float16)
        batch.append(replace(one, kinds=kinds, acceptance=chance.choice([None, known])))
    expected = [plain(one) for one in batch]
    assert None in expected and len({round(each, 3) for each in expected if each is not None}) > 10
    assert divergences(batch) == [None if each is None else pytest.approx(each) for each in expected]
