"""Whatever a drafter raises costs a round its draft: texts stay the target's own, and the state stays right."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osd.draft import Draft
from osd.drafters.base import DraftRequest
from osd.drafters.causal import CausalDrafter
from osd.drafters.pool import LONGEST, DraftFailures
from osd.drafters.tree import TreeDrafter
from osd.engine.engine import Engine
from osd.models.pair import Pair
from storage.records import Request
from storage.sampling import Sampling
from tests.lossless.test_distribution import LEVEL, PROMPT, exact, p_value
from tests.lossless.test_lossless import serve
from tests.support.models import VOCABULARY, alone, prompts, random_pair
from tests.support.proposers import BranchingDrafter, Guessing
from tests.support.settings import settings_of

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.drafters_may_fail]
COUNT = 20


class Broken(Exception):
    pass


class Raising:
    """Another object, of which the named methods raise now and then, before or after they did their work."""

    def __init__(self, inner: Any, methods: Sequence[str], often: float, seed: int) -> None:
        self._inner, self._methods, self._often, self._chance = inner, methods, often, random.Random(seed)
        self.raised = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._wrapped(found) if name in self._methods else found

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            before = self._chance.random() < self._often / 2
            result = None if before else method(*args, **named)
            if before or self._chance.random() < self._often / 2:
                self.raised += 1
                raise Broken("a text of a user")
            return result

        return call


@pytest.fixture(scope="module")
def pair() -> Pair:
    return random_pair("llama")


@pytest.fixture(scope="module")
def expected(pair: Pair) -> dict[tuple[int, ...], list[int]]:
    """The target's own texts, and with them prompts."""
    return {prompt: alone(pair.target.module, prompt, COUNT) for prompt in prompts(6, seed=5)}


def engine_of(pair: Pair, **chosen: object) -> Engine:
    base = {"serve__max_batch": 3, "serve__max_length": 96, "gamma__rule": "fixed", "gamma__initial": 4}
    return Engine(pair, settings_of(**{**base, **chosen}))


def requests(expected: dict[tuple[int, ...], list[int]]) -> list[Request]:
    """Rows of every length, of which some have no room for a draft."""
    return [Request(prompt, max_new_tokens=max(1, COUNT - 4 * i)) for i, prompt in enumerate(expected)]


METHODS = ("join", "leave", "propose", "commit", "measure", "version")
LEARNING = ("join", "leave", "propose", "learn")


def check(engine: Engine, expected: dict[tuple[int, ...], list[int]]) -> None:
    """Serve them twice over: texts are the target's, nobody is left behind."""
    for _ in range(2):
        asked = requests(expected)
        assert serve(engine, asked) == [expected[r.prompt_tokens][: r.max_new_tokens] for r in asked]
        assert not engine.pool.busy and not engine.pool.default.rows and not engine.pool.failures.doubtful


@settings(max_examples=8)
@given(
    methods=st.sets(st.sampled_from(METHODS), min_size=1), often=st.sampled_from([0.1, 0.4, 1.0]), seed=st.integers(0)
)
def test_a_drafter_that_raises_anywhere(
    pair: Pair, expected: dict[tuple[int, ...], list[int]], methods: set[str], often: float, seed: int
) -> None:
    for kind in (None, TreeDrafter, BranchingDrafter):
        engine = engine_of(pair)
        if kind is not None:
            engine.drafting = kind(engine.pool, Guessing(VOCABULARY, expected), 10, engine.target)
        raising = Raising(engine.drafting, sorted(methods), often, seed)
        engine.drafting = raising  # type: ignore[assignment]
        check(engine, expected)
        assert (sum(engine.stats.draft_failures.values()) > 0) == (raising.raised > 0)


@settings(max_examples=8)
@given(
    methods=st.sets(st.sampled_from(LEARNING), min_size=1), often=st.sampled_from([0.1, 0.4, 1.0]), seed=st.integers(0)
)
def test_a_proposer_that_raises_anywhere(
    pair: Pair, expected: dict[tuple[int, ...], list[int]], methods: set[str], often: float, seed: int
) -> None:
    for kind in (TreeDrafter, BranchingDrafter):
        engine = engine_of(pair)
        proposer: Any = Raising(Guessing(VOCABULARY, expected), sorted(methods), often, seed)
        engine.drafting = kind(engine.pool, proposer, 10, engine.target)
        check(engine, expected)


@settings(max_examples=8)
@given(often=st.sampled_from([0.05, 0.3, 1.0]), seed=st.integers(0), kind=st.sampled_from(["causal", "blended"]))
def test_a_draft_model_whose_passes_raise(
    pair: Pair, expected: dict[tuple[int, ...], list[int]], often: float, seed: int, kind: str
) -> None:
    engine = engine_of(pair, drafters__kind=kind)
    raising: Any = Raising(engine.pool.decoder, ["logits", "read"], often, seed)
    engine.pool.default.body.drafter.decoder = raising
    check(engine, expected)
    assert (engine.stats.draft_failures["default"] > 0) == (raising.raised > 0)


