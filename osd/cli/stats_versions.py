"""`osd stats change`, `tokens`, `rejections`: what a version changed, which tokens it learned, which are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.context import CommandContext
from osd.cli.options import Count, Folder, Id, Moment, Name, span
from osd.cli.out import NUMBER, TIME, Format, Row, TableOutput, columns
from osd.cli.stats import OutcomeFilter, app
from osd.server.start import named_target
from storage.errors import BadSetting
from storage.records import DEFAULT_DRAFT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from storage.outcomes.outcome_window import Window
    from storage.settings import ServeSettings
    from storage.store import Store

FILE = "tokenizer.json"
Kind = Annotated[str, typer.Option(metavar="KIND")]
Text = Callable[[int], str | None]
CHANGE = columns(
    {"route": Format(lambda name: "all routes" if name == "*" else name, whole=True), "began": TIME},
    route="route", began="began", before="α before", after="α after", difference="difference", low="from", high="to",
    requests_before="requests before", requests_after="after", verdict="verdict",
)  # fmt: skip
COUNTED = columns(rejections="rejections", share="share", alpha="α there")
KEYS = {
    "position": columns(position="place"),
    "route": columns(route="route"),
    "token": columns({"drafted": NUMBER}, drafted="drafted", drafted_text="text", wanted="wanted", wanted_text="text"),
}
MARKS = {"position": "position", "route": "route", "token": "wanted"}
"""Kind of rejections -> the key that only its rows have."""
TOKENS = columns(
    rank="rank", token="token", token_text="text", precision_before="precision before", precision_after="after",
    precision_gain="gain", recall_before="recall before", recall_after="after", recall_gain="gain",
    appeared_after="times after",
)  # fmt: skip


@dataclass(frozen=True)
class ChangeOptions:
    """The change that is looked at, and how."""

    version: Annotated[str, typer.Argument(metavar="[ID]")] | None = None
    """Default: the draft's current version."""
    draft: Name = DEFAULT_DRAFT
    """The draft whose versions are meant."""
    window: Annotated[float, typer.Option(parser=span, metavar="TIME", show_default="1d")] = "1d"  # type: ignore[assignment]
    """Time on either side: 6h, 2d."""
    confidence: Annotated[float, typer.Option(metavar="P")] = 0.95
    """Confidence of the intervals, between 0 and 1."""


@app.command()
def change(here: CommandContext, options: ChangeOptions, output: TableOutput) -> None:
    """Show acceptance before and after a version began to serve, with an interval, by route.

    Before are the draft's other versions, after is this one. Interval of a difference of ratios, from minutes (window
    up to 6 h), hours (up to 4 d) or days, which it takes as independent: a change of traffic at the same moment shows
    in it too.

    Example: `osd stats change default-000007-1f2e3d4c --window 2d`
    """
    from osd.cli.stats_picture import changes
    from storage.insights.service import Answers

    version = options.version
    with here.store() as store:
        name = (store.versions.get(version) if version else store.versions.current(options.draft)).id
        found = Answers(store).change(name, window=options.window, confidence=options.confidence)
    rows = [asdict(row) for row in found]
    output.show(rows, CHANGE, lambda: changes(rows), empty=f"{name} has not served yet.")


@dataclass(frozen=True)
class TokenOptions:
    """How many tokens are shown, from how many requests, and as which text."""

    top: Count = 15
    """Rows of tokens at most."""
    requests: Count = 400
    """Newest kept requests that are read, on each side."""
    tokenizer: Folder | None = None
    """Folder with tokenizer.json, to show tokens as text. Default: the target's."""


@dataclass(frozen=True)
class TokenSides:
    """What is compared."""

    before: Id | None = None
    """A version. Default: the parent of --after."""
    after: Id | None = None
    """A version. Default: the current one."""
    split: Moment | None = None
    """Compare before and after a moment instead of two versions."""
    draft: Name = DEFAULT_DRAFT
    """The draft whose versions are meant."""
    route: Name | None = None
    """This route only."""
    sort: Name = "precision"
    """precision, recall: greatest gain first; rank: most frequent first."""
    frequent: Count = 100
    """Most frequent tokens that are looked at."""


@app.command()
def rejections(
    here: CommandContext,
    wanted: OutcomeFilter,
    options: TokenOptions,
    output: TableOutput,
    by: Annotated[Kind | None, "position, route or token; CSV and a picture need one."] = None,
) -> None:
    """Show where rejections concentrate, and what the target wanted instead.

    By place in the draft and by route from the counters; by token from the newest kept requests. α of a pair of tokens
    is how often the drafted one is accepted.

    Examples: `osd stats rejections --since 1d`, `osd stats rejections --by token --route sql --top 30 --csv`
    """
    from storage.insights.service import Answers

    kinds = [by] if by else list(KEYS)
    if unknown := [kind for kind in kinds if kind not in KEYS]:
        raise BadSetting(source="option", key="--by", reason=f"{unknown[0]!r} is none of {', '.join(KEYS)}")
    if by is None and (output.as_csv or output.picture):
        raise BadSetting(source="option", key="--by", reason="CSV and a picture hold one of position, route, token")
    with here.store() as store:
        found = Answers(store).rejections(wanted.window(), top=options.top, requests=options.requests)
    text = token_text(tokenizer_file(options.tokenizer, here.settings.serve))
    every = with_text([row.as_dict() for row in found], text, ["drafted", "wanted"])
    parts = {kind: [row for row in every if MARKS[kind] in row] for kind in kinds}
    for shown, rows in {"all": every}.items() if output.as_json and by is None else parts.items():
        columns = [*KEYS.get(shown, ()), *COUNTED]
        output.show(
            rows, columns, lambda: _draw(parts), empty=f"No rejections have been recorded by {shown}.",
            whole=parts if shown == "all" else None,
        )  # fmt: skip


