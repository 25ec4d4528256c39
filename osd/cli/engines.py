"""`osd engines`: the vLLM and SGLang servers that osd is attached to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osd.attached.overview import drafting, engine_rows, restart
from osd.cli.command import CommandGroup
from osd.cli.context import CommandContext
from osd.cli.options import Name
from osd.cli.out import Format, Output, columns, note, print_json, print_table, say
from storage.errors import BadInput
from storage.records import DEFAULT_DRAFT
from storage.settings import Settings
from storage.versions.feature_kinds import FEATURE_KINDS, MTP, feature_kind

if TYPE_CHECKING:
    from osd.attached.base import EngineFacts, ServingEngine
    from osd.attached.vllm.engine import Schedule
    from storage.store import Store

app = CommandGroup("Attach vLLM servers, so that their drafts learn from what they serve. SGLang: experimental.")

UrlArgument = Annotated[str, typer.Argument(metavar="URL"), "Where it listens, as http://HOST:PORT."]
NameArgument = Annotated[str, typer.Argument(metavar="ENGINE"), "Its name, as `osd engines list` shows it, or its URL."]
COLUMNS = columns(
    name="engine", url="at", draft="draft", target="target", version="serves", requests="answers", alpha="α",
    age="last answer", drafting="drafting", state="state", added_at="added",
)  # fmt: skip


@dataclass(frozen=True)
class EngineOptions:
    """What an engine is, and what it does not say itself."""

    kind: Annotated[str, typer.Option(metavar="KIND")] = "vllm"
    """vllm: with osd's plugin. vllm-proxied: without, behind `osd attach --proxy`. sglang: experimental."""
    target: Annotated[str, typer.Option(metavar="TARGET")] | None = None
    """Folder or hub name of its target, where it does not say itself."""
    draft_folder: Annotated[Path, typer.Option(metavar="FOLDER")] | None = None
    """Folder of the draft that it was started with, where it does not say itself; of the draft that is to learn, where
    it runs without speculation."""


@app.command()
def add(
    here: CommandContext,
    url: UrlArgument,
    options: EngineOptions,
    draft: Annotated[Name, "What its draft is called here; a new name begins with what it serves."] = DEFAULT_DRAFT,
) -> None:
    """Attach a running vLLM: its answers are learned from, and its draft is kept good.

    It needs osd's plugin (`pip install osd-llm-vllm` beside vLLM; docs/vllm.md has the line to start it with), or a
    proxy before it (--kind vllm-proxied, with --draft-folder). It is probed first. `osd attach` then takes its answers
    and publishes to it, `osd trainer` trains. SGLang (--kind sglang) is experimental: it is published to, and its
    answers are not harvested (docs/vllm.md).
    """
    facts = client(here.settings, url, options).probe()
    if not facts.speculates and options.draft_folder:
        facts = replace(facts, draft=str(options.draft_folder.absolute()))
    with here.store() as store:
        for said in store.targets.arrive(facts.digest, facts.target):
            note(f"osd: {said}")
        register_draft(store, draft, facts)
        kind = facts.method or store.versions.current(draft, facts.digest).kind
        engine = store.engines.add(facts.name, url.rstrip("/"), draft, asdict(facts))
    note(f"{engine.name} is attached as a server of the draft {draft}. `osd attach` attends to it.")
    note(what_is_harvested(facts, kind, here.settings.learn.teacher))
    if facts.placeholders:
        note(f"{MULTIMODAL} {OF_ANSWERS if here.settings.learn.teacher == 'recorded' else OF_TEXT}")
    if not facts.speculates:
        note("It runs without speculation: the draft learns beside it. `osd engines list` says what it would bring.")


MULTIMODAL = "Its target sees more than text. Positions of images, videos and sound teach nothing and are counted."
OF_TEXT = "Answers to prompts that hold some are not learned from: texts alone are handed over and read again."
OF_ANSWERS = "What was answered to them is learned from, as the target has answered it."


def what_is_harvested(facts: EngineFacts, kind: str, teacher: str) -> str:
    """Say what is harvested of an engine whose draft is of a ``kind``, where this is ``learn.teacher``, and what that
    costs the engine."""
    reads = "a second vLLM (learn.teacher_url)" if teacher == "engine" else "the trainer's target"
    again = f"texts alone are harvested, of all answers, at next to no cost; {reads} reads them again"
    if facts.kind == "sglang":
        return "Its answers are not harvested (docs/vllm.md)."
    if kind in FEATURE_KINDS:
        lacking = ". Set it, and serve.target: nothing is learned until then" if teacher == "recorded" else ""
        hidden = f"A draft of {kind} learns from hidden states, which vLLM does not hand over"
        return f"{hidden}. With learn.teacher = {teacher if not lacking else 'recompute'} {again}{lacking}."
    if teacher != "recorded":
        return f"With learn.teacher = {teacher} {again}."
    where = "at 100 positions a second (OSD_VLLM_POSITIONS) about 1.5 % of its speed, at all 10 %"
    return f"With learn.teacher = recorded the {facts.top_k} likeliest tokens are harvested, which costs vLLM {where}."