def test_a_chain_keeps_what_was_drawn_before_a_pass_raised(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a token would be verified only where what came after it did not raise, which changes the distribution."""
    engine, lengths = engine_of(pair, gamma__initial=6), list[int]()
    engine.listeners.append(lambda rows, progress, verdict, scored: lengths.extend(verdict.depths))
    add = CausalDrafter._add_tokens

    def third_fails(self: CausalDrafter, request: Any, chain: Any, override: Any) -> Any:
        if chain.size == 2:
            raise Broken
        return add(self, request, chain, override)

    monkeypatch.setattr(CausalDrafter, "_add_tokens", third_fails)
    asked = Request((3, 5, 8), max_new_tokens=12, sampling=Sampling(1.0, seed=1), ignore_eos=True)
    list(engine.run([asked]))
    assert lengths[:3] == [2, 0, 0], "two tokens in the round in which the draft was asked, none while it rested"


def test_samples_follow_the_target_where_passes_raise_by_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Odds of a false alarm: LEVEL for a fresh seed."""
    tiny, sampling = random_pair("llama", noise=0.35, vocabulary=9), Sampling(1.0)
    monkeypatch.setattr(DraftFailures, "may_ask", lambda failures, name: True)
    engine = engine_of(tiny, gamma__initial=3, serve__max_batch=1)
    decoder = engine.pool.decoder
    logits = decoder.logits

    def superstitious(tokens: torch.Tensor, starts: Sequence[int], **named: Any) -> torch.Tensor:
        if tokens.shape[1] == 1 and bool((tokens % 2).any()):
            raise Broken
        return logits(tokens, starts, **named)

    monkeypatch.setattr(decoder, "logits", superstitious)
    asked = (
        Request(PROMPT, 3, sampling=replace(sampling, seed=seed), id=str(seed), ignore_eos=True) for seed in range(1500)
    )
    found = Counter(done.tokens[:2] for done in engine.run(asked))
    assert engine.stats.draft_failures["default"] > 100
    assert p_value(found, exact(tiny, sampling)) > LEVEL


class Wild:
    """A drafter that proposes what cannot be fed."""

    def __init__(self, inner: Any, token: int, width: int) -> None:
        self._inner, self._token, self._width = inner, token, width

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, request: DraftRequest) -> Draft:
        tokens = torch.full((len(request.rows), self._width), self._token)
        return Draft(tokens, (self._width,) * len(request.rows), None, self._width)


@pytest.mark.parametrize(("token", "width"), [(VOCABULARY, 2), (-1, 2), (1 << 40, 1), (5, 90)])
def test_a_draft_that_cannot_be_verified_is_none(
    pair: Pair, expected: dict[tuple[int, ...], list[int]], token: int, width: int
) -> None:
    engine = engine_of(pair)
    engine.drafting = Wild(engine.drafting, token, width)  # type: ignore[assignment]
    check(engine, expected)
    assert engine.stats.draft_failures["drafters.causal"] > 0


@settings(max_examples=25)
@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40), count=st.integers(1, 70),
    kind=st.sampled_from(["causal", "blended", "trigram", "lookup"]), gamma=st.integers(0, 8),
)  # fmt: skip
def test_rows_without_room_and_ids_up_to_the_width(
    pair: Pair, prompt: list[int], count: int, kind: str, gamma: int
) -> None:
    engine = engine_of(pair, drafters__kind=kind, serve__max_length=48)
    asked = Request(tuple(prompt), max_new_tokens=count, gamma=gamma, ignore_eos=True)
    (done,) = engine.run([asked])
    assert list(done.tokens) == alone(pair.target.module, asked.prompt_tokens, min(count, 48 - len(prompt)))
    assert not engine.stats.draft_failures.total()


def test_one_that_keeps_raising_rests_ever_longer(caplog: pytest.LogCaptureFixture) -> None:
    failures, asked = DraftFailures(), 0
    for _ in range(40 * LONGEST):
        if failures.may_ask("draft"):
            asked += 1
            failures.note_failure("draft", Broken("a text of a user"))
    assert 40 <= asked <= 60 and failures.counts["draft"] == asked
    assert len(caplog.records) == 1 and "draft raised Broken" in caplog.text and "user" not in caplog.text
    assert failures.may_ask("another")


def test_one_that_raised_once_rests_briefly() -> None:
    failures = DraftFailures()
    for _ in range(5):
        failures.note_failure("draft", Broken())
        assert [failures.may_ask("draft") for _ in range(3)] == [False, False, True]
        failures.note_success("draft")
