"""``osd bench gamma``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from osd.cli.context import surroundings
from osd.cli.demo import INTERRUPTED, new_folder
from osd.cli.options import DraftOption, JsonOption, MoreFilesArgument, TargetOption, numbers
from osd.cli.out import Column, note, print_json, print_table, share
from osd.server.start import choose_pair
from storage.errors import BadSetting

if TYPE_CHECKING:
    from osd.bench.gamma.bench import Done
    from osd.bench.gamma.plan import Plan
    from osd.bench.gamma.result import Results
    from osd.demo.runner.source import Segment
    from osd.server.start import PairNames
    from storage.settings import ServeSettings, Settings

LINE_SECONDS = 20
"""Between two lines of progress where there is no terminal."""
GAMMAS = "1,2,3,4,5,6,7,8,12,16,20,24"
"""GammaTune's own list (section 5)."""


def gamma(
    ctx: typer.Context,
    files: MoreFilesArgument = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSONL file, plain or .gz, with a `prompt` field; each file is a data set. Default: the demo's own.",
            metavar="FILE",
        ),
    ] = None,
    controllers: Annotated[
        str, typer.Option(help="Names between commas. all: every one that this pair can be served with.")
    ] = "all",
    initial_gammas: Annotated[
        str, typer.Option(help="Fixed gammas everywhere, and every controller's initial gamma in the main setting.")
    ] = GAMMAS,
    temperatures: Annotated[str, typer.Option(help="The first one is the main setting's.")] = "0,1",
    batch_sizes: Annotated[str, typer.Option(help="The first one is the main setting's.")] = "1,8",
    count: Annotated[
        int, typer.Option(help="Prompts of a file in a turn; at least as many as the batch has rows.", min=1)
    ] = 2,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate a prompt.", min=2)] = 48,
    turns: Annotated[
        int, typer.Option(help="Turns of the main setting; other settings and initial gammas take half as many.", min=1)
    ] = 4,
    mix: Annotated[
        int, typer.Option(help="Add a stream over all files that changes file after so many requests.", min=0)
    ] = 0,
    random_draft: Annotated[
        bool, typer.Option("--random-draft", help="Also against the target alone with a random draft, and at batch 32.")
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Also simulate analytic for several history lengths and gamma.max.")
    ] = False,
    simulate: Annotated[
        Path | None, typer.Option(help="Replay a recording instead of decoding; needs --costs.", metavar="FILE")
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(help="Costs for --simulate: costs.json of a run, or a profile by name.", metavar="COSTS"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which prompts of a file are drawn.", metavar="N")] = 0,
    threads: Annotated[int | None, typer.Option(help="Torch threads, for every contender alike.", min=1)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; one that was stopped goes on. Default: out/bench-gamma-…", metavar="DIR"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Every gamma controller against fixed gammas, the target alone, transformers' assisted modes and the oracle.

    All decode the same prompts by turns, and each has an engine's cost model of its own. Leaves figures, pictures,
    recorded rounds and costs in a folder. Ctrl-C stops it; the same command with --out goes on. With --simulate it
    replays recorded rounds under any costs, without a model.

    Example: `osd bench gamma --target ./target --draft ./draft --prompts sql.jsonl chat.jsonl.gz --mix 20 --json`
    """
    from osd.bench.gamma.plan import Plan, choose_controllers, choose_initial

    settings = surroundings(ctx).settings
    gammas = numbers(initial_gammas, "--initial-gammas", int, 1)
    plan = Plan(
        target="", draft="", data_sets=(), prompts_digest="", controllers=choose_controllers(controllers),
        initial=choose_initial(gammas, settings.gamma.initial), gammas=gammas,
        temperatures=numbers(temperatures, "--temperatures", float, 0.0),
        batches=numbers(batch_sizes, "--batch-sizes", int, 1),
        count=count, max_tokens=max_tokens, turns=turns, mix=mix, random_draft=random_draft,
        head=str(head) if (head := settings.gamma.specdecpp.head) else None,
    )  # fmt: skip
    there = out or new_folder("bench-gamma")
    if threads is not None:
        settings = settings.changed(serve={"threads": threads})
    with _bar(there) as progress:
        insist = controllers != "all"
        if simulate:
            results, left = _simulate(settings, plan, simulate, costs, insist, sensitivity, there, progress)
        else:
            names, paths = choose_pair(settings.serve, target, draft), [*(prompts or []), *(files or [])]
            results, left = _measure(settings, plan, names, paths, seed, insist, sensitivity, there, progress)
    line = results.last_line()
    if not json:
        _show(results, line)
    for what, path in left.items():
        note(f"{what}: {path}")
    print_json(line)


def _measure(
    settings: Settings, plan: Plan, names: PairNames, paths: list[Path], seed: int, insist: bool, sensitivity: bool,
    out: Path, progress: Bar,
) -> Done:  # fmt: skip
    """Load the pair, draw the prompts, measure."""
    from osd.bench.gamma.bench import bench_gamma
    from osd.prompts import encode

    plan = replace(plan, target=names.target, draft=names.draft)
    pair = names.load(settings.serve)
    segments = _segments(settings.serve, plan, names, paths, seed)
    tokens = {each.name: [encode(pair.tokenizer, text) for text in each.prompts] for each in segments}
    plan = replace(plan, data_sets=tuple(tokens))
    return bench_gamma(pair, settings, plan, tokens, out, progress, insist=insist, sensitivity=sensitivity)


def _segments(serve: ServeSettings, plan: Plan, names: PairNames, paths: list[Path], seed: int) -> list[Segment]:
    """The data sets' prompts, as many as the plan needs; broken lines are named and passed over."""
    from osd.demo.prompts import DOMAINS
    from osd.demo.runner.source import demo_segments, file_segments, fitting

    needed = replace(plan, data_sets=tuple(map(str, paths)) or tuple(DOMAINS)).prompts_needed()
    if not paths:
        return demo_segments(needed, seed)
    segments, problems = file_segments(paths, needed, seed, fitting(names.target, serve.max_length, plan.max_tokens))
    for problem in problems:
        note(problem)
    return segments


def _simulate(
    settings: Settings, plan: Plan, path: Path, costs: str | None, insist: bool, sensitivity: bool, out: Path,
    progress: Bar,
) -> Done:  # fmt: skip
    """Read the recording and the costs, replay."""
    from osd.bench.gamma.bench import simulate_gamma
    from osd.bench.gamma.profiles import PROFILES, find_costs
    from osd.bench.gamma.rounds_file import read_recording
    from osd.models.pair import load_tokenizer

    if costs is None:
        reason = f"--simulate needs costs: costs.json of a run, or one of {', '.join(PROFILES)}"
        raise BadSetting(source="option", key="--costs", reason=reason)
    table, recording = find_costs(costs), read_recording(path)
    tokenizer = load_tokenizer(recording.target) if Path(recording.target).is_dir() else None
    return simulate_gamma(
        recording, table, settings, plan, out, progress, tokenizer=tokenizer, insist=insist, sensitivity=sensitivity
    )  # fmt: skip


class Bar:
    """The progress bar: what runs, how far, how long still. Where there is no terminal, a line now and then."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._task = bar, bar.add_task("loading", total=None)
        self._told = time.monotonic()

    def begin(self, work: float) -> None:
        """So much work is to come."""
        self._bar.update(self._task, total=work, completed=0)

    def at(self, what: str) -> None:
        """What is being done now."""
        self._bar.update(self._task, description=what)
        if self._bar.disable and time.monotonic() > self._told + LINE_SECONDS:
            self._told = time.monotonic()
            task = self._bar.tasks[self._task]
            left = "" if task.time_remaining is None else f", about {task.time_remaining / 60:.0f} min left"
            note(f"{task.percentage:.0f} %: {what}{left}")

    def say(self, text: str) -> None:
        """A line above the bar."""
        note(text)

    def did(self, work: float) -> None:
        """So much of it is done."""
        self._bar.advance(self._task, work)


@contextmanager
def _bar(out: Path) -> Iterator[Bar]:
    """Ctrl-C ends the command in good order: what is finished stays in the folder."""
    columns = (
        TextColumn("{task.description:<36}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    try:
        with Progress(*columns, transient=True, console=console, disable=not console.is_terminal) as bar:
            yield Bar(bar)
    except KeyboardInterrupt:
        note(f"Stopped. What was measured is in {out}; the same command with --out {out} goes on from there.")
        raise typer.Exit(INTERRUPTED) from None


HEADINGS = {
    "vs_best_fixed": ("÷ best fixed", share),
    "vs_target_alone": ("÷ target alone", share),
    "vs_best_assisted": ("÷ best assisted", share),
    "oracle_fraction": ("of the oracle", share),
    "discard_rate": ("discarded", share),
    "verification_rate": ("verified", share),
    "spread_over_initial_gamma": ("spread", share),
    "decision_us": ("µs", lambda value: f"{value:.1f}"),
}


def _show(results: Results, line: Mapping[str, Any]) -> None:
    """Throughput by data set, and the figures overall."""
    sets = line["data_sets"]
    rows = [
        {"name": name, **{each: sets[each][kind].get(name, {}).get("throughput") for each in sets}}
        for kind in ("controllers", "references")
        for name in line["overall"][kind]
    ]
    first = results.plan.main("")
    columns = [Column(name, name, lambda value: f"{value:.0f}", right=True) for name in sets]
    print_table(
        rows, [Column("name", "tokens a second", whole=True), *columns],
        title=f"T={first.temperature:g}, batch {first.batch}, initial γ {results.plan.initial}",
    )  # fmt: skip
    if "sensitivity" in results.more:
        _show_sensitivity(results.more["sensitivity"])
    rows = [{"name": name, **figures} for name, figures in line["overall"]["controllers"].items()]
    columns = [Column(key, heading, how, right=True) for key, (heading, how) in HEADINGS.items()]
    print_table(rows, [Column("name", "overall", whole=True), *columns])


def _show_sensitivity(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Table 12 of on-the-fly adaptation: a row a history length, a column a gamma.max."""
    rows = [{"set": name, "h": h, **rates} for name, by_history in found.items() for h, rates in by_history.items()]
    maxima = [key for key in rows[0] if key not in ("set", "h")]
    columns = [Column(m, f"γ_max {m}", lambda value: f"{value:.1f}", right=True) for m in maxima]
    title = "analytic, simulated: tokens a second by history length h and gamma.max"
    print_table(rows, [Column("set", "data set", whole=True), Column("h", "h", right=True), *columns], title=title)
