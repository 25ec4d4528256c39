"""`osd router teach`, `forget`, `export`, `import`: examples and routes from and to files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from osd.cli.context import CommandContext
from osd.cli.options import Confirmation
from osd.cli.out import Output, counted, say
from osd.cli.router import app
from osd.prompts import open_bytes
from storage.errors import BadRouteFile

ENOUGH = 8
"""Examples of a topic from which on it is recognised more often than not."""


@dataclass(frozen=True)
class TaughtExamples:
    """Examples of topics."""

    topic: Annotated[str, typer.Argument()] | None = None
    """The topic that the text is an example of."""
    text: Annotated[str, typer.Argument()] | None = None
    """One prompt of that topic."""
    file: Path | None = None
    """JSON lines, plain or .gz: `text` or `prompt`, and `topic`, `label` or `route` unless TOPIC is given."""

    def pairs(self) -> list[tuple[str, str]]:
        """Return (topic, text) of each. Raises BadParameter, BadRouteFile."""
        if (self.file is None) == (self.text is None) or (self.text is not None and self.topic is None):
            raise typer.BadParameter("give a TOPIC and a TEXT, or --file with or without a TOPIC")
        if self.text is not None:
            return [(str(self.topic), self.text)]
        return list(read_examples(self.file or Path(), self.topic))


@app.command()
def teach(here: CommandContext, examples: TaughtExamples, output: Output) -> None:
    """Give examples of a topic, so that routes can match it.

    Examples are kept in the database as `privacy.redact` leaves them, until `osd router forget`: give none that must
    not be kept. Teaching a known text under another topic moves it.

    Examples: `osd router teach sql "How many users signed up in May?"`, `osd router teach --file labelled.jsonl`
    """
    from router.classifier_models import prepare

    pairs = examples.pairs()
    with here.store() as store:
        prepare(store, store.examples.preview(pairs))
        taught = store.examples.teach(pairs)
        counts = store.examples.counts()
    known = f", {taught.known} known already" if taught.known else ""
    words = f"{counted(taught.new, 'new example')}, {taught.moved} moved{known}. {_taught_so_far(counts)}"
    output.words({**asdict(taught), "topics": counts}, words)


def _taught_so_far(counts: Mapping[str, int]) -> str:
    """Summarise the topics taught so far, and what is still to be taught."""
    if not counts:
        return "No topic has an example."
    rarest = min(counts, key=lambda topic: counts[topic])
    found = f"{counted(len(counts), 'topic')}, {counted(sum(counts.values()), 'example')} in all."
    if counts[rarest] < ENOUGH:
        return f"{found} {rarest} has {counts[rarest]}: give {ENOUGH} or more."
    if len(counts) == 1:
        return f"{found} Beside no other topic, nearly every prompt looks like {rarest}: teach what is not, too."
    return found


@app.command()
def forget(
    here: CommandContext,
    topic: Annotated[str, typer.Argument(help="A topic that was taught.", metavar="TOPIC")],
    consent: Confirmation,
    output: Output,
) -> None:
    """Delete a topic's examples, and the models that were made of them; servers learn the rest anew."""
    from router.classifier_models import prepare
    from storage.errors import UnknownTopic

    with here.store() as store:
        counts = store.examples.counts()
        if topic not in counts:
            raise UnknownTopic(topic=topic, known=", ".join(counts) or "none")
        consent.ask(f"Delete {counted(counts[topic], 'example')} of {topic}? This cannot be undone.")
        prepare(store, [(other, text) for other, text in store.examples.list() if other != topic])
        gone = store.examples.forget(topic)
    output.words({"topic": topic, "examples": gone}, f"{counted(gone, 'example')} of {topic} deleted.")


@dataclass(frozen=True)
class RouteExportOptions:
    """The file, and what it holds."""

    destination: Annotated[Path, typer.Argument(metavar="FILE")] | None = None
    """A file that is not there yet. Default: stdout."""
    examples: bool = False
    """Taught examples too; they are prompts."""


@app.command("export")
def export_routes(here: CommandContext, options: RouteExportOptions) -> None:
    """Write routes and pins as JSON, for `osd router import` on another machine. Drafts are named, not copied."""
    from storage.files.files import writing
    from storage.routes.route_files import RouteFile

    with here.store() as store:
        plan = store.routes.plan()
        kept = tuple(store.examples.list()) if options.examples else ()
    text = json.dumps(RouteFile(plan.routes, plan.pins, kept).as_facts(), indent=2, ensure_ascii=False) + "\n"
    if options.destination is None:
        say(text.rstrip("\n"))
        return
    with writing(options.destination), options.destination.open("x", encoding="utf-8") as out:
        out.write(text)
    say(str(options.destination))


@app.command("import")
def import_routes(
    here: CommandContext,
    source: Annotated[Path, typer.Argument(help="What `osd router export` wrote.", metavar="FILE")],
    consent: Confirmation,
    output: Output,
    replace: Annotated[bool, "Remove routes and pins that the file does not have."] = False,
) -> None:
    """Add and change routes, pins and examples from a file: all of them, or nothing when something is wrong."""
    from router.classifier_models import prepare
    from storage.routes.route_files import read

    wanted = read(source)
    with here.store() as store:
        if replace:
            consent.ask(f"Remove every route and pin that {source} does not have?")
        if wanted.examples:
            prepare(store, store.examples.preview(wanted.examples))
        changes = store.routes.apply(wanted.routes, wanted.pins, examples=wanted.examples, replace=replace)
        revision = store.routes.revision()
    output.words({"changes": changes, "revision": revision}, f"{counted(changes, 'change')}.")


def read_examples(path: Path, topic: str | None) -> Iterator[tuple[str, str]]:
    """Yield (topic, text) of every line. Raises BadRouteFile at the first line that lacks one of them."""
    try:
        with open_bytes(path) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield read_example(path, number, line, topic)
    except (OSError, EOFError) as error:
        raise BadRouteFile(path=path, reason=f"It cannot be read ({getattr(error, 'strerror', error)}).") from None


def read_example(path: Path, number: int, line: bytes, topic: str | None) -> tuple[str, str]:
    """Return one line's topic and text; ``topic``, if given, overrides the line's."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise BadRouteFile(path=path, reason=f"Line {number} is not JSON ({error}).") from None
    if not isinstance(fields, dict):
        raise BadRouteFile(path=path, reason=f"Line {number} is not a JSON object.")
    label = topic or next((fields[key] for key in ("topic", "label", "route", "domain") if fields.get(key)), None)
    text = next((fields[key] for key in ("text", "prompt") if fields.get(key)), None)
    if not isinstance(label, str) or not isinstance(text, str):
        raise BadRouteFile(path=path, reason=f"Line {number} needs a text or prompt, and a topic, label or route.")
    return label, text
