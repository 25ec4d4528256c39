"""`osd engines`: the vLLM and SGLang servers that osd is attached to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.cli.context import surroundings
from osd.cli.options import JsonOption
from osd.cli.out import Column, note, print_facts, print_json, print_rows, say, when
from storage.records import DEFAULT_DRAFT
from storage.settings import Settings

if TYPE_CHECKING:
    from osd.attached.base import EngineFacts, ServingEngine
    from storage.store import Store

app = typer.Typer(
    no_args_is_help=True,
    help="Attach vLLM servers, so that their drafts learn from what they serve. SGLang: experimental.",
)

KindOption = Annotated[
    str,
    typer.Option(
        help="vllm: with osd's plugin. vllm-proxied: without, behind `osd attach --proxy`. sglang: experimental.",
        metavar="KIND",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(help="Folder or hub name of its target, where it does not say itself.", metavar="TARGET"),
]
DraftFolderOption = Annotated[
    Path | None,
    typer.Option(help="Folder of the draft that it was started with, where it does not say itself.", metavar="FOLDER"),
]
UrlArgument = Annotated[str, typer.Argument(help="Where it listens, as http://HOST:PORT.", metavar="URL")]
NameArgument = Annotated[
    str, typer.Argument(help="Its name, as `osd engines list` shows it, or its URL.", metavar="ENGINE")
]
COLUMNS = (
    Column("name", "engine", whole=True),
    Column("url", "at"),
    Column("draft", "draft"),
    Column("target", "target"),
    Column("version", "serves", whole=True),
    Column("state", "state"),
    Column("added_at", "added", when, whole=True),
)


@app.command()
def add(
    ctx: typer.Context,
    url: UrlArgument,
    draft: Annotated[
        str, typer.Option(help="What its draft is called here; a new name begins with what it serves.", metavar="NAME")
    ] = DEFAULT_DRAFT,
    kind: KindOption = "vllm",
    target: TargetOption = None,
    draft_folder: DraftFolderOption = None,
) -> None:
    """Attach a running vLLM: its answers are learned from, and its draft is kept good.

    It needs osd's plugin (`pip install osd-llm-vllm` beside vLLM; docs/vllm.md has the line to start it with), or a
    proxy before it (--kind vllm-proxied, with --draft-folder). It is probed first. `osd attach` then takes its answers
    and publishes to it, `osd trainer` trains. SGLang (--kind sglang) is experimental: it is published to, and its
    answers are not harvested (docs/sglang.md).
    """
    here = surroundings(ctx)
    facts = client(here.settings, url, kind, target, draft_folder).probe()
    with here.store() as store:
        for said in store.targets.arrive(facts.digest, facts.target):
            note(f"osd: {said}")
        register_draft(store, draft, facts)
        engine = store.engines.add(facts.name, url.rstrip("/"), draft, asdict(facts))
    note(f"{engine.name} is attached as a server of the draft {draft}. `osd attach` attends to it.")


@app.command("list")
def list_engines(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the attached engines, what each drafts with, and whether a process attends to it."""
    with surroundings(ctx).store() as store:
        rows = engine_rows(store)
    print_rows(rows, COLUMNS, as_json=as_json, empty="No engine is attached; `osd engines add URL` attaches one.")


@app.command()
def show(ctx: typer.Context, engine: NameArgument, as_json: JsonOption = False) -> None:
    """Show what the last probe found of an engine."""
    with surroundings(ctx).store() as store:
        found = store.engines.get(engine)
    facts = {"name": found.name, "url": found.url, "draft": found.draft, **found.facts}
    if as_json:
        print_json(facts)
    else:
        print_facts({name: value for name, value in facts.items() if name not in ("digest", "ranks")})


@app.command()
def remove(ctx: typer.Context, engine: NameArgument) -> None:
    """Let go of an engine. It goes on serving with the draft that it has; what was learned stays."""
    with surroundings(ctx).store() as store:
        found = store.engines.remove(engine)
    note(f"{found.name} is no longer attached; it serves on with what it has.")


