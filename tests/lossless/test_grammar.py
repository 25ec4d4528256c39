"""Grammars keep speculation exact: greedy texts are the target's own under a plain mask, sampled ones have the masked
target's distribution, drafting goes on, and neighbours keep their texts.

Sampled: 1,500 engine samples of a grammar of few texts against the exact probability of each, a chi-square test at
level 1e-4, as tests/lossless/test_distribution.py. With the four cases below a false alarm has odds of at most 1 in
2,500 for fresh seeds; the seeds are fixed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osd.engine.engine import Engine
from osd.models.pair import Pair
from osd.verification.warping import Warp
from storage.errors import BadRequest
from storage.records import Request
from storage.sampling import Grammar, Sampling
from tests.lossless.test_distribution import LEVEL, SAMPLES, p_value
from tests.lossless.test_logits_processors import KINDS, engine_of
from tests.lossless.test_lossless import serve
from tests.support.grammars import FAMILIES, alone_with, compiler_of, followers, grammar_pair, schema
from tests.support.models import alone, prompts

pytestmark = pytest.mark.usefixtures("compiled")

LIST = {"type": "array", "items": {"enum": ["a", "bb", None, 12, {"é": True}]}, "minItems": 2, "maxItems": 4}
CARD = {
    "type": "object", "properties": {"name": {"enum": ["Ann", "Bö"]}, "tags": LIST}, "required": ["name", "tags"],
    "additionalProperties": False,
}  # fmt: skip
GRAMMARS = [
    schema(CARD), Grammar("regex", "(ab|c){3,9}"), None, Grammar("choice", json.dumps(["yes", "yesterday"])),
    schema(LIST), Grammar("grammar", 'start: item ("," item)*\nitem: /[0-9]{1,3}/'),
]  # fmt: skip
PROMPT = (30, 7, 20)


def asked(count: int = 60) -> list[Request]:
    return [Request(p, count, grammar=g) for p, g in zip(prompts(len(GRAMMARS), seed=2), GRAMMARS, strict=True)]


def plain(pair: Pair, request: Request) -> list[int]:
    [eos] = pair.eos_ids
    if request.grammar is None:
        return alone(pair.target.module, request.prompt_tokens, request.max_new_tokens, eos=eos)
    return alone_with(pair, request.prompt_tokens, request.max_new_tokens, request.grammar)


@pytest.fixture(scope="module", params=FAMILIES)
def texts(request: Any) -> tuple[Pair, list[list[int]]]:
    pair = grammar_pair(request.param)
    return pair, [plain(pair, one) for one in asked()]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_texts_are_the_masked_targets_in_ragged_batches(texts: tuple[Pair, list[list[int]]], kind: str) -> None:
    pair, expected = texts
    requests = asked()
    known = {r.prompt_tokens: text for r, text in zip(requests, expected, strict=True)}
    done = {c.request.id: c for c in engine_of(pair, kind, known).run(requests)}
    assert [list(done[r.id].tokens) for r in requests] == expected
    for request in requests:
        rounds = done[request.id].rounds
        assert request.grammar is None or kind in ("lookup", "trigram") or sum(r.accepted for r in rounds) > 0
    for request in (requests[0], requests[4]):
        jsonschema.validate(json.loads(done[request.id].text or ""), json.loads(request.grammar.text))


def test_an_agreeing_draft_is_never_refused() -> None:
    pair = grammar_pair(noise=0.0)
    for completion in engine_of(pair, "causal", {}).run(asked()):
        assert all(r.accepted == r.drafted for r in completion.rounds[:-1])
        assert sum(r.drafted for r in completion.rounds) > 0


VALUES = st.one_of(
    st.just({"type": "boolean"}), st.just({"type": "null"}),
    st.builds(lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
              st.integers(-20, 99), st.integers(0, 99)),
    st.builds(lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
              st.integers(0, 2), st.integers(0, 3)),
    st.builds(lambda values: {"enum": values},
              st.lists(st.text(max_size=4) | st.integers(-9, 9), min_size=1, max_size=3)),
    st.just({"type": "string", "pattern": "^[a-c]{1,3}$"}), st.just({"type": "string", "format": "date"}),
)  # fmt: skip


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.dictionaries(st.text('aäb"\\ ', min_size=1, max_size=3), inner, max_size=3)
    return st.builds(
        lambda found, optional: {"type": "object", "properties": found, "additionalProperties": False,
                                 "required": [name for name in found if name not in optional]},
        names, st.sets(st.text("aäb", max_size=1), max_size=1),
    )  # fmt: skip


SCHEMAS = st.recursive(VALUES, lambda inner: st.one_of(
    objects(inner),
    st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner),
    st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3)),
), max_leaves=4)  # fmt: skip


ROOM = 4000
"""Positions in which every text comes to its end: a random model puts much white space between JSON's tokens."""


