"""What a draft from a table costs: microseconds by searches and batch, bytes an n-gram, megabytes a second to build."""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from osd.bench.harness.options import JsonOption
from osd.bench.harness.prompts import listed
from osd.bench.harness.report import BenchResult
from osd.drafters.ngram.corpus_stats import table_stats
from osd.drafters.ngram.counts import Index
from osd.drafters.ngram.encoding import Encoder
from osd.drafters.ngram.errors import BadCorpus
from osd.drafters.ngram.maker import MakerSettings, NgramDrafter
from osd.drafters.ngram.sources import documents
from osd.drafters.ngram.table import Table, TableSettings, first_room, table_from
from osd.server.start import SHIPPED

SEARCHES, BATCHES = (10, 50, 150, 300), (1, 4, 8)
TURNS = 50
END = 512
"""Tokens of a row's text."""


def command(
    texts: Annotated[
        list[str] | None,
        typer.Option(help="Text, .jsonl or .jsonl.gz. Default: Python's own modules.", metavar="FILE,…"),
    ] = None,
    field: Annotated[list[str] | None, typer.Option(help="Of JSON lines: the field with the text.")] = None,
    tokenizer: Annotated[
        Path, typer.Option(help="tokenizer.json, or the folder with it.", metavar="PATH", show_default="the demo's")
    ] = SHIPPED / "target",
    order: Annotated[int, typer.Option(help="n of the n-grams: 2, 3 or 4.")] = 3,
    json: JsonOption = False,
) -> None:
    """What a draft from an n-gram table costs: µs by searches and batch, bytes an n-gram, MB/s of building.

    Example: `python -m benchmarks trigram --texts answers.jsonl.gz --field response --json`
    """
    files = [Path(name) for name in listed(texts)] or sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    found = [document.text for path in files for document in documents(path, listed(field) or ["response"])]
    if sum(map(len, found)) < 16 * END:
        raise BadCorpus(path=files[0], reason=f"{16 * END} characters are the least to measure with.")
    figures = bench_trigram(found, Encoder(tokenizer), order)
    settings = {"order": order, "tokenizer": tokenizer, "files": len(files)}
    tables = {f"Median of {TURNS} drafts": figures["rows"]}
    raise typer.Exit(BenchResult("trigram", settings, figures, tables).show(as_json=json))


def bench_trigram(texts: Sequence[str], encoder: Encoder, order: int) -> dict[str, Any]:
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
    rows = draft_times(table_from(table.snapshot(), settings, len(tokens)), tokens)
    return {
        "rows": rows, "tokens": len(tokens), "encode_mb_s": megabytes / (encoded - begun),
        "count_mb_s": megabytes / seconds, "build_mb_s": megabytes / (seconds + encoded - begun),
        "count_tokens_s": len(tokens) / seconds, **table_stats(table),
    }  # fmt: skip


def draft_times(table: Table, tokens: Index, batches: Sequence[int] = BATCHES) -> list[dict[str, Any]]:
    """Return median microseconds of a batch's trees, and tokens a tree."""
    rows = []
    for searches in SEARCHES:
        maker = NgramDrafter(table, MakerSettings(searches=searches))
        for batch in batches:
            us, nodes = _time(maker, tokens, batch)
            each = {"us": round(us, 1), "us_per_row": round(us / batch, 1), "nodes": round(nodes, 1)}
            rows.append({"searches": searches, "batch": batch, **each})
    return rows


def _time(maker: NgramDrafter, tokens: Index, batch: int) -> tuple[float, float]:
    """Return median microseconds, and nodes a tree; rows end elsewhere in the text every turn."""
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
