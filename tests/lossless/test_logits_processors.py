"""Logits processors keep speculation exact: greedy texts are `generate`'s with the same options, sampled ones have the
processed target's distribution, and neighbours of a row that has processors keep their texts.

Sampled: every two-token text of a target with nine tokens against 1,500 engine samples, a chi-square test at level
1e-4, as tests/lossless/test_distribution.py. With the eight cases below a false alarm has odds of at most 1 in 1,250
for fresh seeds; the seeds are fixed. Processing the target alone leaves the draft's q as it is, which is exact too but
drafts in vain; processing only the draft is caught."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from osd.drafters.tree import TreeDrafter
from osd.engine.engine import Engine
from osd.models.pair import Pair
from osd.verification.penalties import OutputPenalties, RepetitionPenalty
from osd.verification.warping import Warp
from storage.records import Request
from storage.sampling import Sampling
from tests.lossless.test_distribution import LEVEL, PROMPT, SAMPLES, p_value
from tests.lossless.test_lossless import serve
from tests.support.lossless import require_lossless
from tests.support.models import prompts, random_pair
from tests.support.proposers import BranchingDrafter, Guessing
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")

KINDS = ["causal", "blended", "trigram", "lookup", "trees", "branching"]
SHORT = ("causal", "trigram", "branching")
COUNT, EOS = 30, 1
OPTIONS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.7, "sequence_bias": {(t,): 3.0 + t / 9 for t in (5, 60)}},
    {"sequence_bias": {(7,): -4.5, (8,): 4.5}},
    {"min_new_tokens": 12, "sequence_bias": {(EOS,): 9.0}},
]
"""Options of `generate` that requests have by other names."""


def asked_by(options: dict[str, Any], prompt: tuple[int, ...], most: int) -> Request:
    bias = {token: value for (token,), value in options.get("sequence_bias", {}).items()}
    sampling = Sampling(repetition_penalty=options.get("repetition_penalty"), logit_bias=bias)
    return Request(prompt, most, sampling, min_tokens=options.get("min_new_tokens", 0))


def generated(pair: Pair, request: Request, options: dict[str, Any]) -> list[int]:
    tokens = torch.tensor([request.prompt_tokens])
    whole = pair.target.module.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        max_new_tokens=request.max_new_tokens,
        **options,
    )
    found: list[int] = whole[0, tokens.shape[1] :].tolist()
    return found


def engine_of(pair: Pair, kind: str, known: dict[tuple[int, ...], list[int]], **chosen: object) -> Engine:
    drafters = {"trees": TreeDrafter, "branching": BranchingDrafter}
    base = {"serve__max_batch": 3, "serve__max_length": 96, "gamma__rule": "fixed", "gamma__initial": 4}
    settings = settings_of(**{**base, **chosen}, drafters__kind="causal" if kind in drafters else kind)
    engine = require_lossless(Engine(pair, settings))
    if kind in drafters:
        proposer = Guessing(pair.vocab_size, known)
        engine.drafting = drafters[kind](engine.pool, proposer, 12, engine.target)
    return engine


@pytest.fixture(scope="module")
def large() -> Pair:
    return random_pair("llama", noise=0.1, eos=EOS)


@pytest.fixture(scope="module")
def texts(large: Pair) -> tuple[list[Request], list[list[int]]]:
    """Requests with different options, and some with none, and what `generate` makes of each."""
    every: list[dict[str, Any]] = [{}, *OPTIONS, *OPTIONS[:2], {}]
    requests = [
        asked_by(options, p, COUNT - i) for i, (options, p) in enumerate(zip(every, prompts(8, 5), strict=True))
    ]
    expected = [generated(large, r, options) for r, options in zip(requests, every, strict=True)]
    for request, text, options in zip(requests, expected, every, strict=True):
        assert not options or text != generated(large, request, {})  # each option changes the text
    return requests, expected


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.long] * (k not in SHORT)) for k in KINDS])
def test_greedy_texts_are_those_of_generate_in_ragged_batches(
    large: Pair, texts: tuple[list[Request], list[list[int]]], kind: str
) -> None:
    requests, expected = texts
    known = {r.prompt_tokens: text for r, text in zip(requests, expected, strict=True)}
    done = {c.request.id: c for c in engine_of(large, kind, known).run(requests)}
    assert [list(done[r.id].tokens) for r in requests] == expected
    assert sum(r.accepted for c in done.values() for r in c.rounds) > 0


@torch.inference_mode()
def exact(pair: Pair, sampling: Sampling, bias: dict[int, float]) -> dict[tuple[int, ...], float]:
    """The processed target's probability of each text of two tokens."""

    def after(tokens: tuple[int, ...]) -> torch.Tensor:
        logits = pair.target.module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        for token, value in bias.items():
            logits[token] += value
        RepetitionPenalty(sampling.repetition_penalty or 1.0).apply(logits, tokens, [])
        OutputPenalties(3, sampling.frequency_penalty, sampling.presence_penalty).apply(logits, tokens, [])
        warp = Warp.of([sampling], 9, torch.device("cpu"))
        assert warp is not None
        return warp(logits[None, None])[0, 0].double()

    first = after(PROMPT)
    return {
        (a, b): float(first[a] * second[b])
        for a in range(9) if first[a] > 0
        for second in [after((*PROMPT, a))] for b in range(9) if second[b] > 0
    }  # fmt: skip


