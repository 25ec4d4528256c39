"""`python -m trainer`: the processes that train.

worker    train whatever falls due, until stopped
once      train what is due now, then leave
distil    distil a draft offline on everything that a store holds
ping      can the broker be reached?
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from storage.errors import OsdError
from storage.settings import Settings, load_settings
from trainer.signals import stop_on_signals

INTERRUPTED = 130

Config = Annotated[
    Path | None, typer.Option(help="Configuration file. Default: $OSD_CONFIG, then osd.toml here.", metavar="FILE")
]
Draft = Annotated[str | None, typer.Option(help="This draft only. Default: every draft.", metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


class Root(TyperGroup):
    """Turns what goes wrong into one line on stderr and an exit status."""

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
    cls=Root, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]}, help="Distil drafts from what servers have recorded.",
)  # fmt: skip


@app.command()
def worker(
    config: Config = None,
    once: Annotated[bool, typer.Option("--once", help="Train what is due now, then leave.")] = False,
    draft: Draft = None,
) -> None:
    """Train whatever falls due, until Ctrl-C or SIGTERM."""
    settings = load_settings(config)
    if once:
        _take_turn(settings, draft, as_json=False)
        return
    from storage.store import open_store
    from trainer.app import run_worker

    open_store(settings).close()  # what is wrong with the store is said before anything starts
    status = run_worker(settings, draft)
    logging.shutdown()
    os._exit(status)  # everything is closed; an idle thread of the pool would hold the exit up for seconds


@app.command()
def once(config: Config = None, draft: Draft = None, as_json: Json = False) -> None:
    """Train what is due now in this process, without a broker."""
    _take_turn(load_settings(config), draft, as_json)


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
    as_json: Json = False,
) -> None:
    """Distil a draft offline on everything that a store holds, and write a plain Hugging Face folder.

    This is the upper bound of the OSD paper's Table 1: the draft sees all the data, as often as `--epochs` says. No
    target is needed, its answers are in the samples. Nothing is published.
    """
    from trainer.offline import Selection, distil_offline

    chosen = Selection(samples=samples, routes=route or None, since=since, until=until, requests=requests)
    settings = load_settings(config, learn={"epochs": epochs})
    with stop_on_signals() as stop:
        done = distil_offline(settings, draft, out, chosen, stop)
    typer.echo(json.dumps(done) if as_json else f"{out}: {done['requests']} requests, loss {done['loss_last']:.4f}")


@app.command()
def ping(config: Config = None) -> None:
    """Can the broker be reached? One JSON line."""
    from trainer.ping import ping as reach

    answer = reach(load_settings(config))
    typer.echo(json.dumps(answer))
    raise typer.Exit(0 if answer["ok"] else 1)


def _take_turn(settings: Settings, draft: str | None, as_json: bool) -> None:
    from trainer.priority import lower_priority
    from trainer.tasks import open_turns
    from trainer.turns import told

    lower_priority(settings.worker)
    with stop_on_signals() as stop:
        turns = open_turns(settings, stop, draft)
        with turns.store:
            runs = turns.take() if draft is None else [run for run in [turns.train(draft)] if run]
    for run in runs:
        facts = {"run": run.id, "draft": run.draft, "state": run.state.value, "version": run.version, **run.result}
        typer.echo(json.dumps(facts) if as_json else told(run))
    if not runs and not as_json:
        typer.echo("Nothing is due.")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("osd").setLevel(logging.INFO)
    app(prog_name="python -m trainer")
