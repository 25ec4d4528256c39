"""`osd router teach`, `forget`, `export`, `import`: examples and routes from and to files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from osd.cli.context import surroundings
from osd.cli.options import JsonOption, YesOption, confirm
from osd.cli.out import counted, note, print_json, say
from osd.cli.router import app
from osd.prompts import open_bytes
from storage.errors import BadRouteFile

ENOUGH = 8
"""Examples of a topic from which on it is recognised more often than not."""


@app.command()
def teach(
    ctx: typer.Context,
    topic: Annotated[str | None, typer.Argument(help="The topic that the text is an example of.")] = None,
    text: Annotated[str | None, typer.Argument(help="One prompt of that topic.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines, plain or .gz: `text` or `prompt`, and `topic`, `label` or `route` unless TOPIC is given."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Give examples of a topic, so that routes can match it.

    Examples are kept in the database as they are, until `osd router forget`: give none that must not be kept. Teaching
    a known text under another topic moves it.

    Examples: `osd router teach sql "How many users signed up in May?"`, `osd router teach --file labelled.jsonl`
    """
    if (file is None) == (text is None) or (text is not None and topic is None):
        raise typer.BadParameter("give a TOPIC and a TEXT, or --file with or without a TOPIC")
    from router.classifier_models import prepare

    pairs = [(str(topic), text)] if text is not None else list(read_examples(file or Path(), topic))
    with surroundings(ctx).store() as store:
        prepare(store, store.examples.preview(pairs))
        taught = store.examples.teach(pairs)
        counts = store.examples.counts()
    if as_json:
        print_json({**asdict(taught), "topics": counts})
    else:
        known = f", {taught.known} known already" if taught.known else ""
        note(f"{counted(taught.new, 'new example')}, {taught.moved} moved{known}. {_taught_so_far(counts)}")


def _taught_so_far(counts: Mapping[str, int]) -> str:
    """Summarise the topics taught so far, and what is still to be taught."""
    rarest = min(counts, key=lambda topic: counts[topic])
    found = f"{counted(len(counts), 'topic')}, {counted(sum(counts.values()), 'example')} in all."
    if counts[rarest] < ENOUGH:
        return f"{found} {rarest} has {counts[rarest]}: give {ENOUGH} or more."
    if len(counts) == 1:
        return f"{found} Beside no other topic, nearly every prompt looks like {rarest}: teach what is not, too."
    return found


@app.command()
def forget(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(help="A topic that was taught.", metavar="TOPIC")],
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic's examples, and the models that were made of them; servers learn the rest anew."""
    from router.classifier_models import prepare
    from storage.errors import UnknownTopic

    with surroundings(ctx).store() as store:
        counts = store.examples.counts()
        if topic not in counts:
            raise UnknownTopic(topic=topic, known=", ".join(counts) or "none")
        confirm(f"Delete {counted(counts[topic], 'example')} of {topic}? This cannot be undone.", yes)
        prepare(store, [(other, text) for other, text in store.examples.list() if other != topic])
        gone = store.examples.forget(topic)
    words = f"{counted(gone, 'example')} of {topic} deleted."
    print_json({"topic": topic, "examples": gone}) if as_json else note(words)


@app.command("export")
def export_routes(
    ctx: typer.Context,
    destination: Annotated[
        Path | None, typer.Argument(help="A file that is not there yet. Default: stdout.", metavar="FILE")
    ] = None,
    examples: Annotated[bool, typer.Option("--examples", help="Taught examples too; they are prompts.")] = False,
) -> None:
    """Write routes and pins as JSON, for `osd router import` on another machine. Drafts are named, not copied."""
    from storage.files.files import writing
    from storage.routes.route_files import RouteFile

    with surroundings(ctx).store() as store:
        plan = store.routes.plan()
        kept = tuple(store.examples.list()) if examples else ()
    text = json.dumps(RouteFile(plan.routes, plan.pins, kept).as_facts(), indent=2, ensure_ascii=False) + "\n"
    if destination is None:
        say(text.rstrip("\n"))
        return
    with writing(destination), destination.open("x", encoding="utf-8") as out:
        out.write(text)
    say(str(destination))


@app.command("import")
def import_routes(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(help="What `osd router export` wrote.", metavar="FILE")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove routes and pins that the file does not have.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add and change routes, pins and examples from a file: all of them, or nothing when something is wrong."""
    from router.classifier_models import prepare
    from storage.routes.route_files import read

    wanted = read(source)
    with surroundings(ctx).store() as store:
        if replace:
            confirm(f"Remove every route and pin that {source} does not have?", yes)
        if wanted.examples:
            prepare(store, store.examples.preview(wanted.examples))
        changes = store.routes.apply(wanted.routes, wanted.pins, examples=wanted.examples, replace=replace)
        revision = store.routes.revision()
    print_json({"changes": changes, "revision": revision}) if as_json else note(f"{counted(changes, 'change')}.")


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
