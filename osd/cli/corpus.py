"""`osd corpus`: n-gram tables made from texts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn

from osd.cli.context import surroundings
from osd.cli.options import JsonOption
from osd.cli.out import Column, count, counted, note, print_facts, print_json, print_table, say, share, size
from osd.server.start import choose_pair

if TYPE_CHECKING:
    from osd.drafters.ngram.corpus import Batch, Builder, Corpus
    from osd.drafters.ngram.encoding import Encoder
    from osd.drafters.ngram.table import Table

app = typer.Typer(no_args_is_help=True, help="Build, look at and export the texts that n-gram drafts know.")

FolderArgument = Annotated[Path, typer.Argument(help="A corpus that `osd corpus build` made.", metavar="DIR")]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(
        help="tokenizer.json of the target, or the folder with it. Default: that of the pair that osd serves.",
        metavar="PATH",
    ),
]


COLUMNS = (
    Column("context", "context"), Column("successors", "successors", " ".join),
    Column("count", "seen", count, right=True),
)  # fmt: skip


@app.command()
def build(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="A folder that is not there yet.", metavar="DIR")],
    tokenizer: TokenizerOption = None,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Text, .jsonl or .jsonl.gz.", metavar="FILES", show_default=False)
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="Of JSON lines: the field with the text; may be repeated.", metavar="NAME")
    ] = None,
    replay: Annotated[bool, typer.Option("--replay", help="The requests that are kept for learning, too.")] = False,
    order: Annotated[int, typer.Option(help="n of the n-grams: 2, 3 or 4.")] = 4,
    memory: Annotated[int, typer.Option(help="Megabytes that the table may take.", min=1)] = 256,
    half_life: Annotated[
        int, typer.Option(help="Served tokens after which a count is halved; 0: never.", min=0, metavar="TOKENS")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Make a corpus and its n-gram table from texts.

    Interrupted, it continues when the same command is given again. A corpus of --replay holds the requests'
    tokens, and `osd replay purge` does not reach it: treat it as you treat the prompts.
    """
    from osd.drafters.ngram.corpus import build as append
    from osd.drafters.ngram.encoding import Encoder
    from osd.drafters.ngram.table import TableSettings

    settings, fields = TableSettings(order, memory << 20, half_life), tuple(field or ["response"])
    begun = time.perf_counter()
    _require_sources(out, files or [], replay)
    encoder = Encoder(tokenizer or Path(choose_pair(surroundings(ctx).settings.serve).target))
    builder = _builder(out, files or [], replay, fields, encoder)
    already, read = builder.progress.bytes, partial(_read, ctx, encoder, fields)
    with told_bar() as tell:
        append(builder, read, lambda at: tell("reading", at.tokens, at.bytes - already, time.perf_counter() - begun))
        read_s = time.perf_counter() - begun
        corpus, table = builder.finish(settings, encoder.path, lambda tokens: tell("counting", tokens, 0, 0.0))
    seconds = {"seconds": time.perf_counter() - begun, "read_seconds": read_s}
    if replay:
        with surroundings(ctx).store() as store:
            store.trail.note("corpus build", out.name, {"documents": corpus.facts["documents"]})
    _show_built(out, corpus, table, seconds, order, as_json=as_json)


def _require_sources(out: Path, files: Sequence[Path], replay: bool) -> None:
    """Raise BadCorpus where there is nothing to make it of, or a file is not there."""
    from osd.drafters.ngram.errors import BadCorpus

    if not files and not replay:
        raise BadCorpus(path=out, reason="there is nothing to make it of: give files, or --replay.")
    if missing := [path for path in files if not path.is_file()]:
        raise BadCorpus(path=missing[0], reason="there is no such file.")


def _builder(out: Path, files: Sequence[Path], replay: bool, fields: tuple[str, ...], encoder: Encoder) -> Builder:
    """Begin a build, or go on with the one that was interrupted. Raises BadCorpus."""
    from osd.drafters.ngram.corpus import Builder, BuildProgress
    from osd.drafters.ngram.encoding import REPLAY

    sources = [str(path.absolute()) for path in files] + [REPLAY] * replay
    builder = Builder(out, BuildProgress(tuple(sources), fields, encoder.digest))
    if builder.progress.tokens:
        note(f"Going on after {count(builder.progress.tokens)} tokens.")
    return builder


