"""Decoding with one method: tokens, target passes, and what each pass brought."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from benchmarks.trees.corpora import Knowledge
from benchmarks.trees.methods import DraftMethod
from osd.bench.contenders import generate, no_remarks
from osd.bench.harness.prompts import Tokens
from osd.drafters.model_free import LookupProposer, TableProposer
from osd.drafters.ngram.drafter import NgramDrafter, SearchSettings
from osd.drafters.ngram.lookup import PromptLookup
from osd.drafters.tree import Proposer
from osd.engine.engine import Engine
from osd.models.pair import Pair
from storage.records import Request
from storage.sampling import Sampling
from storage.settings import Settings

THEIR_TOKENS = 10
"""transformers' ``prompt_lookup_num_tokens``: the number that its documentation uses."""


@dataclass(frozen=True, slots=True)
class DecodedText:
    """One decoded answer."""

    tokens: tuple[int, ...]
    passes: tuple[tuple[int, int], ...]
    """For each target pass the length of the text before it, prompt included, and the tokens that it brought. What
    transformers' passes brought is not known one by one: they share the tokens evenly."""
    seconds: float


DecodeText = Callable[[Tokens, Sampling], DecodedText]


def decoder_of(method: DraftMethod, pair: Pair, settings: Settings, known: Knowledge, new_tokens: int) -> DecodeText:
    """Return a way to decode that lives on between turns, as a server does: what it has learned stays."""
    if method.kind == "transformers":
        return _theirs(pair, new_tokens)
    engine = Engine(pair, _settings(method, settings), proposer=_proposer(method, settings, known))

    def decode(prompt: Tokens, sampling: Sampling) -> DecodedText:
        begun = time.perf_counter()
        (done,) = engine.run([Request(prompt, sampling=sampling, max_new_tokens=new_tokens)])
        seconds = time.perf_counter() - begun
        begins = accumulate((each.emitted for each in done.rounds), initial=len(prompt))
        passes = zip(begins, (each.emitted for each in done.rounds), strict=False)
        return DecodedText(done.tokens, tuple(passes), seconds)

    for _ in engine.run([Request((1, 2, 3), max_new_tokens=new_tokens, learn=False)]):  # warm
        pass
    return decode


def _settings(method: DraftMethod, settings: Settings) -> Settings:
    drafter = {"alone": "causal", "draft": "causal", "lookup": "lookup"}.get(method.kind, "trigram")
    found = settings.changed(drafters={"kind": drafter})
    return found.changed(gamma={"rule": "fixed", "initial": 0}) if method.kind == "alone" else found


def _proposer(method: DraftMethod, settings: Settings, known: Knowledge) -> Proposer | None:
    if method.kind == "lookup":
        return LookupProposer(method.name, PromptLookup())
    if method.kind == "suffix":
        return LookupProposer(method.name, known.index)
    if method.kind != "trigram":
        return None
    how = SearchSettings(
        searches=max(1, method.searches), method="mcts" if method.searches else "greedy",
        nodes=settings.drafters.tree_nodes, depth=max(settings.gamma.max, 1),
    )  # fmt: skip
    if method.matrix:
        how = how.model_copy(update={"shortest": method.order - 1, "kappa": 0.0})
    maker = (NgramDrafter if method.adaptive else FrozenMaker)(known.table(method.order), how)
    return TableProposer(method.name, maker)


class FrozenMaker(NgramDrafter):
    """A maker that is told nothing: the table stays as its corpus left it, and no request has one of its own."""

    def open(self, prompt: Any) -> int:
        """Open a row that remembers nothing."""
        return super().open(prompt[:0])

    def learn(self, place: int, tokens: Any, start: int, *, shared: bool = True) -> None:
        """Learn nothing."""


def _theirs(pair: Pair, new_tokens: int) -> DecodeText:
    def decode(prompt: Tokens, sampling: Sampling) -> DecodedText:
        with no_remarks(), _counted(pair.target.module) as count:
            begun = time.perf_counter()
            (tokens,) = generate(pair, [prompt], new_tokens, prompt_lookup_num_tokens=THEIR_TOKENS)
            seconds = time.perf_counter() - begun
        return DecodedText(tuple(tokens), _evenly(len(prompt), len(tokens), count[0]), seconds)

    decode((1, 2, 3), Sampling())
    return decode


def _evenly(before: int, tokens: int, passes: int) -> tuple[tuple[int, int], ...]:
    ends = [tokens * i // passes for i in range(passes + 1)]
    return tuple((before + begin, end - begin) for begin, end in pairwise(ends))


@contextmanager
def _counted(module: Any) -> Any:
    """Count how often a model is called."""
    count = [0]

    def hook(*_: Any) -> None:
        count[0] += 1

    handle = module.register_forward_hook(hook)
    try:
        yield count
    finally:
        handle.remove()