@pytest.fixture(scope="module")
def small() -> Pair:
    return random_pair("llama", noise=0.35, vocabulary=9)


def sample(engine: Engine, sampling: Sampling) -> Counter[tuple[int, ...]]:
    plain = Request(PROMPT, max_new_tokens=3, ignore_eos=True)
    asked = (replace(plain, id=str(seed), sampling=replace(sampling, seed=seed)) for seed in range(SAMPLES))
    return Counter(c.tokens[:2] for c in engine.run(asked))


BIAS = {2: 1.5, 6: -2.0}
PENALISED = Sampling(1.0, repetition_penalty=1.6, presence_penalty=1.2, frequency_penalty=0.8, logit_bias=BIAS)
CASES = [
    ("causal", replace(PENALISED, top_k=5, min_p=0.1), 5),
    ("branching", replace(PENALISED, top_p=0.9), 64),
    pytest.param("causal", Sampling(1.0, repetition_penalty=1.8), 8, marks=pytest.mark.long),
    pytest.param("causal", Sampling(0.8, presence_penalty=2.0, frequency_penalty=-1.0), 8, marks=pytest.mark.long),
    pytest.param("causal", Sampling(1.0, min_p=0.15), 8, marks=pytest.mark.long),
    pytest.param("lookup", PENALISED, 8, marks=pytest.mark.long),
    pytest.param("trees", PENALISED, 8, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("kind", "sampling", "batch"), CASES)
def test_two_tokens_follow_the_processed_target(small: Pair, kind: str, sampling: Sampling, batch: int) -> None:
    engine = engine_of(small, kind, {}, serve__max_batch=batch, gamma__initial=2)
    expected = exact(small, sampling, dict(sampling.logit_bias))
    assert p_value(sample(engine, sampling), expected) > LEVEL


def test_leaving_the_target_as_it_is_would_be_seen(small: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osd.verification.verify.process_target", lambda scored, rows, draft: scored)
    seen = sample(engine_of(small, "causal", {}, serve__max_batch=64, gamma__initial=2), PENALISED)
    assert p_value(seen, exact(small, PENALISED, BIAS)) < LEVEL


def test_a_draft_that_is_processed_too_is_accepted_more_often(small: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def accepted() -> int:
        engine = engine_of(small, "causal", {}, gamma__initial=2)
        asked = [Request(PROMPT, 20, replace(PENALISED, seed=seed), ignore_eos=True) for seed in range(40)]
        return sum(r.accepted for c in engine.run(asked) for r in c.rounds)

    both = accepted()
    monkeypatch.setattr("osd.drafters.chain.process_draft", lambda rows, going, drafted, logits: logits)
    assert both > 1.1 * accepted()


@pytest.mark.parametrize("kind", ["causal", "branching"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_processors_changes_no_other_row(small: Pair, kind: str, temperature: float) -> None:
    asked = [Request(PROMPT, 20 + i, Sampling(temperature, seed=i), ignore_eos=True) for i in range(4)]
    odd = Request((3, 1), 24, replace(PENALISED, temperature=temperature, seed=9), ignore_eos=True)
    alone = serve(engine_of(small, kind, {}), asked)
    assert serve(engine_of(small, kind, {}), [odd, *asked])[1:] == alone


def test_the_target_tells_its_own_logits(small: Pair) -> None:
    """Who records, and who asks for log-probabilities, gets them as they were."""
    request = Request(PROMPT, 6, Sampling(logit_bias={4: 50.0}))
    engine = engine_of(small, "causal", {})
    own = small.target.module(input_ids=torch.tensor([[*PROMPT, *[4] * 6]]), use_cache=False).logits[0]
    heard: list[torch.Tensor] = []
    engine.listeners.append(lambda _, progress, __, scored: heard.append(scored.first(0, len(progress[0].tokens))))
    (done,) = engine.run([request])
    assert done.tokens == (4,) * 6
    torch.testing.assert_close(torch.cat(heard), own[len(PROMPT) - 1 : -1], rtol=1e-3, atol=1e-4)
