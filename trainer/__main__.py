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
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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

    lower_priority(settings.trainer)
    with stop_on_signals() as stop:
        turns = open_turns(settings, stop, draft)
        with turns.store:
            runs = turns.take_turn() if draft is None else turns.train_all(draft)
    for run in runs:
        facts = {"run": run.id, "draft": run.draft, "state": run.state.value, "version": run.version, **run.result}
        typer.echo(json.dumps(facts) if as_json else describe(run))
    if not runs and not as_json:
        typer.echo("Nothing is due.")


@app.command()
def distil(
    out: Annotated[Path, typer.Option(help="New folder for the distilled draft.", metavar="DIR")],
    draft: Annotated[str, typer.Option(help="Folder of the draft to start from.", metavar="DIR")],
    config: Config = None,
    epochs: Annotated[int, typer.Option(help="Passes over the samples.", min=1)] = 2,
    samples: Annotated[
        Path | None, typer.Option(help="File of `osd replay export`. Default: the store.", metavar="FILE")
    ] = None,
    route: Annotated[list[str] | None, typer.Option(help="Requests of this route; may be repeated.")] = None,
    since: Annotated[float | None, typer.Option(help="Requests from this Unix second on.")] = None,
    until: Annotated[float | None, typer.Option(help="Requests before this Unix second.")] = None,
    requests: Annotated[int | None, typer.Option(help="The newest so many, at most.", min=1)] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Draw texts with this target, from the samples' prompts, as learn.sampling says: student or mixed.",
            metavar="MODEL",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of texts that are drawn so.", min=0.0)] = 1.0,
    top_p: Annotated[float, typer.Option(help="Of the same.", min=0.01, max=1.0)] = 1.0,
    as_json: Json = False,
) -> None:
    """Distil a draft offline on everything that a store holds, and write a plain Hugging Face folder.

    This is the upper bound of the OSD paper's Table 1: the draft sees all the data, as often as `--epochs` says. No
    target is needed, its answers are in the samples; with `--target`, and `learn.sampling` student or mixed, texts are
    drawn anew in each epoch, token by token from β p + (1 − β) q. Nothing is published.
    """
    from storage.sampling import Sampling
    from trainer.distil.offline import DrawnWith, SampleSelection, distil_offline

    chosen = SampleSelection(samples=samples, routes=route or None, since=since, until=until, requests=requests)
    settings = load_settings(config, learn={"epochs": epochs})
    with stop_on_signals() as stop:
        drawn = None if target is None else DrawnWith(target, Sampling(temperature, top_p=top_p))
        done = distil_offline(settings, draft, out, chosen, stop, drawn=drawn)
    typer.echo(json.dumps(done) if as_json else f"{out}: {done['requests']} requests, loss {done['loss_last']:.4f}")


Target = Annotated[str, typer.Option(help="Folder or hub name of the target.", metavar="MODEL")]
DraftModel = Annotated[str, typer.Option("--draft", help="Folder or hub name of the draft.", metavar="MODEL")]
Prompts = Annotated[
    list[Path], typer.Option(help="JSON lines, plain or .gz, with a `prompt` field; may be repeated.", metavar="FILE")
]
MaxTokens = Annotated[int, typer.Option(help="Tokens of an answer at most.", min=1)]
Temperature = Annotated[float, typer.Option(help="Of answers and proposals: that of the traffic to come.", min=0.0)]
TopK = Annotated[int | None, typer.Option(help="Draw from the K likeliest tokens.", min=1)]
TopP = Annotated[float, typer.Option(help="Draw from the likeliest tokens of this mass.", min=0.01, max=1.0)]
HeadEpochs = Annotated[int, typer.Option("--epochs", help="Offline passes over the drafted tokens.", min=1)]
Mixing = Annotated[float, typer.Option(help="Share of the fed tokens that are the target's own.", min=0.0, max=1.0)]


@app.command()
def head(
    target: Target,
    draft: DraftModel,
    prompts: Prompts,
    out: Annotated[Path, typer.Option(help="New folder for the head.", metavar="DIR")],
    config: Config = None,
    epochs: HeadEpochs = 10,
    count: Annotated[int | None, typer.Option(help="Prompts taken from each file. Default: all.", min=1)] = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = 1.0,
    mixing: Mixing = 0.15,
    as_json: Json = False,
) -> None:
    """Train an acceptance head for a draft offline, as the SpecDec++ paper: answer, mix, train.

    `gamma.specdecpp.head` names the folder to the servers. `[learn]` head_depth, head_reject_weight and
    head_learning_rate hold here too.
    """
    from osd.models.pair import load_pair
    from storage.sampling import Sampling
    from trainer.devices import training_device
    from trainer.heads.offline import Recipe, prompts_of, train_offline

    settings = load_settings(config, learn={"head_epochs": epochs})
    pair = load_pair(target, draft, device=str(training_device(settings.trainer)), dtype=settings.serve.dtype)
    recipe = Recipe(mixing, Sampling(temperature, top_k, top_p), max_tokens)
    with stop_on_signals() as stop:
        done = train_offline(pair, settings, prompts_of(pair, prompts, count), out, recipe, stop, _say)
    typer.echo(json.dumps(done) if as_json else f"{out}: {done['tokens']} drafted tokens, loss {done['loss_last']:.4f}")


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