def _draw(parts: dict[str, list[dict[str, object]]]) -> Figure:
    """Draw the one kind that was asked for."""
    from osd.cli.stats_picture import bars

    ((kind, rows),) = parts.items()
    shown: list[Row] = [row | {"label": _label(kind, row)} for row in rows]
    return bars(shown, ["label"], "share", "share of the rejections")


def _label(kind: str, row: dict[str, object]) -> str:
    if kind == "token":
        return " → ".join(repr(row[f"{key}_text"] or row[key]).replace("$", r"\$") for key in ("drafted", "wanted"))
    return f"place {int(str(row[kind])) + 1}" if kind == "position" else str(row[kind])


@app.command()
def tokens(here: CommandContext, wanted: TokenSides, options: TokenOptions, output: TableOutput) -> None:
    """Show which tokens gained most precision and recall between two versions, or two stretches of time.

    Precision: how often a token was accepted by how often it was proposed. Recall: by how often it is in the answers.
    From the samples that are kept (serve.record = verified), so it goes as far back as they do.

    Examples: `osd stats tokens --sort recall`,
    `osd stats tokens --split 2d --route sql --picture tokens.png`
    """
    from osd.cli.stats_picture import learned
    from storage.insights.service import Answers

    if wanted.sort not in ("precision", "recall", "rank"):
        reason = f"{wanted.sort!r} is none of precision, recall, rank"
        raise BadSetting(source="option", key="--sort", reason=reason)
    with here.store() as store:
        answers = Answers(store).tokens(*_sides(store, wanted), requests=options.requests, top=wanted.frequent)
    found = [row.as_dict() for row in answers]
    text = token_text(tokenizer_file(options.tokenizer, here.settings.serve))
    rows = with_text(_sorted(found, wanted.sort)[: options.top], text, ["token"])
    output.show(rows, TOKENS, lambda: learned(found))


def _sides(store: Store, wanted: TokenSides) -> tuple[Window, Window]:
    """Return what is compared: two stretches of time, or two versions. Raises BadSetting."""
    from storage.outcomes.outcome_window import Window

    route, draft, split = wanted.route, wanted.draft, wanted.split
    if split is not None:
        if wanted.before or wanted.after:
            raise BadSetting(source="option", key="--split", reason="give either a moment or versions")
        return Window(until=split, route=route, draft=draft), Window(since=split, route=route, draft=draft)
    later = store.versions.get(wanted.after) if wanted.after else store.versions.current(draft)
    earlier = store.versions.get(wanted.before).id if wanted.before else later.parent
    if earlier is None:
        raise BadSetting(source="option", key="--before", reason=f"{later.id} has no parent; name a version")
    return Window(route=route, version=earlier), Window(route=route, version=later.id)


def _sorted(rows: list[dict[str, Any]], sort: str) -> list[dict[str, Any]]:
    """Sort by greatest gain first; rows without one are left out."""
    if sort == "rank":
        return rows
    known = [row for row in rows if row[f"{sort}_gain"] is not None]
    return sorted(known, key=lambda row: -float(row[f"{sort}_gain"]))


def tokenizer_file(folder: Path | None, serve: ServeSettings) -> Path | None:
    """Return the tokenizer file of the folder, else of the configured target, else of the draft; None if none is local.

    Raises BadSetting for a folder that was asked for and has none.
    """
    if folder is not None:
        if not (folder / FILE).is_file():
            raise BadSetting(source="option", key="--tokenizer", reason=f"there is no {FILE} in {folder}")
        return folder / FILE
    names = named_target(serve), serve.draft
    return next((file for name in names if name and (file := Path(name) / FILE).is_file()), None)


def token_text(file: Path | None) -> Text:
    """Return a function from token id to text, or to None without a tokenizer. Raises BadSetting for an invalid
    file."""
    if file is None:
        return lambda _: None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise BadSetting(source="option", key="--tokenizer", reason=f"{file} cannot be read ({error})") from error

    def text(token: int) -> str | None:
        return tokenizer.decode([token], skip_special_tokens=False) or tokenizer.id_to_token(token)

    return text


def with_text(rows: Iterable[dict[str, object]], text: Text, keys: Iterable[str]) -> list[dict[str, object]]:
    """Return the rows with ``<key>_text`` after each of these keys; keys missing in a row are skipped."""
    wanted = set(keys)
    shown = []
    for row in rows:
        new: dict[str, object] = {}
        for key, value in row.items():
            new[key] = value
            if key in wanted and isinstance(value, int):
                new[f"{key}_text"] = text(value)
        shown.append(new)
    return shown
