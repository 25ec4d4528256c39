"""A draft whose vocabulary is another in some places: what only one side knows is never drafted and never fed."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from osd.engine.engine import Engine
from osd.models.model import Model
from osd.models.pair import Pair
from osd.models.vocabulary import check_vocabularies, table_rows
from storage.errors import VocabularyMismatch
from storage.records import Request
from storage.sampling import Sampling
from tests.lossless.test_distribution import LEVEL, PROMPT, exact, p_value
from tests.lossless.test_lossless import serve
from tests.support.models import alone, model_of, noisy, random_module
from tests.support.settings import settings_of

pytestmark = pytest.mark.usefixtures("compiled")

WIDTH, COUNT = 97, 16


def tokenizer_of(ids: dict[int, str]) -> PreTrainedTokenizerFast:
    """A tokenizer that knows these ids, by these tokens."""
    words = Tokenizer(WordLevel({token: each for each, token in ids.items()}, unk_token=ids[0]))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token=ids[0])


def known(count: int, *, lacks: Sequence[int] = (), own: str = "") -> PreTrainedTokenizerFast:
    """One that knows the first ``count`` ids; those that it lacks are another token to it, if any."""
    ids = {each: f"t{each}" for each in range(count) if each not in lacks}
    return tokenizer_of(ids | ({each: f"{own}{each}" for each in lacks} if own else {}))


def pair_of(rows: int, width: int, ours: Any, theirs: Any, noise: float = 0.2) -> Pair:
    """A target of ``width`` ids and a noisy copy of it with ``rows``."""
    target = model_of(random_module("llama", vocabulary=width))
    module = noisy(copy.deepcopy(target.module), noise)
    module.resize_token_embeddings(rows, mean_resizing=False)
    draft = model_of(module.requires_grad_(False))
    return Pair(target, replace(draft, shared=check_vocabularies(target, draft, ours, theirs)), None, frozenset())


class Watched:
    """Watches what a draft is fed and what it drafts."""

    def __init__(self, engine: Engine) -> None:
        self.fed, self.drafted = set[int](), set[int]()
        decoder = engine.pool.decoder
        self._known = decoder._known
        decoder._known = self._look  # type: ignore[method-assign]
        engine.listeners.append(self._hear)

    def _look(self, tokens: torch.Tensor) -> torch.Tensor:
        known = self._known(tokens)
        self.fed |= set(known.flatten().tolist())
        return known

    def _hear(self, rows: Any, progress: Any, verdict: Any, scored: Any) -> None:
        for drafted, depth in zip(verdict.drafted, verdict.depths, strict=True):
            self.drafted |= set(drafted[:depth])


@settings(max_examples=12)
@given(
    rows=st.sampled_from([91, 96, 97, 99, 128]), lacks=st.lists(st.integers(1, 89), max_size=3, unique=True),
    own=st.sampled_from(["", "other"]), kind=st.sampled_from(["causal", "blended"]),
    temperature=st.sampled_from([0.0, 0.8]), data=st.data(),
)  # fmt: skip
def test_texts_are_the_targets_and_no_id_is_fed_or_drafted_that_one_side_lacks(
    rows: int, lacks: list[int], own: str, kind: str, temperature: float, data: st.DataObject
) -> None:
    pair = pair_of(rows, WIDTH, known(WIDTH), known(min(rows, WIDTH), lacks=lacks, own=own))
    prompts = data.draw(st.lists(st.lists(st.integers(0, WIDTH - 1), min_size=1, max_size=12), min_size=2, max_size=4))
    chosen = {"serve__max_batch": 3, "serve__max_length": 64, "gamma__rule": "fixed", "drafters__kind": kind}
    engine = Engine(pair, settings_of(**chosen))
    watched = Watched(engine)
    sampling = Sampling(temperature, seed=1)
    asked = [Request((*prompt, 96), max_new_tokens=COUNT, sampling=sampling, ignore_eos=True) for prompt in prompts]
    texts = serve(engine, asked)
    if not temperature:
        assert texts == [alone(pair.target.module, request.prompt_tokens, COUNT) for request in asked]
    strange = {*lacks, *range(min(rows, WIDTH), WIDTH)}
    assert watched.fed and not watched.fed & strange and max(watched.fed) < table_rows(pair.draft.module)
    if kind == "causal":  # others draft what the text had before, which is no word of the draft's
        assert watched.drafted and not watched.drafted & strange
    assert (pair.draft.shared is None) == (not strange)


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_k=5), Sampling(1.2, top_p=0.8)])
def test_samples_follow_the_target(sampling: Sampling) -> None:
    """Odds of a false alarm: 3 × LEVEL for fresh seeds."""
    names = tokenizer_of({each: f"t{each}" for each in range(9)})
    others = tokenizer_of({each: f"t{each}" for each in range(9) if each not in (4, 8)} | {4: "other"})
    target = model_of(random_module("llama", vocabulary=9))
    module = noisy(copy.deepcopy(target.module), 0.35)
    module.resize_token_embeddings(8, mean_resizing=False)
    draft = model_of(module)
    with pytest.raises(VocabularyMismatch, match="the draft knows 7 of 9 tokens"):
        check_vocabularies(target, draft, names, others)
    many = {each: f"t{each}" for each in range(100, 200)}
    wide = [tokenizer_of({**{i: t for t, i in each.get_vocab().items()}, **many}) for each in (names, others)]
    shared = check_vocabularies(target, draft, *wide)
    assert shared is not None and shared.barred.tolist() == [4, 8] and shared.stand_ins.tolist()[4::4] == [0, 0]
    pair = Pair(target, replace(draft, shared=shared), None, frozenset())
    engine = Engine(pair, settings_of(serve__max_batch=64, serve__max_length=64, gamma__rule="fixed", gamma__initial=3))
    requests = (
        Request(PROMPT, 3, sampling=replace(sampling, seed=seed), id=str(seed), ignore_eos=True) for seed in range(1500)
    )
    found = Counter(done.tokens[:2] for done in engine.run(requests))
    assert p_value(found, exact(pair, sampling)) > LEVEL


def test_what_differs_is_said_where_shared_tokens_have_other_ids() -> None:
    small = model_of(random_module("llama"))

    def check(ours: Any, theirs: Any, draft: Model = small) -> Any:
        return check_vocabularies(small, draft, ours, theirs)

    swapped = tokenizer_of({each: f"t{each}" for each in range(WIDTH) if each not in (5, 7)} | {5: "t7", 7: "t5"})
    with pytest.raises(VocabularyMismatch, match="2 tokens have other ids, for example 't5': 7 and 5"):
        check(known(WIDTH), swapped)
    with pytest.raises(VocabularyMismatch, match="the draft knows 50 of 97 tokens"):
        check(known(WIDTH), known(50))
    assert check(known(WIDTH), known(WIDTH)) is None
    assert check(None, None) is None
