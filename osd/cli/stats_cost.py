"""`osd stats cost` and `osd stats runs`: costs and savings of speculation and training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.context import surroundings
from osd.cli.holds import holds_of, tell_holds
from osd.cli.options import JsonOption
from osd.cli.out import Column, count, note, share, size, when
from osd.cli.stats_show import (
    CsvOption,
    PictureOption,
    SinceOption,
    StatsDraftOption,
    UntilOption,
    show,
)
from osd.server.start import choose_pair
from storage.errors import BadSetting

if TYPE_CHECKING:
    from storage.insights.service import CostAnswer
    from storage.insights.sizes import ModelSize


def _flops(value: float) -> str:
    """Format FLOPs in a suitable unit."""
    for unit in ("", "k", "M", "G", "T", "P", "E"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}FLOP"
        value /= 1000
    return f"{value:.3g} ZFLOP"


def _bytes(value: float) -> str:
    return f"−{size(-value)}" if value < 0 else size(value)


def _seconds(value: float) -> str:
    return f"{value:,.1f} s"


COST = (
    Column("draft", "draft", whole=True),
    Column("emitted", "tokens", count, right=True),
    Column("flops_saved", "FLOPs saved", _flops, right=True),
    Column("bytes_saved", "reading saved", _bytes, right=True),
    Column("decode_seconds", "decoding", _seconds, right=True),
    Column("without_seconds", "without a draft", _seconds, right=True),
    Column("training_seconds", "training", _seconds, right=True),
    Column("net_gain_seconds", "net gain", _seconds, right=True),
    Column("update_share", "training /decoding", share, right=True),
)
RUNS = (
    Column("run", "run", lambda value: value[:8], whole=True),
    Column("draft", "draft", whole=True),
    Column("state", "state"),
    Column("started_at", "started", when, whole=True),
    Column("began", "because"),
    Column("seconds", "took", _seconds, right=True),
    Column("training_seconds", "of it training", _seconds, right=True),
    Column("requests", "requests", count, right=True),
    Column("positions", "positions", count, right=True),
    Column("gain", "gain by the gate", lambda value: f"{value:+.4f}", right=True),
    Column("version", "version"),
    Column("reason", "reason"),
)


def cost(
    ctx: typer.Context,
    target: Annotated[
        Path | None,
        typer.Option(help="Folder of the target, for its size. Default: serve.target.", metavar="DIR"),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    draft: StatsDraftOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    picture: PictureOption = None,
) -> None:
    """Show arithmetic, memory traffic and seconds spent and saved, and the net gain, by draft.

    FLOPs and bytes follow from counts and model sizes (OSD, appendices A.4 and A.5); each request is counted as if it
    were alone in its batch. Net gain is decode seconds saved − training seconds; saved is against rounds without a
    draft, whose time is measured where there are such rounds and else fitted.

    Example: `osd stats cost --since 7d --target models/target`
    """
    from osd.cli.stats_picture import bars
    from storage.insights.service import Answers
    from storage.outcomes.outcome_window import Window

    around = surroundings(ctx)
    with around.store() as store:
        large = _target(target or Path(choose_pair(around.settings.serve).target), asked=target is not None)
        answer = Answers(store).cost(Window(since, until, draft=draft), target=large)
    rows = [row.as_dict() for row in answer.rows]
    assumption = _assumption(answer)
    show(
        rows, COST, as_json=as_json, as_csv=as_csv, picture=picture,
        draw=lambda: bars(rows, ["draft"], "net_gain_seconds", "net gain, seconds"),
        whole={"drafts": rows, "target": large and asdict(large), "assumption": assumption},
    )  # fmt: skip
    if rows and not as_json:
        note(assumption)


def _target(folder: Path, asked: bool) -> ModelSize | None:
    """Return the target's size; None where only its hub name is known. Raises BadSetting for a folder without
    weights."""
    from storage.insights.sizes import model_size

    found = model_size(folder)
    if found is None and asked:
        raise BadSetting(source="option", key="--target", reason=f"there are no .safetensors files in {folder}")
    return found


def _assumption(answer: CostAnswer) -> str:
    """Describe how the seconds without a draft were estimated."""
    plain = answer.plain_round
    if plain is None:
        return "What a round without a draft takes is not known: none was served, and drafts were all of one length."
    how = "the mean of" if plain.how == "measured" else "a straight line through the verifying times of"
    return (
        f"Assumed: without a draft every token takes {plain.ms:.2f} ms, {how} the newest {count(plain.rounds)} rounds "
        "that say so; a request's time is its share of its batch's."
    )


def runs(
    ctx: typer.Context,
    since: SinceOption = None,
    until: UntilOption = None,
    draft: StatsDraftOption = None,
    limit: Annotated[int, typer.Option(help="Runs at most, newest first.", metavar="N", min=1)] = 20,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    picture: PictureOption = None,
) -> None:
    """Show training runs: why they began, how long they took, what they trained on, what came of them.

    Example: `osd stats runs --since 1d --draft default`
    """
    from osd.cli.stats_picture import bars
    from storage.insights.service import Answers
    from storage.outcomes.outcome_window import Window

    with surroundings(ctx).store() as store:
        found = Answers(store).runs(Window(since, until, draft=draft), limit=limit)
        holds = holds_of(store, draft)
    rows: list[dict[str, Any]] = [asdict(row) for row in found]
    labelled = [row | {"label": f"{when(row['started_at'])} {row['state']}"} for row in rows]
    show(
        rows, RUNS, as_json=as_json, as_csv=as_csv, picture=picture,
        draw=lambda: bars(labelled, ["label"], "seconds", "seconds from claim to end"),
        empty="No training runs have been recorded that fit these options.",
    )  # fmt: skip
    tell_holds({} if as_json or as_csv else holds)
