"""Encoder-decoder pairs say what ``generate`` says: in ragged batches, across swaps in mid-text, and in distribution.

The level of the two cases in distribution is 1e-4 each, as in tests/lossless/test_distribution.py: fresh seeds raise a
false alarm with odds of at most 2 in 10,000.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from osd.engine.engine import Engine
from osd.models.pair import Pair
from osd.verification.warping import Warp
from storage.records import Request
from storage.sampling import Sampling
from tests.lossless.test_distribution import LEVEL, PROMPT, p_value, sample
from tests.lossless.test_lossless import serve
from tests.support.encoder_decoders import KINDS, encoder_decoder_pair, generated
from tests.support.models import model_of, noisy, prompts
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")

HOW = Sampling(0.8)
RULE: Mapping[str, Any] = {"gamma__rule": "fixed", "gamma__initial": 4, "serve__max_length": 96}


def engine_of(pair: Pair, batch: int = 3, **values: Any) -> Engine:
    return Engine(pair, settings_of(serve__max_batch=batch, **{**RULE, **values}))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_of_generate_in_ragged_batches(kind: str) -> None:
    pair = encoder_decoder_pair(kind)
    asked = [Request(p, max_new_tokens=6 + 3 * i) for i, p in enumerate(prompts(7, seed=3))]
    expected = [generated(pair.target.module, r.prompt_tokens, r.max_new_tokens) for r in asked]
    assert len({tuple(text) for text in expected}) == 7, "what the encoder reads matters"
    assert serve(engine_of(pair), asked) == expected
    small = engine_of(pair, 7, serve__prefill_tokens=64, serve__cache_mb=1)
    assert serve(small, asked) == expected, "prompts longer than a step's tokens, in a cache that grows"
    assert serve(engine_of(pair, drafters__kind="blended"), asked) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_swaps_in_mid_text_change_nothing(kind: str) -> None:
    pair = encoder_decoder_pair(kind)
    others = [model_of(noisy(pair.target.module, noise, seed=9)) for noise in (3.0, 0.01, 0.5)]
    asked = [Request(p, max_new_tokens=40) for p in prompts(5, seed=6)]
    engine, turn = engine_of(pair), itertools.count(1)
    for request in asked:
        engine.submit(request)
    done: dict[str, list[int]] = {}
    while engine.busy:
        done |= {p.request_id: list(p.completion.tokens) for p in engine.step() if p.completion}
        if (steps := next(turn)) % 3 == 0:
            other = others[steps // 3 % len(others)]
            engine.pool.decoder.forward = other.build(other.module)
    assert steps > 9
    assert [done[r.id] for r in asked] == [generated(pair.target.module, r.prompt_tokens, 40) for r in asked]


def test_rows_leave_while_others_are_read_and_decode() -> None:
    """A request that is cancelled in mid-text, and one before its prompt was read, leave rows that others move to."""
    pair = encoder_decoder_pair("t5")
    asked = [Request(p, max_new_tokens=12 + i) for i, p in enumerate(prompts(8, seed=8))]
    engine, done = engine_of(pair, 4), dict[str, list[int]]()
    for request in asked[:5]:
        engine.submit(request)
    for turn in itertools.count():
        done |= {p.request_id: list(p.completion.tokens) for p in engine.step() if p.completion}
        if turn < 3:
            engine.submit(asked[5 + turn])
            assert engine.cancel(asked[turn].id)
        if turn > 3 and not engine.busy:
            break
    assert [done[r.id] for r in asked[3:]] == [
        generated(pair.target.module, r.prompt_tokens, r.max_new_tokens) for r in asked[3:]
    ]


@pytest.mark.parametrize("kind", ["t5", pytest.param("bart", marks=pytest.mark.long)])
def test_two_tokens_follow_the_target(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And they do not follow the draft: so the test can tell them apart."""
    monkeypatch.setattr("tests.lossless.test_distribution.SAMPLES", 600)
    pair = encoder_decoder_pair(kind, noise=0.5, vocabulary=9)
    seen, expected = sample(pair, HOW, 2, 64), exact(pair, HOW)
    assert sum(expected.values()) == pytest.approx(1.0)
    assert len([p for p in expected.values() if p > 0.005]) >= 12
    assert p_value(seen, expected) > LEVEL
    assert p_value(seen, exact(Pair(pair.draft, pair.draft, None, frozenset()), HOW)) < LEVEL


@torch.inference_mode()
def exact(pair: Pair, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The target's probability of each text of two tokens."""
    warp = Warp.of([sampling], 9, torch.device("cpu"))
    assert warp is not None

    def after(*output: int) -> torch.Tensor:
        read, decoded = torch.tensor([PROMPT]), torch.tensor([[*pair.target.start, *output]])
        logits = pair.target.module(input_ids=read, decoder_input_ids=decoded, use_cache=False).logits[:, -1:]
        return warp(logits)[0, 0].double()

    first = after()
    return {(a, b): float(first[a] * second[b]) for a in range(9) for second in [after(a)] for b in range(9)}
