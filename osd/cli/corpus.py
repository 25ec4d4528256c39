"""`osd corpus`: n-gram tables made from texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn

from osd.cli.command import CommandGroup
from osd.cli.context import CommandContext
from osd.cli.out import Output, columns, count, counted, note, print_facts, print_json, print_table, say, share, size
from osd.server.start import named_target

if TYPE_CHECKING:
    from osd.drafters.ngram.corpus import Batch, Builder
    from osd.drafters.ngram.corpus_text import Encoder

app = CommandGroup("Build, look at and export the texts that n-gram drafts know.")

FolderArgument = Annotated[Path, typer.Argument(help="A corpus that `osd corpus build` made.", metavar="DIR")]
COLUMNS = columns(context="context", successors="successors", count="seen")


@dataclass(frozen=True)
class CorpusOptions:
    """What a corpus is made of, and how large its table may become."""

    out: Annotated[Path, typer.Option(metavar="DIR")]
    """A folder that is not there yet."""
    tokenizer: Annotated[Path, typer.Option(metavar="PATH")] | None = None
    """tokenizer.json of the target, or the folder with it. Default: that of the pair that osd serves."""
    files: Annotated[list[Path], typer.Argument(metavar="FILES", show_default=False)] | None = None
    """Text, .jsonl or .jsonl.gz."""
    field: Annotated[list[str], typer.Option(metavar="NAME")] | None = None
    """The field with the text, for JSON lines; may be repeated."""
    replay: bool = False
    """The requests that are kept for learning, too."""
    order: int = 4
    """n of the n-grams: 2, 3 or 4."""
    memory: Annotated[int, typer.Option(min=1)] = 256
    """Megabytes that the table may take."""
    half_life: Annotated[int, typer.Option(min=0, metavar="TOKENS")] = 0
    """Served tokens after which a count is halved; 0: never."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of JSON lines that hold texts."""
        return tuple(self.field or ["response"])


@app.command()
def build(here: CommandContext, options: CorpusOptions, output: Output) -> None:
    """Make a corpus and its n-gram table from texts.

    Interrupted, it continues when the same command is given again. A corpus of --replay holds the requests'
    tokens, and `osd replay purge` does not reach it: treat it as you treat the prompts.
    """
    from osd.drafters.ngram.corpus import build as append
    from osd.drafters.ngram.corpus_stats import table_stats
    from osd.drafters.ngram.corpus_text import Encoder
    from osd.drafters.ngram.table import TableSettings

    begun, out = time.perf_counter(), options.out
    settings = TableSettings(options.order, options.memory << 20, options.half_life)
    _require_sources(options)
    encoder = Encoder(options.tokenizer or Path(named_target(here.settings.serve)))
    builder = _builder(options, encoder)
    already, read = builder.progress.bytes, partial(_read, here, encoder, options.fields)
    with told_bar() as tell:
        append(builder, read, lambda at: tell("reading", at.tokens, at.bytes - already, time.perf_counter() - begun))
        read_s = time.perf_counter() - begun
        corpus, table = builder.finish(settings, encoder.path, lambda tokens: tell("counting", tokens, 0, 0.0))
    seconds = {"seconds": time.perf_counter() - begun, "read_seconds": read_s}
    if options.replay:
        with here.store() as store:
            store.trail.note("corpus build", out.name, {"documents": corpus.facts["documents"]})
    made = {name: corpus.facts[name] for name in ("documents", "tokens", "bytes")}
    result = {"corpus": str(out), **made, **{name: round(s, 2) for name, s in seconds.items()}, **table_stats(table)}
    if not output.as_json:
        say(str(out))
    output.words(
        result,
        f"{counted(result['documents'], 'document')}, {count(result['tokens'])} tokens, "
        f"{count(result['n_grams'][options.order])} {options.order}-grams in {size(result['table_bytes'])}; "
        f"{seconds['seconds']:.1f} s.",
    )


def _require_sources(options: CorpusOptions) -> None:
    """Raise BadCorpus where there is nothing to make it of, or a file is not there."""
    from osd.drafters.ngram import BadCorpus

    if not options.files and not options.replay:
        raise BadCorpus(path=options.out, reason="there is nothing to make it of: give files, or --replay.")
    if missing := [path for path in options.files or () if not path.is_file()]:
        raise BadCorpus(path=missing[0], reason="there is no such file.")


def _builder(options: CorpusOptions, encoder: Encoder) -> Builder:
    """Begin a build, or go on with the one that was interrupted. Raises BadCorpus."""
    from osd.drafters.ngram.corpus import Builder, BuildProgress
    from osd.drafters.ngram.corpus_text import REPLAY

    sources = [str(path.absolute()) for path in options.files or ()] + [REPLAY] * options.replay
    builder = Builder(options.out, BuildProgress(tuple(sources), options.fields, encoder.digest))
    if builder.progress.tokens:
        note(f"Going on after {count(builder.progress.tokens)} tokens.")
    return builder


def _read(here: CommandContext, encoder: Encoder, fields: tuple[str, ...], source: str, line: int) -> Iterator[Batch]:
    """Yield a source's texts as tokens, from a line on."""
    from osd.drafters.ngram.corpus_text import REPLAY, replay_batches, text_batches

    if source != REPLAY:
        yield from text_batches(encoder, Path(source), fields, line)
        return
    with here.store() as store:
        yield from replay_batches(encoder, store, line)


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
    output: Output,
    top: Annotated[int, typer.Option(help="Contexts shown, the most frequent.", min=0)] = 10,
) -> None:
    """Show the statistics of a corpus' table.

    Coverage is the share of the corpus' own tokens that are among the first 1, 4 and 16 successors of their context.
    """
    from osd.drafters.ngram.corpus import open_corpus
    from osd.drafters.ngram.corpus_stats import coverage, table_stats, top_contexts
    from osd.drafters.ngram.corpus_text import Encoder
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
    if output.as_json:
        print_json({**facts, "coverage": covered, "top": rows})
        return
    grams = {f"{n}-grams": count(number) for n, number in facts.pop("n_grams").items()}
    shown = {name: size(value) if name == "table_bytes" else count(value) for name, value in facts.items()}
    shown["bytes_per_n_gram"] = f"{facts['bytes_per_n_gram']:.1f}"
    print_facts({**shown, **grams, **{f"coverage {k}": share(value) for k, value in covered.items()}})
    print_table(rows, COLUMNS)


@dataclass(frozen=True)
class ExportOptions:
    """The file, and the corpus' name in it."""

    sglang: Annotated[Path, typer.Option(metavar="OUT.json")]
    """A file that is not there yet."""
    corpus_id: Annotated[str, typer.Option("--id")] | None = None
    """Its name there. Default: the folder's."""


@app.command()
def export(folder: FolderArgument, options: ExportOptions) -> None:
    """Write a corpus as the body of SGLang's POST /add_external_corpus.

    Send it with `curl -H 'Content-Type: application/json' -d @OUT.json http://HOST:PORT/add_external_corpus`.
    """
    from osd.drafters.ngram.corpus import open_corpus
    from osd.drafters.ngram.corpus_text import Encoder, export_sglang
    from osd.drafters.ngram.files import require_tokenizer

    corpus, encoder = open_corpus(folder), Encoder(folder)
    require_tokenizer(f"The corpus {folder}", corpus.facts["tokenizer"], encoder.digest)
    written = export_sglang(corpus, encoder, options.sglang, options.corpus_id or folder.absolute().name)
    say(str(options.sglang))
    note(f"{counted(written, 'document')}.")
