"""`python -m trainer`: the processes that train.

worker    train whatever falls due, until stopped
once      train what is due now, then leave
distil    distil a draft offline on everything that a store holds
head      train an acceptance head offline, from files of prompts
routes    find routes in the traffic, and apply what was found
ping      check whether the broker can be reached
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from osd.cli.command import with_options
from osd.models.needs_draft import UNIVERSAL
from storage.errors import BadSetting, OsdError
from storage.settings import Settings, load_settings
from trainer.lease import stop_on_signals
from trainer.routes.commands import app as routes

INTERRUPTED = 130

Config = Annotated[
    Path | None, typer.Option(help="Configuration file. Default: $OSD_CONFIG, then osd.toml here.", metavar="FILE")
]
Draft = Annotated[str | None, typer.Option(help="This draft only. Default: every draft.", metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


class TrainerGroup(TyperGroup):
    """The command group: turns an error into one line on stderr and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except OsdError as error:
            typer.echo(f"osd: {error}", err=True)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=TrainerGroup, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]},
    help="Distil drafts from what servers have recorded.",
)  # fmt: skip

app.add_typer(routes, name="routes")


@app.command()
def worker(config: Config = None, draft: Draft = None) -> None:
    """Train whatever falls due, until Ctrl-C or SIGTERM."""
    # until the worker takes over, Ctrl-C ends the process: KeyboardInterrupt could be lost in a library's callback
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    settings = load_settings(config)
    _require_learnable(settings)
    from storage.store import open_store
    from trainer.worker.app import run_worker

    open_store(settings).close()  # reports what is wrong with the store before anything starts
    status = run_worker(settings, draft)
    logging.shutdown()
    os._exit(status)  # everything is closed; an idle pool thread would delay the exit by seconds


@app.command()
def once(config: Config = None, draft: Draft = None, as_json: Json = False) -> None:
    """Train what is due now in this process, without a broker."""
    from storage.store import open_store

    settings = load_settings(config)
    _require_learnable(settings)
    if draft is not None:
        with open_store(settings) as store:
            store.versions.current(draft)  # an unknown name is reported before seconds of loading
    from trainer.worker.schedule import describe
    from trainer.worker.tasks import lower_priority, open_turns

    with stop_on_signals() as stop:
        turns = open_turns(settings, stop, draft)
        lower_priority(settings.trainer)
        with turns.store:
            runs = turns.take_turn() if draft is None else turns.train_all(draft)
    for run in runs:
        facts = {"run": run.id, "draft": run.draft, "state": run.state.value, "version": run.version, **run.result}
        typer.echo(json.dumps(facts) if as_json else describe(run))
    if not runs and not as_json:
        typer.echo("Nothing is due.")


@dataclass(frozen=True)
class DistilOptions:
    """What is distilled, and on what."""

    out: Annotated[Path, typer.Option(metavar="DIR")]
    """New folder for the distilled draft."""
    draft: Annotated[str, typer.Option(metavar="DIR")]
    """Folder of the draft to start from."""
    config: Config = None
    epochs: Annotated[int, typer.Option(min=1)] = 2
    """Passes over the samples."""
    samples: Annotated[Path, typer.Option(metavar="FILE")] | None = None
    """File of `osd replay export`. Default: the store."""
    route: list[str] | None = None
    """Requests of this route; may be repeated."""
    since: float | None = None
    """Requests from this Unix second on."""
    until: float | None = None
    """Requests before this Unix second."""
    requests: Annotated[int, typer.Option(min=1)] | None = None
    """The newest so many, at most."""
    target: Annotated[str, typer.Option(metavar="MODEL")] | None = None
    """Draw texts with this target, from the samples' prompts, as learn.sampling says: student or mixed."""
    temperature: Annotated[float, typer.Option(min=0.0)] = 1.0
    """Temperature of texts that are drawn so."""
    top_p: Annotated[float, typer.Option(min=0.01, max=1.0)] = 1.0
    """Mass of the likeliest tokens that they are drawn from."""
    as_json: Json = False