@app.command("list")
def list_engines(here: CommandContext, output: Output) -> None:
    """List the attached engines: what each drafts with, what it answered, and whether a process attends to it.

    α is the acceptance over all its answers; the last answer is so many seconds old.
    """
    with here.store() as store:
        rows = engine_rows(store)
    output.rows(rows, COLUMNS, empty="No engine is attached; `osd engines add URL` attaches one.")
    for row in rows:
        if row["restart"] and not output.as_json:
            note(f"{row['name']}, another start: {row['restart']}")


@app.command()
def show(here: CommandContext, engine: NameArgument, output: Output) -> None:
    """Show what the last probe found of an engine, whether it drafts, and what another start would bring."""
    with here.store() as store:
        found = store.engines.get(engine)
        words = {"drafting": drafting(store, found), "restart": restart(store, found)}
    tell_facts({"name": found.name, "url": found.url, "draft": found.draft, **found.facts, **words}, output)


@app.command()
def remove(here: CommandContext, engine: NameArgument) -> None:
    """Let go of an engine. It goes on serving with the draft that it has; what was learned stays."""
    with here.store() as store:
        found = store.engines.remove(engine)
    note(f"{found.name} is no longer attached; it serves on with what it has.")


@app.command()
def probe(
    here: CommandContext,
    url: UrlArgument,
    options: EngineOptions,
    output: Output,
    selftest: Annotated[bool, "Publish the weights that it has, and see that nothing changes."] = False,
) -> None:
    """Look at what an engine is and can do, without attaching it.

    With --selftest the draft that it serves is published to it once more: token ids must stay, and acceptance too.
    """
    from osd.attached.vllm.engine import VllmEngine

    if selftest and options.kind != "vllm":
        raise BadInput(
            reason="--selftest needs a vLLM with osd's plugin: this kind of engine cannot be published to alike."
        )
    engine = client(here.settings, url, options)
    facts: dict[str, Any] = asdict(engine.probe())
    if options.kind == "sglang":
        note("SGLang is experimental: this was written from its source and never ran against it (docs/vllm.md).")
    if selftest:
        from osd.attached.trials import selftest as try_out

        assert isinstance(engine, VllmEngine)
        facts["selftest"] = asdict(try_out(engine))
    tell_facts(facts, output)


def tell_facts(facts: Mapping[str, Any], output: Output) -> None:
    """Print what is known of an engine; people do without its digests."""
    output.facts(facts, {name: value for name, value in facts.items() if name not in ("digest", "ranks")})


@app.command()
def tune(
    here: CommandContext,
    url: UrlArgument,
    output: Output,
    apply: Annotated[bool, "Leave it with the draft lengths that were found."] = False,
) -> None:
    """Try which draft lengths make a vLLM fastest at each batch size, and print the flag to start it with.

    Prompts are those that the store keeps of it. It takes a minute or two of its time and needs draft lengths that can
    be changed while it runs (docs/vllm.md); afterwards it drafts by what it measures, with --apply by what was found.
    """
    from osd.attached.trials import batch_sizes, draft_lengths, measure_by, require_live, schedule_of
    from osd.attached.trials import tune as tried
    from osd.attached.vllm.engine import VllmEngine

    engine = client(here.settings, url, EngineOptions())
    facts = engine.probe()
    require_live(engine.name, facts)
    assert isinstance(engine, VllmEngine) and facts.max_num_seqs is not None
    with here.store() as store:
        ids = [one.request_id for one in store.outcomes.recent(limit=200)]
        kept = [one.tokens[: one.prompt_len].tolist() for one in store.samples.read(ids)]
        prompts = [prompt for prompt in kept if not {*facts.placeholders} & {*prompt}]  # its images are not kept
    if not prompts:
        raise BadInput(
            reason="The store keeps no prompts yet to try it with; serve some requests with `osd attach` first."
        )
    told = lambda done, turns: note(f"{done} of {turns} turns") if done % 10 == 0 else None  # noqa: E731
    lengths = draft_lengths(facts.gamma)
    try:
        found = list(tried(batch_sizes(facts.max_num_seqs), lengths, measure_by(engine, prompts), told))
    finally:
        engine.set_gamma(None)
    schedule = schedule_of(found)
    if apply:
        engine.set_gamma(schedule)
        with here.store() as store:
            store.trail.note("engines tune", engine.name, {"schedule": schedule})
    if output.as_json:
        print_json({"schedule": schedule, "batches": [asdict(one) for one in found]})
        return
    rates = {str(length): Format("{:.0f}".format, right=True) for length in lengths}
    shown = columns(rates, batch="requests", **{name: f"{name} drafted" for name in rates}, best="best")
    rows = [{"batch": one.batch, "best": one.best, **{str(n): rate for n, rate in one.rates.items()}} for one in found]
    print_table(rows, shown)
    say(f"num_speculative_tokens_per_batch_size: {[list(part) for part in schedule]}")


