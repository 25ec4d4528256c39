"""Recorded chains of drafts that read hidden states, against plain passes and against the engine."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gamma.heads import embeddings, estimated
from benchmarks.gamma.record import RecordPlan, drawn_texts
from benchmarks.gamma.rounds import RecordedText
from osd.bench.harness.watch import Watch
from osd.engine.engine import Engine
from osd.gamma.factory import make_controller
from osd.models.acceptance_head import AcceptanceHead, HeadConfig, HeadPass
from osd.models.features.decoder import feature_target
from osd.models.features.target import read_features
from osd.models.pair import Pair
from storage.errors import BadInput
from tests.benchmarks.gamma.test_record import DEPTH, FLAT, NEW_TOKENS, PROMPTS, decoded, settings
from tests.support.features import feature_pair
from tests.support.plain_features import plain_step
from tests.support.traces import simulate

KINDS = ["eagle", "eagle3"]


@cache
def traces(kind: str, temperature: float = 0.0) -> list[RecordedText]:
    asked = RecordPlan(new_tokens=NEW_TOKENS, depth=DEPTH, batch=2, rows=7)
    return list(drawn_texts(feature_pair(kind), "random", PROMPTS, temperature, asked, Watch()))


def plain(pair: Pair, before: list[int], chain: list[int]) -> list[torch.Tensor]:
    """What the draft says at each step of a chain, everything computed anew for each: (V,)."""
    draft: Any = pair.draft.module
    target = feature_target(pair.target)
    with torch.inference_mode():
        features = read_features(target.module, torch.tensor([before[:-1]]), draft.feature_layers(target.module))[0][0]
        known = [*before[1:], *chain]
        return [draft.whole(plain_step(draft, target, features, known, step)) for step in range(len(chain))]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_chains_are_those_of_plain_steps(kind: str) -> None:
    recorded = traces(kind)[1]
    for position in range(0, recorded.length, 5):
        before, chain = [*PROMPTS[1], *recorded.text[:position].tolist()], recorded.drafted[position].tolist()
        said = plain(feature_pair(kind), before, chain)
        assert [int(each.argmax()) for each in said] == chain
        peaks = [float(each.softmax(-1).max()) for each in said]
        assert recorded.peak[position] == pytest.approx(peaks, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_tokens_have_the_chances_of_plain_steps(kind: str) -> None:
    recorded = traces(kind, 1.0)[0]
    for position in range(0, recorded.length, 5):
        before, chain = [*PROMPTS[0], *recorded.text[:position].tolist()], recorded.drafted[position].tolist()
        q = [each.softmax(-1) for each in plain(feature_pair(kind), before, chain)]
        chances = [float(each[token]) for each, token in zip(q, chain, strict=True)]
        assert recorded.confidence[position] == pytest.approx(chances, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gamma", [2, 6])
def test_a_replay_counts_what_the_engine_counts(kind: str, gamma: int) -> None:
    serve = settings("fixed", 2, gamma)
    replayed = simulate(traces(kind), partial(make_controller, serve.gamma), FLAT, batch=2)
    rounds = [[(r.gamma, r.drafted, r.accepted) for r in some] for some in replayed.by_request]
    assert rounds == decoded(Engine(feature_pair(kind), serve))
    assert len({accepted for some in rounds for *_, accepted in some}) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_specdecpp_over_a_feature_draft_ends_rounds_in_a_replay_where_the_engine_does(kind: str) -> None:
    pair = feature_pair(kind)
    (width,) = {each.shape[-1] for each in embeddings(pair, traces(kind)[:1], Watch())}
    head = AcceptanceHead(HeadConfig(hidden_size=width, depth=1, reject_weight=1.0, draft="", trained_for=""))
    torch.manual_seed(0)
    torch.nn.init.normal_(head.out.weight)
    says = HeadPass(head.requires_grad_(False), torch.device("cpu"))
    told = estimated(pair, traces(kind), says, Watch())
    serve = settings("specdecpp", 3)
    engine = Engine(pair, serve)
    engine.pool.head = says
    replayed = simulate(told, partial(make_controller, serve.gamma), FLAT, batch=3)
    rounds = [[(r.gamma, r.drafted, r.accepted) for r in some] for some in replayed.by_request]
    assert rounds == decoded(engine)
    assert len({drafted for some in rounds for _, drafted, _ in some[:-4]}) > 2, "the head ends rounds at many lengths"
    assert all(np.isfinite(each.head).all() for each in told if each.head is not None)


def test_a_draft_of_one_pass_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="all tokens of a chain at once"):
        list(
            drawn_texts(feature_pair("medusa"), "random", PROMPTS[:1], 0.0, RecordPlan(new_tokens=2, depth=2), Watch())
        )