def _read(ctx: typer.Context, encoder: Encoder, fields: tuple[str, ...], source: str, line: int) -> Iterator[Batch]:
    """Yield a source's texts as tokens, from a line on."""
    from osd.drafters.ngram.encoding import REPLAY, replay_batches, text_batches

    if source != REPLAY:
        yield from text_batches(encoder, Path(source), fields, line)
        return
    with surroundings(ctx).store() as store:
        yield from replay_batches(encoder, store, line)


def _show_built(
    out: Path, corpus: Corpus, table: Table, seconds: dict[str, float], order: int, *, as_json: bool
) -> None:
    """Print what was made."""
    from osd.drafters.ngram.corpus_stats import table_stats

    made = {name: corpus.facts[name] for name in ("documents", "tokens", "bytes")}
    result = {"corpus": str(out), **made, **{name: round(s, 2) for name, s in seconds.items()}, **table_stats(table)}
    if as_json:
        print_json(result)
        return
    say(str(out))
    note(
        f"{counted(result['documents'], 'document')}, {count(result['tokens'])} tokens, "
        f"{count(result['n_grams'][order])} {order}-grams in {size(result['table_bytes'])}; {seconds['seconds']:.1f} s."
    )


@contextmanager
def told_bar() -> Iterator[Any]:
    """Show progress: the current step, tokens so far, and megabytes a second."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[said]}")
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, said="")

        def tell(what: str, tokens: int, read: int, seconds: float) -> None:
            rate = f", {read / 1e6 / seconds:.1f} MB/s" if seconds else ""
            bar.update(task, description=what, said=f"{count(tokens)} tokens{rate}")

        yield tell


@app.command()
def stats(
    folder: FolderArgument,
    top: Annotated[int, typer.Option(help="Contexts shown, the most frequent.", min=0)] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show the statistics of a corpus' table.

    Coverage is the share of the corpus' own tokens that are among the first 1, 4 and 16 successors of their context.
    """
    from osd.drafters.ngram.corpus import open_corpus
    from osd.drafters.ngram.corpus_stats import coverage, table_stats, top_contexts
    from osd.drafters.ngram.encoding import Encoder
    from osd.drafters.ngram.files import load_table

    corpus = open_corpus(folder)
    table = load_table(folder, corpus.facts["tokenizer"])
    encoder = Encoder(folder)
    covered = coverage(table, corpus)
    rows = [
        {
            "context": encoder.show(each.context), "successors": [encoder.show([token]) for token in each.successors],
            "count": each.count,
        }
        for each in top_contexts(table, top)
    ]  # fmt: skip
    facts = {**{name: corpus.facts[name] for name in ("documents", "tokens")}, **table_stats(table)}
    if as_json:
        print_json({**facts, "coverage": covered, "top": rows})
        return
    grams = {f"{n}-grams": count(number) for n, number in facts.pop("n_grams").items()}
    shown = {name: size(value) if name == "table_bytes" else count(value) for name, value in facts.items()}
    shown["bytes_per_n_gram"] = f"{facts['bytes_per_n_gram']:.1f}"
    print_facts({**shown, **grams, **{f"coverage {k}": share(value) for k, value in covered.items()}})
    print_table(rows, COLUMNS)


@app.command()
def export(
    folder: FolderArgument,
    sglang: Annotated[Path, typer.Option(help="A file that is not there yet.", metavar="OUT.json")],
    corpus_id: Annotated[str | None, typer.Option("--id", help="Its name there. Default: the folder's.")] = None,
) -> None:
    """Write a corpus as the body of SGLang's POST /add_external_corpus.

    Send it with `curl -H 'Content-Type: application/json' -d @OUT.json http://HOST:PORT/add_external_corpus`.
    """
    from osd.drafters.ngram.corpus import open_corpus
    from osd.drafters.ngram.encoding import Encoder
    from osd.drafters.ngram.files import require_tokenizer
    from osd.drafters.ngram.sglang import export_sglang

    corpus, encoder = open_corpus(folder), Encoder(folder)
    require_tokenizer(f"The corpus {folder}", corpus.facts["tokenizer"], encoder.digest)
    written = export_sglang(corpus, encoder, sglang, corpus_id or folder.absolute().name)
    say(str(sglang))
    note(f"{counted(written, 'document')}.")
