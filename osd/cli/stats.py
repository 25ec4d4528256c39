"""`osd stats`: statistics of drafting and training. It formats the answers of storage.insights.

What versions changed is in osd.cli.stats_versions, what drafting gains in osd.cli.stats_gain, and the pictures are in
osd.cli.stats_picture.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.command import CommandGroup
from osd.cli.context import CommandContext
from osd.cli.drafts import holds_of, tell_holds
from osd.cli.options import Id, Moment, Name
from osd.cli.out import Format, Row, TableOutput, columns, note, when
from storage.names import lossy_mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from storage.outcomes.outcome_window import Window

app = CommandGroup("Ask how well drafts guess, why, and what it brings.")

GROUPS = ("route", "version", "controller", "tenant", "worker", "engine", "minute", "hour", "day")
"""Groups of storage.outcomes.outcomes, repeated here so that help needs no database library; a test compares them."""
PLACE_GROUPS = ("route", "version", "minute", "hour", "day")
TIMES = ("minute", "hour", "day")
Groups = Annotated[str, typer.Option(metavar="GROUPS")]


ALPHA = {"alpha": "α", "draft_acceptance_rate": "accepted /drafted"}
MEASURES = columns(
    {"mean_acceptance_length": Format("{:.2f}".format, right=True)},
    requests="requests", **ALPHA, mean_acceptance_length="emitted /round", discard_rate="discarded /emitted",
    verification_rate="rounds /emitted", emitted="tokens",
)  # fmt: skip
"""Measures shown in a table; JSON and CSV have every measure and every sum."""
PLACES = columns(
    position="place", **ALPHA, drafted="drafted", accepted="accepted", refused="refused", wasted="not judged"
)
RUNS = columns(
    {"run": Format(lambda value: value[:8], whole=True), "gain": Format(lambda value: f"{value:+.4f}", right=True)},
    run="run", draft="draft", state="state", started_at="started", began="because", seconds="took",
    training_seconds="of it training", requests="requests", positions="positions", gain="gain by the gate",
    version="version", reason="reason",
)  # fmt: skip


@dataclass(frozen=True)
class Stretch:
    """The time that is asked about."""

    since: Moment | None = None
    """From then on: an age (15m, 2h, 7d) or a date."""
    until: Moment | None = None
    """Before then: an age or a date."""

    def window(self) -> Window:
        """Return them as the store takes them."""
        from storage.outcomes.outcome_window import Window

        return Window(**asdict(self))


@dataclass(frozen=True)
class DraftFilter(Stretch):
    """The draft that is asked about, and when."""

    draft: Name | None = None
    """This draft only."""


@dataclass(frozen=True)
class OutcomeFilter(Stretch):
    """The traffic that is asked about."""

    route: Name | None = None
    """This route only."""
    draft: Name | None = None
    """This draft only."""
    version: Id | None = None
    """This draft version only."""


@app.command()
def acceptance(
    here: CommandContext,
    wanted: OutcomeFilter,
    output: TableOutput,
    by: Annotated[Groups, f"Comma-separated: {', '.join(GROUPS)}; one time at most."] = "route,version",
) -> None:
    """Show acceptance by route, draft version, gamma controller, tenant, server and time.

    α is the chance that a drafted token is accepted given that those before it were: accepted ÷ (accepted +
    rejections). Requests count where they finished, tokens and rounds under the version that drafted them. A worker is
    one serving process; an engine is an attached one by its name, and `osd` for all of our own.

    Examples: `osd stats acceptance --by version`, `osd stats acceptance --by engine,version`,
    `osd stats acceptance --by route,hour --since 2d --csv`,
    `osd stats acceptance --by route,day --picture alpha.png`
    """
    from storage.insights.recent import undrafted
    from storage.insights.service import Answers

    names, window = _names(by), wanted.window()
    with here.store() as store:
        found = Answers(store).acceptance(window, names)
        modes = {lossy_mode(str(row.by["controller"])) for row in Answers(store).acceptance(window, ["controller"])}
        holds, quiet = holds_of(store, wanted.draft), undrafted(store.db)
    for said in quiet:
        note(said)
    _tell_lossy(modes - {""})
    rows = [row.as_dict() for row in found]
    which = "yet" if wanted == OutcomeFilter() else "that fit these options"
    output.show(
        rows, [*columns(**{name: name for name in names}), *MEASURES], lambda: _draw(rows, names),
        empty=f"No requests have been recorded {which}.",
    )  # fmt: skip
    tell_holds(holds if output.is_table else {})


def _tell_lossy(modes: Collection[str]) -> None:
    if modes:
        note(
            f"Some of it was accepted lossily (serve.lossy = {', '.join(sorted(modes))}): more than the target's "
            "distribution allows. `--by controller` tells it apart."
        )


@app.command()
def positions(
    here: CommandContext,
    wanted: OutcomeFilter,
    output: TableOutput,
    by: Annotated[Groups, f"Comma-separated: {', '.join(PLACE_GROUPS)}; one time at most."] = "",
) -> None:
    """Show acceptance by place in the draft.

    A table counts places from 1; JSON and CSV from 0, as vLLM's metric does. What was drafted behind a refused token is
    not judged.

    Example: `osd stats positions --by version --since 7d --picture places.png`
    """
    from osd.cli.stats_picture import places
    from storage.insights.service import Answers

    names = _names(by)
    with here.store() as store:
        rows = [row.as_dict() for row in Answers(store).positions(wanted.window(), names)]
    output.show(
        rows, [*columns(**{name: name for name in names}), *PLACES], lambda: places(rows, names),
        empty="No places in drafts have been counted that fit these options.",
    )  # fmt: skip


def _names(by: str) -> list[str]:
    return [name.strip() for name in by.split(",") if name.strip()]


def _draw(rows: Sequence[Row], names: list[str]) -> Figure:
    from osd.cli.stats_picture import bars, over_time

    time = next((name for name in names if name in TIMES), None)
    if time is None:
        return bars(rows, names, "alpha", "acceptance rate α")
    return over_time(rows, time, [name for name in names if name != time])


@app.command()
def runs(
    here: CommandContext,
    wanted: DraftFilter,
    output: TableOutput,
    limit: Annotated[int, typer.Option(help="Runs at most, newest first.", metavar="N", min=1)] = 20,
) -> None:
    """Show training runs: why they began, how long they took, what they trained on, what came of them.

    Example: `osd stats runs --since 1d --draft default`
    """
    from osd.cli.stats_picture import bars
    from storage.insights.service import Answers

    with here.store() as store:
        found = Answers(store).runs(wanted.window(), limit=limit)
        holds = holds_of(store, wanted.draft)
    rows: list[dict[str, Any]] = [asdict(row) for row in found]
    labelled = [row | {"label": f"{when(row['started_at'])} {row['state']}"} for row in rows]
    output.show(
        rows, RUNS, lambda: bars(labelled, ["label"], "seconds", "seconds from claim to end"),
        empty="No training runs have been recorded that fit these options.",
    )  # fmt: skip
    tell_holds(holds if output.is_table else {})