@app.command()
def pause(here: CommandContext, engine: NameArgument) -> None:
    """Let an engine draft nothing until `osd engines resume`; it goes on serving, and its draft goes on learning."""
    from osd.attached.vllm.engine import PAUSED

    _set_lengths(here, engine, PAUSED, "drafts nothing until `osd engines resume`")


@app.command()
def resume(here: CommandContext, engine: NameArgument) -> None:
    """Let an engine draft by what it measures: while that is proven to be faster, and nothing else."""
    _set_lengths(here, engine, None, "drafts while that pays")


def _set_lengths(here: CommandContext, engine: str, schedule: Schedule | None, told: str) -> None:
    from osd.attached.attach import connect
    from osd.attached.vllm.engine import VllmEngine

    with here.store() as store:
        found = store.engines.get(engine)
        reached = connect(here.settings, found.url, found.facts)
        if not isinstance(reached, VllmEngine):
            raise BadInput(
                reason=f"{found.name} is no vLLM with osd's plugin: its draft lengths are those of its start."
            )
        reached.set_gamma(schedule)
        store.trail.note("engines pause" if schedule else "engines resume", found.name, {})
    note(f"{found.name} {told}.")


def client(settings: Settings, url: str, options: EngineOptions) -> ServingEngine:
    """Return the client of an engine that is not attached yet. Raises BadInput, and BadSetting for a token that is not
    to be had."""
    from osd.attached.attach import KINDS, connect
    from osd.attached.vllm.plugin.osd_vllm.options import absolute

    if options.kind not in KINDS:
        raise BadInput(reason=f"--kind {options.kind}: there is {', '.join(KINDS)}.")
    draft = str(options.draft_folder.absolute()) if options.draft_folder else None
    target = absolute(options.target) if options.target else None
    return connect(settings, url, {"kind": options.kind, "target": target, "draft": draft})


def register_draft(store: Store, draft: str, facts: EngineFacts) -> None:
    """Enter the draft of the engine's command line as number 0, where the store has no draft of that name yet, and a
    route of its name, where it serves none: what is learned for a draft is what its routes bring.

    Raises BadInput where its folder cannot be seen from here, HubRefused for a hub name that cannot be fetched,
    FeatureDraftNotLoaded for MTP heads that osd does not compute.
    """
    from storage.records import Route

    if store.versions.find(draft, facts.digest) is None:
        if not (facts.draft or facts.speculates):
            reason = f"{facts.name} runs without speculation, and no draft {draft} learns for its target yet"
            raise BadInput(reason=f"{reason}; give one with --draft-folder FOLDER, or begin with `osd replay import`.")
        folder = Path(facts.draft)
        if not folder.is_dir() and not folder.is_absolute():
            from osd.hotswap.hub import fetch

            folder = fetch(facts.draft)
        if not folder.is_dir():
            reason = f"{facts.draft}, the draft that {facts.name} serves, is no folder that this machine sees"
            raise BadInput(reason=f"{reason}; add it by running this where it is, or from a shared folder.")
        if facts.method == MTP and feature_kind(folder) != MTP:
            _register_head(store, draft, folder, facts)
        else:
            store.versions.register_root(draft, folder, target=facts.digest)
    if not any(draft in route.drafts for route in store.routes.list()):
        store.routes.add(Route(draft, draft))


def _register_head(store: Store, draft: str, checkpoint: Path, facts: EngineFacts) -> None:
    """Enter the MTP head in a target's checkpoint as number 0. Raises BadInput, FeatureDraftNotLoaded."""
    from osd.models.features.checkpoint import take_heads

    with TemporaryDirectory(prefix="osd-draft-") as taken:
        if not take_heads(checkpoint, Path(taken)):
            raise BadInput(reason=f"{checkpoint} has no MTP head by a name that osd knows.")
        store.versions.register_root(draft, Path(taken), {"taken_from": checkpoint.name}, target=facts.digest)
