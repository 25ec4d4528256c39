"""What the methods know beforehand: the texts of some files, and the target's own answers to prompts of theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.trees.suffix_index import SuffixIndex
from osd.drafters.ngram import BadCorpus
from osd.drafters.ngram.counts import Index
from osd.drafters.ngram.table import Lists, Table, TableSettings, first_room, table_from
from osd.engine.engine import Engine
from osd.models.pair import Pair
from osd.prompts import Prompt, encode, read_prompts
from storage.records import Request
from storage.settings import Settings

MEMORY = 1 << 30
"""Bytes that a table may take here: nothing of the corpus is to be left out."""
SERVED = 256 << 20
"""Bytes that it may take while it learns from what is served."""


@dataclass
class Knowledge:
    """Texts as tokens, and what is made of them when it is first asked for."""

    texts: list[Index]
    tables: dict[int, tuple[Lists, int]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The number of all tokens."""
        return sum(map(len, self.texts))

    def table(self, order: int) -> Table:
        """Return a table of its own, which may learn."""
        if order not in self.tables:
            self.tables[order] = _count(self.texts, order).snapshot(), self.tokens
        lists, learned = self.tables[order]
        return table_from(lists, TableSettings(order, SERVED), learned)

    @cached_property
    def index(self) -> SuffixIndex:
        """The texts by their suffixes."""
        return SuffixIndex(self.texts)

    def part(self, share: float) -> Knowledge:
        """Return evenly drawn texts that hold some share of all."""
        count = round(share * len(self.texts))
        places = np.linspace(0, len(self.texts) - 1, count).astype(int).tolist()
        return Knowledge([self.texts[i] for i in dict.fromkeys(places)])


def _count(texts: Sequence[Index], order: int) -> Table:
    table = Table(TableSettings(order, MEMORY), first_room(TableSettings(order, MEMORY)))
    if texts:
        table.learn_documents(np.concatenate(texts), np.cumsum([0, *map(len, texts)]))
    return table


def read_texts(pair: Pair, files: Sequence[Path]) -> list[Index]:
    """Return the answers (``response``) in files of JSON lines, each with the prompt that it answers. Raises
    BadCorpus."""
    texts: list[Index] = []
    tokenizer = pair.tokenizer
    if tokenizer is None:
        raise BadCorpus(path=pair.target.name, reason="the target has no tokenizer, so it cannot read texts.")
    for path in files:
        before = len(texts)
        for prompt in _prompts(path):
            if isinstance(answer := prompt.fields.get("response"), str) and answer.strip():
                ids = [*encode(tokenizer, prompt.text), *tokenizer.encode(answer, add_special_tokens=False)]
                texts.append(np.array(ids, np.int64))
        if len(texts) == before:
            raise BadCorpus(path=path, reason="no line has a prompt and a response with text; give another --corpus.")
    return texts


def _prompts(path: Path) -> Iterator[Prompt]:
    return (line for line in read_prompts(path) if isinstance(line, Prompt))


def own_answers(pair: Pair, settings: Settings, files: Sequence[Path], each: int) -> list[Index]:
    """Return prompts of every file, drawn evenly, with the target's own greedy answers."""
    if not each:
        return []
    plain = settings.changed(gamma={"rule": "fixed", "initial": 0}, drafters={"kind": "causal"}, serve={"max_batch": 8})
    engine, asked = Engine(pair, plain), []
    for path in files:
        prompts = [encode(pair.tokenizer, prompt.text) for prompt in _prompts(path)]
        prompts = [prompt for prompt in prompts if len(prompt) < engine.limit // 2]
        asked += [Request(prompt, max_new_tokens=128) for prompt in prompts[:: max(1, len(prompts) // each)][:each]]
    return [np.array([*done.request.prompt_tokens, *done.tokens], np.int64) for done in engine.run(asked)]
