"""The ways to draft that ``python -m benchmarks trees`` compares, the conditions under which they decode, and decoding
with one: tokens, target passes, and what each pass brought.

A :class:`TreesUnit` is one set of prompts under one condition. In it all methods decode the same prompt, one after
another in a random order, then all of them the next: machines change their speed from second to second, and a method
compares with others at the same prompt. No method sees a prompt twice, or what it has learned would be the answer.
Every unit begins with fresh tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

from benchmarks.trees.corpora import Knowledge
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

SEARCHES = (10, 50, 150, 300)
USUAL = 150
"""Searches where nothing else is said: the paper's number."""
TEMPERATURES, TOP_PS = (0.0, 0.25, 0.5, 0.75, 1.0), (0.25, 0.5, 0.75, 0.9)
SHARES = (0.0, 0.01, 0.1, 0.3, 1.0)


@dataclass(frozen=True, slots=True)
class DraftMethod:
    """One way to draft."""

    name: str
    kind: Literal["alone", "transformers", "lookup", "suffix", "trigram", "draft"]
    order: int = 3
    """n of the table's n-grams."""
    searches: int = USUAL
    """Searches of the tree; 0 is greedy search."""
    adaptive: bool = True
    """Whether the table, and the request's own, learn what the target says. A frozen one does not read the prompt."""
    matrix: bool = False
    """Whether only the longest context is asked, as in the paper."""


ALONE = DraftMethod("target_alone", "alone")
LOOKUP, THEIRS = DraftMethod("prompt_lookup", "lookup"), DraftMethod("transformers_prompt_lookup", "transformers")
GREEDY, MCTS = DraftMethod("trigram_greedy", "trigram", searches=0), DraftMethod(f"trigram_mcts_{USUAL}", "trigram")
FROZEN = DraftMethod("trigram_frozen", "trigram", adaptive=False)
DRAFT = DraftMethod("draft", "draft")
GRAMS = {2: "bi_gram", 3: "tri_gram", 4: "four_gram"}
"""The paper's matrix of one order alone; with shorter contexts behind it (``_backoff``) order 3 is MCTS itself."""
METHODS = (
    ALONE, THEIRS, LOOKUP, DraftMethod("suffix", "suffix"), GREEDY,
    *(DraftMethod(f"trigram_mcts_{count}", "trigram", searches=count) for count in SEARCHES),
    FROZEN, DraftMethod("trigram_greedy_frozen", "trigram", searches=0, adaptive=False),
    *(DraftMethod(name, "trigram", order=n, matrix=True) for n, name in GRAMS.items()),
    *(DraftMethod(f"{GRAMS[n]}_backoff", "trigram", order=n) for n in (2, 4)), DRAFT,
)  # fmt: skip
BY_NAME = {method.name: method for method in METHODS}


@dataclass(frozen=True, slots=True)
class TreesUnit:
    """One set under one condition."""

    part: Literal["shape", "speed", "sampling", "corpus"]
    """In the speed part the controller of the settings chooses depths; else all trees are as deep as they may be."""
    data_set: str
    methods: tuple[str, ...]
    temperature: float = 0.0
    top_p: float | None = None
    share: float = 1.0
    """The part of the corpus that is known beforehand."""

    def sampling(self, seed: int) -> Sampling:
        """Return how a text is drawn."""
        return Sampling(self.temperature, top_p=self.top_p, seed=seed)

    def __str__(self) -> str:
        words = {"sampling": f"T={self.temperature:g} top-p {self.top_p or 1:g}", "corpus": f"corpus × {self.share:g}"}
        return f"{self.data_set} {words.get(self.part, self.part)}"


def units_of(data_sets: Iterable[str], sensitivity: bool) -> Iterator[TreesUnit]:
    """Yield all units in the order of measuring; ``sensitivity``: also by temperature, top-p and share of the
    corpus."""
    names = list(data_sets)
    yield from (TreesUnit("shape", name, tuple(BY_NAME)) for name in names)
    yield from (TreesUnit("speed", name, tuple(BY_NAME)) for name in names)
    some = (ALONE.name, GREEDY.name, MCTS.name, FROZEN.name)
    points: list[tuple[float, float | None]] = [(t, None) for t in TEMPERATURES] + [(1.0, p) for p in TOP_PS]
    for name in names if sensitivity else ():
        yield from (TreesUnit("sampling", name, some[1:], t, p) for t, p in points)
        yield from (TreesUnit("corpus", name, some, share=share) for share in SHARES)


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
