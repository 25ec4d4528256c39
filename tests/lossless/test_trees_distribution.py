"""Sampled output follows the target's distribution with trees too.

As tests/lossless/test_distribution.py: every two-token text of a target with nine tokens against 1,500 engine samples,
a chi-square test at level 1e-4. With the five cases below a false alarm has odds of at most 1 in 2,000 for fresh seeds;
the seeds are fixed. A rule that takes certain tokens for drawn ones is caught.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from osd.draft_tree import Tree
from osd.drafters.tree import TreeDrafter
from osd.engine.engine import Engine
from osd.models.attention_metadata import tables
from osd.models.pair import Pair
from osd.sequence import SequenceState
from storage.records import Request
from storage.sampling import Sampling
from tests.lossless.test_distribution import LEVEL, PROMPT, SAMPLES, exact, p_value
from tests.support.lossless import require_lossless
from tests.support.models import prompts, random_pair
from tests.support.proposers import BranchingDrafter, Guessing
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return random_pair("llama", noise=0.35, vocabulary=9)


class Fixed(Guessing):
    """The same tree for every row: likely and unlikely tokens, two deep."""

    def _tree(self, row: SequenceState, most: int) -> SimpleNamespace:
        chance = random.Random(len(row.output))
        first, second = chance.sample(range(9), 3), chance.sample(range(9), 2)
        return SimpleNamespace(tokens=[*first, *second * 3], parents=[-1, -1, -1, 0, 0, 1, 1, 2, 2])


def engine_of(pair: Pair, kind: type[TreeDrafter], gamma: int, batch: int, proposer: type[Guessing] = Fixed) -> Engine:
    settings = settings_of(serve__max_batch=batch, serve__max_length=64, gamma__rule="fixed", gamma__initial=gamma)
    engine = require_lossless(Engine(pair, settings))
    engine.drafting = kind(engine.pool, proposer(9, {}), 10, engine.target)
    return engine


def sample(engine: Engine, sampling: Sampling) -> Counter[tuple[int, ...]]:
    plain = Request(PROMPT, max_new_tokens=3, ignore_eos=True)
    asked = (replace(plain, id=str(seed), sampling=replace(sampling, seed=seed)) for seed in range(SAMPLES))
    return Counter(c.tokens[:2] for c in engine.run(asked))


CASES = [
    (TreeDrafter, Sampling(1.0), 2, 64),
    (TreeDrafter, Sampling(0.7, top_k=6, top_p=0.9), 2, 8),
    (BranchingDrafter, Sampling(1.0), 2, 64),
    (BranchingDrafter, Sampling(0.7, top_p=0.8), 1, 64),
    (BranchingDrafter, Sampling(1.0, top_k=4), 2, 5),
]


@pytest.mark.parametrize(("kind", "sampling", "gamma", "batch"), CASES)
def test_two_tokens_follow_the_target(
    pair: Pair, kind: type[TreeDrafter], sampling: Sampling, gamma: int, batch: int
) -> None:
    assert p_value(sample(engine_of(pair, kind, gamma, batch), sampling), exact(pair, sampling)) > LEVEL


def test_a_rule_that_takes_certain_tokens_for_drawn_ones_would_be_seen(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first certain token of every node is kept with chance min(1, p / q): too often."""
    monkeypatch.setattr("osd.verification.verify_trees.tables", take_for_drawn)
    seen = sample(engine_of(pair, BranchingDrafter, 2, 64), Sampling(1.0))
    assert p_value(seen, exact(pair, Sampling(1.0))) < LEVEL


def take_for_drawn(trees: Sequence[Tree], width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    parents, turns = tables(trees, width, device)
    return parents, torch.where((turns < 0) & (parents == 0) & (torch.arange(width) == 2), 0, -1)


@pytest.mark.parametrize("kind", [TreeDrafter, BranchingDrafter])
def test_a_seed_repeats_a_text_whoever_shares_the_batch(pair: Pair, kind: type[TreeDrafter]) -> None:
    """What is proposed hangs on the row's own text here. Alone a row may take the way of chains, beside trees not."""
    request = Request(prompts(1, seed=8)[0][:5], max_new_tokens=20, sampling=Sampling(temperature=1.0, seed=7))
    request = replace(request, prompt_tokens=tuple(token % 9 for token in request.prompt_tokens))
    others = [Request((2, 3, i), max_new_tokens=25, sampling=Sampling(0.8, seed=i)) for i in range(5)]

    def text(asked: list[Request]) -> tuple[int, ...]:
        engine = engine_of(pair, kind, 3, 3, Guessing)
        return {c.request.id: c.tokens for c in engine.run(asked)}[request.id]

    assert text([request]) == text([*others, request]) == text([request, *others])