def with_room(pair: Pair, positions: int) -> Pair:
    """A pair of random models that know more positions; their rotary embeddings go on for ever."""
    return replace(pair, target=replace(pair.target, limit=positions), draft=replace(pair.draft, limit=positions))


def check_schema(wanted: Any, seed: int) -> None:
    """A model of random weights writes what the schema describes, greedy and sampled, with every drafter."""
    pair = with_room(grammar_pair(), ROOM)
    try:
        compiler_of(pair).compile(schema(wanted))
    except BadRequest as refused:
        assert "nsatisfiable" in str(refused), refused
        return
    drawn = Request(PROMPT, ROOM - 100, Sampling(1.0, seed=seed), grammar=schema(wanted))
    requests = [drawn, replace(drawn, sampling=Sampling(), id="greedy")]
    for kind in ("causal", "branching"):
        for completion in engine_of(pair, kind, {}, serve__max_length=ROOM, serve__max_batch=2).run(requests):
            assert completion.finish_reason == "stop", completion.text
            jsonschema.validate(json.loads(completion.text or ""), wanted)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(SCHEMAS, st.integers(0, 99))
def test_texts_are_what_the_schema_describes(wanted: Any, seed: int) -> None:
    check_schema(wanted, seed)


@pytest.mark.long
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 99))
def test_texts_are_what_many_schemas_describe(wanted: Any, seed: int) -> None:
    check_schema(wanted, seed)


FEW = Grammar("choice", json.dumps(["a", "ab", "b", "bä", "c"]))


@torch.inference_mode()
def exact(pair: Pair, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The masked target's probability of every text of the grammar."""
    compiled, warp = compiler_of(pair).compile(FEW), Warp.of([sampling], pair.vocab_size, torch.device("cpu"))
    assert warp is not None
    found: dict[tuple[int, ...], float] = {}
    open_texts: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while open_texts:
        text, chance = open_texts.pop()
        logits = pair.target.module(input_ids=torch.tensor([[*PROMPT, *text]]), use_cache=False).logits[0, -1]
        masked = torch.full_like(logits, -torch.inf)
        good = followers(compiled, text, len(logits))
        masked[good] = logits[good]
        for token, p in enumerate(warp(masked[None, None])[0, 0].double().tolist()):
            longer = (*text, token)
            if p > 0 and token in pair.eos_ids:
                found[longer] = chance * p
            elif p > 0:
                open_texts.append((longer, chance * p))
    return found


@pytest.mark.parametrize(("kind", "sampling"), [
    ("causal", Sampling(1.0)), ("branching", Sampling(1.6)),
    pytest.param("causal", Sampling(1.6, top_k=3), marks=pytest.mark.long),
    pytest.param("trees", Sampling(1.3), marks=pytest.mark.long),
])  # fmt: skip
def test_texts_have_the_masked_targets_distribution(kind: str, sampling: Sampling) -> None:
    pair = grammar_pair(noise=0.35)
    engine = engine_of(pair, kind, {}, serve__max_batch=64, gamma__initial=2)
    base = Request(PROMPT, 8, grammar=FEW)
    requests = (replace(base, id=str(seed), sampling=replace(sampling, seed=seed)) for seed in range(SAMPLES))
    seen = Counter(completion.tokens for completion in engine.run(requests))
    expected = exact(pair, sampling)
    assert sum(expected.values()) == pytest.approx(1.0) and len(expected) > 4
    assert p_value(seen, expected) > LEVEL


@pytest.mark.parametrize("kind", ["causal", "branching"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_a_grammar_changes_no_other_row(kind: str, temperature: float) -> None:
    pair = grammar_pair()
    others = [Request(PROMPT, 20 + i, Sampling(temperature, seed=i)) for i in range(3)]
    odd = Request((3, 1), 24, Sampling(temperature, seed=9), grammar=GRAMMARS[0])

    def texts(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
        return serve(engine, list(requests))

    assert texts(engine_of(pair, kind, {}), [odd, *others])[1:] == texts(engine_of(pair, kind, {}), others)


def test_a_grammar_comes_before_what_would_leave_nothing_of_it() -> None:
    """`min_tokens` and bad words hold as far as the grammar has other texts."""
    pair = grammar_pair()
    request = Request(PROMPT, 30, grammar=Grammar("choice", '["ab"]'), min_tokens=20)
    for stop in ((), ("zz",)):
        [completion] = engine_of(pair, "causal", {}).run([replace(request, stop=stop)])
        assert (completion.text, completion.finish_reason) == ("ab", "stop")
    with pytest.raises(BadRequest, match="ignore_eos"):
        engine_of(pair, "causal", {}).submit(replace(request, ignore_eos=True))
