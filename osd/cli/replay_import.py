"""`osd replay import` and `adopt`: what others wrote, conversations that a target reads, and samples of before targets
were named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from osd.cli.context import CommandContext
from osd.cli.options import Confirmation, Model, Name
from osd.cli.out import Output, count, counted, note
from osd.cli.replay import app
from storage.errors import BadInput, BadPromptFile, ModelNotLoaded
from storage.records import DEFAULT_ROUTE, Route
from storage.versions.feature_kinds import EAGLE, MEDUSA, feature_kind

if TYPE_CHECKING:
    from osd.models.model import Model as LoadedModel
    from osd.server.http.conversations import RowReader
    from osd.server.http.row_forms import Turns
    from storage.records import DraftVersion, RequestSamples
    from storage.replay.exports import ImportResult
    from storage.settings import Settings
    from storage.store import Store

BATCH = 64
"""Conversations that are kept at once."""
SHOWN = 5
"""Lines that could not be used that are named as they come."""
NAMED = 1000
"""Lines that could not be used that are named in the end."""


@dataclass(frozen=True)
class ReadingOptions:
    """Who reads conversations, and whose draft learns from them."""

    target: Model | None = None
    """The target that reads conversations. Default: serve.target."""
    draft: Model | None = None
    """The draft that is to learn, where the store has none yet, of any kind. Default: serve.draft."""
    route: Name = DEFAULT_ROUTE
    """The route that conversations belong to."""
    turns: Literal["last", "all"] = "last"
    """Which of the assistant's messages in a chat are learned, each behind those before it."""


@app.command("import")
def import_(
    here: CommandContext,
    file: Annotated[
        Path,
        typer.Argument(help="A file of `osd replay export`, or a file or folder of conversations.", metavar="FILE"),
    ],
    reading: ReadingOptions,
    output: Output,
) -> None:
    """Keep the requests of an exported file, under their own ids, routes and tenants, or conversations.

    Requests that are kept already stay as they are. An exported file that is damaged anywhere is refused whole.

    Conversations are JSON lines or a JSON list (`.jsonl`, `.json`; with `.gz`, `.bz2`, `.xz`, `.zst`), Parquet, Arrow,
    or a folder of such files, as `datasets` saves it. A row has a `prompt` and a `response`, or `messages` with tools,
    calls and reasoning, or ShareGPT's `conversations`, or the `request` and `response` of OpenAI's API, or token ids
    (`prompt_token_ids` and `token_ids`, `input_ids` and `labels`). It is read as `osd serve` reads it, and what is kept
    is what serving would have kept, the end of the turn too. The target reads each answer once, and what it would have
    said at every position is learned from: a draft can so begin with what you have, before it serves. Then
    `osd trainer` trains it. Rows that cannot be used are named, with `--json` each.

    Example: `osd replay import sharegpt.json --turns all --target ./model --draft ./small`
    """
    from osd.server.http.row_files import READERS, kind_of
    from storage.replay.exports import is_table

    if file.is_dir() or kind_of(file) in READERS.keys() - {".parquet"} or is_table(file):
        done, left = import_conversations(here, file, reading)
    else:
        with here.store() as store:
            done, left = store.samples.import_file(file), UsableBatches(iter(()))
            store.trail.note("replay import", file.name, asdict(done))
    known = f"; {count(done.known)} were left as they are" if done.known else ""
    unusable = f"; {counted(left.count, 'line')} could not be used{left.reasons()}" if left.count else ""
    kept = f"Kept {count(done.requests)} requests, {count(done.positions)} positions"
    output.words(asdict(done) | {"unusable": left.count, "unusable_lines": left.named}, f"{kept}{known}{unusable}.")


def import_conversations(
    here: CommandContext, file: Path, reading: ReadingOptions
) -> tuple[ImportResult, UsableBatches]:
    """Score a file's conversations and keep them; return what was kept, and who knows the lines that were no use.

    Every BATCH of conversations are kept at once, so that Ctrl-C loses little, and a second try reads what is left.
    Raises BadInput without a target or a draft, UnknownRoute, BadPromptFile, ModelNotLoaded, StoreError where the draft
    began with other files.
    """
    if not file.exists():  # before seconds of imports
        raise BadPromptFile(path=file, reason="there is no such file")
    serve = here.settings.serve
    named = reading.target or serve.target
    if named is None:
        raise BadInput(reason="Conversations are read by a target; name it with --target, or serve.target in osd.toml.")
    from osd.attached.passes import Scorer
    from osd.models.pair import choose_device, load_model
    from osd.models.vocabulary import load_tokenizer
    from osd.server.http.conversations import score_conversations

    with here.store() as store:
        model, tokenizer = load_model(named, choose_device(serve.device), serve.dtype), load_tokenizer(named)
        store.samples.redactor.load(lambda: tokenizer)
        scorer = Scorer(model, here.settings.storage.top_k, serve.max_length)
        read = row_reader(here.settings, model, tokenizer, scorer.length, reading.turns)
        version = begin_draft(store, model, reading, serve.draft)
        kept = version.kind in (MEDUSA, EAGLE) and here.settings.learn.teacher == "recorded"  # EAGLE-3 reads others
        hidden = serve.record_hidden_states or kept
        scored = score_conversations(file, read, scorer, route=reading.route, version=version.id, hidden=hidden)
        batches = UsableBatches(scored)
        done = store.samples.add_counted(batches)
        store.trail.note("replay import", file.name, asdict(done))
    return done, batches


