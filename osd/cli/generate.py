"""`osd generate`: completes prompts through the engine's usual loop."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osd.cli.context import CommandContext, surroundings
from osd.cli.generation import PromptBatch, RequestOptions, stream_one
from osd.cli.options import DrafterOption, DraftNameOption, DraftOption, TargetOption
from osd.cli.out import note
from osd.prompts import Prompt, read_prompts
from osd.server.start import PairNames, choose_pair, draft_in_store, tell_shipped, with_own_store
from storage.errors import BadPromptFile
from storage.records import DEFAULT_TENANT
from storage.sampling import Sampling

if TYPE_CHECKING:
    from osd.engine.engine import Engine

SAMPLING, KEEPING = "Sampling", "Keeping"


def generate(
    ctx: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads it from stdin.", metavar="PROMPT")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help='JSON lines, plain or .gz, each with a "prompt".', metavar="FILE")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens that come back at most.", metavar="N")] = 128,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be given again.", metavar="TEXT")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not put the prompt into the chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each prompt.")] = False,
    temperature: Annotated[
        float, typer.Option(help="0 takes the likeliest token.", metavar="T", rich_help_panel=SAMPLING)
    ] = 0.0,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from the K likeliest tokens.", metavar="K", rich_help_panel=SAMPLING)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Draw from the likeliest tokens of mass P.", metavar="P", rich_help_panel=SAMPLING),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Makes drawing repeatable with gamma.rule = fixed; goodput, the default, measures time.",
            metavar="N",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    target: TargetOption = None,
    draft: DraftOption = None,
    drafter: DrafterOption = None,
    draft_name: DraftNameOption = None,
    route: Annotated[str | None, typer.Option(help="Ask for a route by name.", metavar="NAME")] = None,
    tenant: Annotated[
        str, typer.Option(help="Whose request it is, in what is kept.", metavar="NAME", rich_help_panel=KEEPING)
    ] = DEFAULT_TENANT,
    learn: Annotated[
        bool,
        typer.Option(
            "--learn/--no-learn",
            help="Keep what drafts can learn from, and take newer versions of the draft. --no-learn opens no store.",
            rich_help_panel=KEEPING,
        ),
    ] = True,
) -> None:
    """Complete a prompt, or every prompt of a file.

    One prompt is streamed as it comes. A file is served in batches, and each text is printed when it is done. A line
    that cannot be served is reported by its number, the others go on, and the command ends with status 2.

    Examples: `osd generate "How many days has a leap year?"`,
    `osd generate --prompts questions.jsonl --json --temperature 0.7 --seed 1`
    """
    here = surroundings(ctx)
    if (prompt is None) == (prompts is None):
        raise typer.BadParameter("give either a prompt or --prompts FILE")
    settings = here.drafting(drafter)
    if draft_name is not None:
        settings = here.settings = settings.changed(serve={"draft_name": draft_name})
    names = choose_pair(settings.serve, target, draft, drafter=settings.drafters.kind)
    wish = RequestOptions(
        Sampling(temperature, top_k, top_p, seed=seed), max_tokens, tuple(stop or ()), raw, route, tenant, learn
    )
    source = prompts or one(prompt or "")
    with ExitStack() as stack:
        failed = serve(start(stack, here, names, learn=learn), wish, source, as_json=as_json)
    if failed:
        raise typer.Exit(BadPromptFile.exit_code)


def serve(engine: Engine, wish: RequestOptions, source: Path | Prompt, *, as_json: bool) -> int:
    """Serve a prompt or a file of them; return how many could not be served."""
    if isinstance(source, Prompt) and not as_json:
        stream_one(engine, wish.request(engine, source))
        return 0
    batch = PromptBatch(engine, wish, as_json=as_json)
    batch.serve([source] if isinstance(source, Prompt) else read_prompts(source))
    return batch.failed


def one(prompt: str) -> Prompt:
    """Return the prompt of the command line, or of stdin."""
    return Prompt(sys.stdin.read() if prompt == "-" else prompt, line=1)


def start(stack: ExitStack, here: CommandContext, names: PairNames, *, learn: bool) -> Engine:
    """Start the engine, with recorder and follower unless ``learn`` is False; it is closed with the stack."""
    here.settings = with_own_store(names, here.settings)
    if names.shipped:
        note(tell_shipped(here.settings) if learn else "No pair is named; the small one that ships with osd answers.")
    store = stack.enter_context(here.store()) if learn else None
    names = draft_in_store(names, store) if store else names
    pair = names.load(here.settings.serve)
    if store is None:
        from osd.engine.engine import Engine

        engine = Engine(pair, here.settings)
        engine.probe()
        return engine
    from osd.engine.session import serving

    return stack.enter_context(serving(pair, here.settings, store))