@app.command()
@with_options
def distil(options: DistilOptions) -> None:
    """Distil a draft offline on everything that a store holds, and write a plain Hugging Face folder.

    This is the upper bound of the OSD paper's Table 1: the draft sees all the data, as often as `--epochs` says. No
    target is needed, its answers are in the samples; with `--target`, and `learn.sampling` student or mixed, texts are
    drawn anew in each epoch, token by token from β p + (1 − β) q. Nothing is published.
    """
    from storage.sampling import Sampling
    from trainer.distil.offline import DrawnWith, SampleSelection, distil_offline

    chosen = SampleSelection(options.samples, options.route or None, options.since, options.until, options.requests)
    sampling, target, out = Sampling(options.temperature, top_p=options.top_p), options.target, options.out
    settings = load_settings(options.config, learn={"epochs": options.epochs})
    with stop_on_signals() as stop:
        drawn = None if target is None else DrawnWith(target, sampling)
        done = distil_offline(settings, options.draft, out, chosen, stop, drawn=drawn)
    said = f"{out}: {done['requests']} requests, loss {done['loss_last']:.4f}"
    typer.echo(json.dumps(done) if options.as_json else said)


@dataclass(frozen=True)
class HeadOptions:
    """What an acceptance head learns from, and how."""

    target: Annotated[str, typer.Option(metavar="MODEL")]
    """Folder or hub name of the target."""
    draft: Annotated[str, typer.Option(metavar="MODEL")]
    """Folder or hub name of the draft."""
    prompts: Annotated[list[Path], typer.Option(metavar="FILE")]
    """JSON lines, plain or .gz, with a `prompt` field; may be repeated."""
    out: Annotated[Path, typer.Option(metavar="DIR")]
    """New folder for the head."""
    config: Config = None
    epochs: Annotated[int, typer.Option(min=1)] = 10
    """Offline passes over the drafted tokens."""
    count: Annotated[int, typer.Option(min=1)] | None = None
    """Prompts taken from each file. Default: all."""
    max_tokens: Annotated[int, typer.Option(min=1)] = 128
    """Tokens of an answer at most."""
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0
    """Temperature of answers and proposals: that of the traffic to come."""
    top_k: Annotated[int, typer.Option(min=1)] | None = None
    """Draw from the K likeliest tokens."""
    top_p: Annotated[float, typer.Option(min=0.01, max=1.0)] = 1.0
    """Draw from the likeliest tokens of this mass."""
    mixing: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.15
    """Share of the fed tokens that are the target's own."""
    as_json: Json = False


@app.command()
@with_options
def head(options: HeadOptions) -> None:
    """Train an acceptance head for a draft offline, as the SpecDec++ paper: answer, mix, train.

    `gamma.specdecpp.head` names the folder to the servers. `[learn]` head_depth, head_reject_weight and
    head_learning_rate hold here too.
    """
    from osd.models.pair import load_pair
    from storage.sampling import Sampling
    from trainer.devices import training_device
    from trainer.heads.offline import Recipe, prompts_of, train_offline

    settings = load_settings(options.config, learn={"head_epochs": options.epochs})
    device = str(training_device(settings.trainer))
    pair = load_pair(options.target, options.draft, device=device, dtype=settings.serve.dtype)
    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    recipe, asked = (
        Recipe(options.mixing, sampling, options.max_tokens),
        prompts_of(pair, options.prompts, options.count),
    )
    with stop_on_signals() as stop:
        done = train_offline(pair, settings, asked, options.out, recipe, stop, _say)
    said = f"{options.out}: {done['tokens']} drafted tokens, loss {done['loss_last']:.4f}"
    typer.echo(json.dumps(done) if options.as_json else said)


def _say(message: str) -> None:
    typer.echo(message, err=True)


@app.command()
def ping(config: Config = None) -> None:
    """Check whether the broker can be reached; print one JSON line."""
    from trainer.worker.broker import ping as reach

    answer = reach(load_settings(config))
    typer.echo(json.dumps(answer))
    raise typer.Exit(0 if answer["ok"] else 1)


def _require_learnable(settings: Settings) -> None:
    """Raise BadSetting where what drafts cannot learn from what is recorded."""
    if settings.learn.sampling != "teacher" and not settings.serve.record_branches:
        reason = f"{settings.learn.sampling} sampling learns from the draft's own tokens behind refused ones, and they"
        reason += " are kept with serve.record_branches = true alone; set that too, or leave it at teacher"
        raise BadSetting(source="settings", key="learn.sampling", reason=reason)
    if settings.drafters.kind == UNIVERSAL:
        reason = "samples are in the target's tokens, and this draft has a vocabulary of its own; to learn, serve with"
        reason += " another drafter and a draft of the target's vocabulary"
        raise BadSetting(source="settings", key="drafters.kind", reason=reason)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("osd").setLevel(logging.INFO)
    app(prog_name="python -m trainer")