def row_reader(settings: Settings, target: LoadedModel, tokenizer: Any, length: int, turns: Turns) -> RowReader:
    """Return what reads rows as this server would. Raises BadInput, BadSetting, GenerationConfigRefused."""
    from osd.models.generation_config import generation_config
    from osd.models.model import eos_ids
    from osd.server.http.chat import read_template
    from osd.server.http.conversations import RowReader

    if tokenizer is None:
        raise BadInput(reason="The target has no tokenizer, so it cannot read text.")
    template = read_template(settings.server.chat_template, tokenizer)
    stops = generation_config(target, tokenizer, settings.serve.generation_config).stops
    return RowReader(tokenizer, eos_ids(target.module), target.vocab_size, length, template, stops, turns)


def begin_draft(store: Store, target: LoadedModel, reading: ReadingOptions, default: str | None) -> DraftVersion:
    """Return the current version, for the target, of the draft that the route's requests teach.

    The draft that is named becomes its number 0 where there is none, and the route is made where it lacks; ``default``
    stands in where none is named. Raises BadInput where nothing can be its number 0, UnknownRoute where it is not to be
    made, ModelNotLoaded, VocabularyMismatch, StoreError where the draft began with other files.
    """
    draft, route = reading.draft, reading.route
    routes = {one.name: one.draft for one in store.routes.list()}
    if route not in routes and draft is None:
        store.routes.get(route)  # says which there are
    name = routes.get(route, route)
    if draft is None and store.versions.find(name, target.digest) is None:
        if default is None:
            reason = f"The store has no draft for the route {route} and this target yet; name the model that is to"
            raise BadInput(reason=f"{reason} learn with --draft, or serve.draft in osd.toml.")
        draft = default
    folder = fitting_folder(draft, target) if draft is not None else None
    if target.digest is not None:
        store.targets.arrive(target.digest, target.name)
    if folder is not None:
        store.versions.register_root(name, folder, target=target.digest)
    if route not in routes:
        store.routes.add(Route(route, name))
    return store.versions.current(name, target.digest)


def fitting_folder(draft: str, target: LoadedModel) -> Path:
    """Return a draft's folder on this machine, once it was seen to fit the target. Raises ModelNotLoaded,
    VocabularyMismatch, FeatureDraftNotLoaded, FeatureDraftMismatch."""
    from osd.engine.session import in_folder
    from osd.models.features.decoder import load_feature_model
    from osd.models.model_digest import local_folder
    from osd.models.pair import load_model
    from osd.models.vocabulary import check_vocabularies, load_tokenizer

    folder = local_folder(draft)
    if folder is not None and feature_kind(folder):
        load_feature_model(folder, target)
        return folder
    loaded = in_folder(load_model(draft, target.device))
    check_vocabularies(target, loaded, load_tokenizer(target.name), load_tokenizer(draft))
    return Path(loaded.name)


class UsableBatches:
    """Batches of the samples that can be used; lines that cannot are counted and named."""

    def __init__(self, scored: Iterator[RequestSamples | BadPromptFile]) -> None:
        self._scored, self._read = scored, 0
        self.count, self.named = 0, list[dict[str, Any]]()
        """Lines that could not be used; the first of them, with their files and reasons."""

    def __iter__(self) -> Iterator[list[RequestSamples]]:
        while batch := list(islice(self._usable(), BATCH)):
            self._read += len(batch)
            note(f"{count(self._read)} read, {counted(self.count, 'line')} left out")
            yield batch

    def reasons(self) -> str:
        """Return the numbers of the lines behind the first SHOWN, for people."""
        rest = [str(one["line"]) for one in self.named[SHOWN:] if "line" in one]
        return f" (behind those above: {', '.join(rest)})" if rest else ""

    def _usable(self) -> Iterator[RequestSamples]:
        for one in self._scored:
            if not isinstance(one, BadPromptFile):
                yield one
                continue
            self.count += 1
            if self.count <= NAMED:
                self.named.append({name: str(fact) if name == "path" else fact for name, fact in one.facts.items()})
            if self.count <= SHOWN:
                note(f"osd: {one}")


@dataclass(frozen=True)
class AdoptOptions:
    """The target."""

    target: Model | None = None
    """The target, a folder or hub name. Default: serve.target."""


@app.command()
def adopt(here: CommandContext, options: AdoptOptions, consent: Confirmation, output: Output) -> None:
    """Say that what was kept before targets were named is about this target.

    Samples, drafts and tables of before are set aside until then. Servers take the drafts up when they look next. A
    draft whose line for this target has learned by now stays set aside.
    """
    from osd.models.model_digest import model_digest
    from osd.server.start import choose_pair
    from storage.versions.targets import SHORT

    name = options.target or choose_pair(here.settings.serve, drafter=here.settings.drafters.kind).target
    if (digest := model_digest(name)) is None:
        raise ModelNotLoaded(path=name, reason="There is no such folder, nor such a model in the hub's cache.")
    consent.ask(f"Is what was kept before targets were named about {name} ({digest[:SHORT]})?")
    with here.store() as store:
        done = store.targets.adopt(digest, name)
        store.trail.note("replay adopt", name, {"target": digest, **asdict(done)})
    words = f"{counted(done.requests, 'request')} and {counted(len(done.drafts), 'draft')} are about {name} now."
    output.words({"target": digest, **asdict(done)}, words)
    for draft in () if output.as_json else done.left:
        note(f"{draft} stays set aside: its line for this target has learned by now.")
