"""`osd stats gain`: what drafting costs and brings, by draft or by attached engine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from osd.attached.overview import engine_gains
from osd.cli.context import CommandContext
from osd.cli.options import Folder
from osd.cli.out import NUMBER, Format, TableOutput, columns, count, note
from osd.cli.stats import DraftFilter, app
from storage.errors import BadSetting

if TYPE_CHECKING:
    from storage.insights.service import CostAnswer
    from storage.versions.feature_kinds import ModelSize


def _flops(value: float) -> str:
    """Format FLOPs in a suitable unit."""
    for unit in ("", "k", "M", "G", "T", "P", "E"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}FLOP"
        value /= 1000
    return f"{value:.3g} ZFLOP"


COST = columns(
    {"flops_saved": Format(_flops, right=True)},
    draft="draft", emitted="tokens", flops_saved="FLOPs saved", bytes_saved="reading saved",
    decode_seconds="decoding", without_seconds="without a draft", training_seconds="training",
    net_gain_seconds="net gain", update_share="training /decoding", pays_in_seconds="pays for itself in",
)  # fmt: skip
TWO, WHOLE = Format("{:.2f}".format, right=True), Format("{:.0f}".format, right=True)
ENGINES = columns(
    {"rows": NUMBER, "length": NUMBER, "accepted": TWO}
    | dict.fromkeys(("rate", "without", "tpot_ms", "tpot_without_ms"), WHOLE)
    | dict.fromkeys(("gain", "error", "break_even", "net"), TWO)
    | dict.fromkeys(("harvesting", "learning"), Format("{:.1%}".format, right=True)),
    engine="engine", rows="requests", length="drafts", rate="tokens/s", without="tokens/s without",
    tpot_ms="ms per token", tpot_without_ms="ms without", gain="gain",
    error="±", harvesting="harvesting", learning="learning", net="net gain",
    accepted="accepted /drafted", break_even="pays from", verdict="",
)  # fmt: skip


@app.command()
def gain(
    here: CommandContext,
    wanted: DraftFilter,
    output: TableOutput,
    target: Annotated[Folder | None, "Folder of the target, for its size. Default: serve.target."] = None,
    by: Annotated[Literal["draft", "engine"], "By draft of our own servers, or by attached engine."] = "draft",
) -> None:
    """Show what drafting gains: arithmetic, memory traffic and seconds spent and saved, by draft; or tokens a second.

    FLOPs and bytes follow from counts and model sizes (OSD, appendices A.4 and A.5); each request is counted as if it
    were alone in its batch. Net gain is decode seconds saved − training seconds; saved is against rounds without a
    draft, whose time is measured where there are such rounds and else fitted. Training pays for itself once the gains
    of the versions that served, as the gate measured them, have saved what it took; 0: it has.

    By engine: tokens a second and a request's time per output token, with and without drafting, as each attached engine
    measures them in turns on its own traffic, and the acceptance from which drafting pays there. Net gain is the gain
    less the share of its time that harvesting takes, and the share of its machine's processor time that training runs
    took in the last hour: all that learning can cost where the machine is full.

    Examples: `osd stats gain --since 7d --target models/target`, `osd stats gain --by engine`
    """
    from osd.cli.stats_picture import bars
    from storage.insights.runs import pay_backs
    from storage.insights.service import Answers

    with here.store() as store:
        if by == "engine":
            found = engine_gains(store)
            empty = "No engine has said yet what drafting gains; docs/vllm.md has what it takes."
            output.show(found, ENGINES, lambda: bars(found, ["engine"], "gain", "gain"), empty=empty)
            return
        large = _target(target, here)
        answer = Answers(store).cost(wanted.window(), target=large)
        paid = {row.draft: row.pays_in_seconds for row in pay_backs(store)}
    rows = [row.as_dict() | {"pays_in_seconds": paid.get(row.draft)} for row in answer.rows]
    assumption = _assumption(answer)
    output.show(
        rows, COST, lambda: bars(rows, ["draft"], "net_gain_seconds", "net gain, seconds"),
        whole={"drafts": rows, "target": large and asdict(large), "assumption": assumption},
    )  # fmt: skip
    if rows and not output.as_json:
        note(assumption)


def _target(asked: Path | None, here: CommandContext) -> ModelSize | None:
    """Return the target's size; None where only its hub name is known. Raises BadSetting for a folder without
    weights."""
    from osd.server.start import named_target
    from storage.versions.feature_kinds import model_size

    found = model_size(asked or Path(named_target(here.settings.serve)))
    if found is None and asked is not None:
        raise BadSetting(source="option", key="--target", reason=f"there are no .safetensors files in {asked}")
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
