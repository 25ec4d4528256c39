"""What a draft from a table costs: microseconds by searches and batch, bytes an n-gram, megabytes a second to build."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from osd.drafters.ngram.corpus_stats import table_stats
from osd.drafters.ngram.counts import Index
from osd.drafters.ngram.encoding import Encoder
from osd.drafters.ngram.maker import DraftMaker, MakerSettings
from osd.drafters.ngram.table import Table, TableSettings, first_room, table_from

SEARCHES, BATCHES = (10, 50, 150, 300), (1, 4, 8)
TURNS = 50
END = 512
"""Tokens of a row's text."""


def bench_trigram(
    texts: Sequence[str], encoder: Encoder, order: int, told: Callable[[int, int], None] = lambda *_: None
) -> dict[str, Any]:
    """Encode, count and draft with these texts; needs some 5,000 tokens of them."""
    begun = time.perf_counter()
    parts = [np.asarray(tokens, np.int64) for tokens in encoder.encode(list(texts))]
    encoded = time.perf_counter()
    tokens, ends = np.concatenate(parts), np.cumsum([0, *map(len, parts)])
    warm = Table(TableSettings(order, 1 << 20))
    warm.learn_documents(tokens[:64], np.array([0, 64]))
    counting = time.perf_counter()
    settings = TableSettings(order, 1 << 30)
    table = Table(settings, first_room(settings))
    table.learn_documents(tokens, ends)
    seconds = time.perf_counter() - counting
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    rows = draft_times(table_from(table.snapshot(), settings, len(tokens)), tokens, told)
    return {
        "rows": rows, "tokens": len(tokens), "encode_mb_s": megabytes / (encoded - begun),
        "count_mb_s": megabytes / seconds, "build_mb_s": megabytes / (seconds + encoded - begun),
        "count_tokens_s": len(tokens) / seconds, **table_stats(table),
    }  # fmt: skip


def draft_times(table: Table, tokens: Index, told: Callable[[int, int], None]) -> list[dict[str, Any]]:
    """Median microseconds of a batch's trees."""
    rows, done = [], 0
    for searches in SEARCHES:
        maker = DraftMaker(table, MakerSettings(searches=searches))
        for batch in BATCHES:
            us, nodes = _time(maker, tokens, batch)
            each = {"us": round(us, 1), "us_per_row": round(us / batch, 1), "nodes": round(nodes, 1)}
            rows.append({"searches": searches, "batch": batch, **each})
            done += 1
            told(done, len(SEARCHES) * len(BATCHES))
    return rows


def _time(maker: DraftMaker, tokens: Index, batch: int) -> tuple[float, float]:
    """Median microseconds, and nodes a tree; rows end elsewhere in the text every turn."""
    begins = [i * (len(tokens) - END) // batch for i in range(batch)]
    texts = [tokens[begin : begin + END] for begin in begins]
    places = [maker.open(text) for text in texts]
    seconds, nodes = [], 0
    for turn in range(-1, TURNS):
        tails = [text[: END - max(0, turn) * 7 % (END // 2)] for text in texts]
        begun = time.perf_counter()
        found = maker.propose(places, tails)
        if turn >= 0:
            seconds.append(time.perf_counter() - begun)
            nodes += sum(map(len, found))
    for place in places:
        maker.close(place)
    return float(np.median(seconds)) * 1e6, nodes / (TURNS * batch)
