"""``osd bench trigram``."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Annotated

import typer

from osd.cli.options import JsonOption
from osd.cli.out import Column, note, print_json, print_table
from osd.server.start import SHIPPED


def _us(value: float) -> str:
    return f"{value:.0f}"


COLUMNS = (
    Column("searches", "searches", right=True), Column("batch", "batch", right=True),
    Column("us", "µs", _us, right=True), Column("us_per_row", "µs a row", _us, right=True),
    Column("nodes", "tokens\na tree", "{:.1f}".format, right=True),
)  # fmt: skip


def trigram(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Text, .jsonl or .jsonl.gz. Default: Python's own modules.", metavar="FILES"),
    ] = None,
    field: Annotated[list[str] | None, typer.Option(help="Of JSON lines: the field with the text.")] = None,
    tokenizer: Annotated[
        Path, typer.Option(help="tokenizer.json, or the folder with it.", metavar="PATH", show_default="the demo's")
    ] = SHIPPED / "target",
    order: Annotated[int, typer.Option(help="n of the n-grams: 2, 3 or 4.")] = 3,
    json: JsonOption = False,
) -> None:
    """What a draft from an n-gram table costs: µs by searches and batch, bytes an n-gram, MB/s of building.

    Example: `osd bench trigram answers.jsonl.gz --field response --json`
    """
    from osd.bench.trigram import END, bench_trigram
    from osd.drafters.ngram.encoding import Encoder
    from osd.drafters.ngram.errors import BadCorpus
    from osd.drafters.ngram.sources import documents

    chosen = files or sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [document.text for path in chosen for document in documents(path, field or ["response"])]
    encoder = Encoder(tokenizer)
    if sum(map(len, texts)) < 16 * END:
        raise BadCorpus(path=chosen[0], reason=f"{16 * END} characters are the least to measure with.")
    result = bench_trigram(texts, encoder, order)
    if not json:
        print_table(result["rows"], COLUMNS, title="Median of 50 drafts")
        note(f"{result['bytes_per_n_gram']:.1f} bytes a {order}-gram; building {result['build_mb_s']:.1f} MB/s.")
    print_json(result)