@app.command()
def probe(
    ctx: typer.Context,
    url: UrlArgument,
    selftest: Annotated[
        bool,
        typer.Option("--selftest", help="Publish the weights that it has, and see that nothing changes."),
    ] = False,
    kind: KindOption = "vllm",
    target: TargetOption = None,
    draft_folder: DraftFolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at what an engine is and can do, without attaching it.

    With --selftest the draft that it serves is published to it once more: token ids must stay, and acceptance too.
    """
    from osd.attached.trials import selftest as try_out
    from osd.attached.vllm.engine import VllmEngine
    from osd.attached.vllm.stock import StockVllm
    from storage.errors import BadInput

    here = surroundings(ctx)
    engine = client(here.settings, url, kind, target, draft_folder)
    if selftest and (isinstance(engine, StockVllm) or not isinstance(engine, VllmEngine)):
        raise BadInput(
            reason="--selftest needs a vLLM with osd's plugin: this kind of engine cannot be published to alike."
        )
    facts: dict[str, Any] = asdict(engine.probe())
    if kind == "sglang":
        note("SGLang is experimental: this was written from its source and never ran against it (docs/sglang.md).")
    if selftest and isinstance(engine, VllmEngine):
        facts["selftest"] = asdict(try_out(engine))
    if as_json:
        print_json(facts)
    else:
        print_facts({name: value for name, value in facts.items() if name not in ("digest", "ranks")})


@app.command()
def tune(
    ctx: typer.Context,
    url: UrlArgument,
    apply: Annotated[bool, typer.Option("--apply", help="Leave it with the draft lengths that were found.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Try which draft lengths make a vLLM fastest at each batch size, and print the flag to start it with.

    Prompts are those that the store keeps of it. It takes a minute or two of its time and needs draft lengths that can
    be changed while it runs (docs/vllm.md); afterwards it has those of its start, or with --apply the ones found.
    """
    from osd.attached.trials import batch_sizes, draft_lengths, measure_by, require_live, schedule_of
    from osd.attached.trials import tune as tried
    from osd.attached.vllm.engine import VllmEngine
    from storage.errors import BadInput

    here = surroundings(ctx)
    engine = client(here.settings, url, "vllm", None, None)
    facts = engine.probe()
    require_live(engine.name, facts)
    assert isinstance(engine, VllmEngine) and facts.max_num_seqs is not None
    with here.store() as store:
        ids = [one.request_id for one in store.outcomes.recent(limit=200)]
        prompts = [one.tokens[: one.prompt_len].tolist() for one in store.samples.read(ids)]
    if not prompts:
        raise BadInput(
            reason="The store keeps no prompts yet to try it with; serve some requests with `osd attach` first."
        )
    told = lambda done, turns: note(f"{done} of {turns} turns") if done % 10 == 0 else None  # noqa: E731
    lengths = draft_lengths(facts.gamma)
    try:
        found = list(tried(batch_sizes(facts.max_num_seqs), lengths, measure_by(engine, prompts), told))
    finally:
        engine.set_gamma([(1, facts.max_num_seqs, facts.gamma)])
    schedule = schedule_of(found)
    if apply:
        engine.set_gamma(schedule)
        with here.store() as store:
            store.trail.note("engines tune", engine.name, {"schedule": schedule})
    if as_json:
        print_json({"schedule": schedule, "batches": [asdict(one) for one in found]})
        return
    columns = [Column("batch", "requests", right=True)]
    columns += [Column(str(length), f"{length} drafted", "{:.0f}".format, right=True) for length in lengths]
    rows = [{"batch": one.batch, "best": one.best, **{str(n): rate for n, rate in one.rates.items()}} for one in found]
    print_rows(rows, (*columns, Column("best", "best", right=True)), as_json=False)
    say(f"num_speculative_tokens_per_batch_size: {[list(part) for part in schedule]}")


def client(settings: Settings, url: str, kind: str, target: str | None, draft: Path | None) -> ServingEngine:
    """Return the client of an engine that is not attached yet. Raises BadInput, and BadSetting for a token that is not
    to be had."""
    from osd.attached.attach import KINDS, connect
    from storage.errors import BadInput

    if kind not in KINDS:
        raise BadInput(reason=f"--kind {kind}: there is {', '.join(KINDS)}.")
    return connect(settings, url, {"kind": kind, "target": target, "draft": str(draft) if draft else None})


def register_draft(store: Store, draft: str, facts: EngineFacts) -> None:
    """Enter the draft of the engine's command line as number 0, where the store has no draft of that name yet, and a
    route of its name, where it serves none: what is learned for a draft is what its routes bring.

    Raises BadInput where its folder cannot be seen from here.
    """
    from storage.errors import BadInput, UnknownDraft
    from storage.records import Route

    try:
        store.versions.current(draft, facts.digest)
    except UnknownDraft:
        folder = Path(facts.draft)
        if not folder.is_dir():
            reason = f"{facts.draft}, the draft that {facts.name} serves, is no folder that this machine sees"
            raise BadInput(reason=f"{reason}; add it by running this where it is, or from a shared folder.") from None
        store.versions.register_root(draft, folder, target=facts.digest)
    if not any(draft in route.drafts for route in store.routes.list()):
        store.routes.add(Route(draft, draft))


def engine_rows(store: Store) -> list[Mapping[str, Any]]:
    """Return a row for each engine."""
    from storage import records

    rows: list[Mapping[str, Any]] = []
    for engine in store.engines.list():
        served = ", ".join(store.versions.served_by(engine.name).values()) or None
        attended = engine.holder is not None and engine.lease_until > records.now()
        state = f"attended to by {engine.holder}" if attended else "nobody attends to it; run osd attach"
        rows.append({
            "name": engine.name, "url": engine.url, "draft": engine.draft, "target": engine.facts.get("target"),
            "version": served, "state": state, "added_at": engine.added_at,
        })  # fmt: skip
    return rows
