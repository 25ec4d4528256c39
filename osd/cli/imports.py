"""`osd replay import` of conversations: a target reads them, and they are kept as if they had been served."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from osd.cli.context import CommandContext
from osd.cli.out import count, counted, note
from storage.errors import BadInput, BadPromptFile, UnknownDraft
from storage.records import Route
from storage.replay.imports import ImportResult, keep_counted

if TYPE_CHECKING:
    from osd.models.model import Model
    from storage.records import DraftVersion, RequestSamples
    from storage.store import Store

BATCH = 64
"""Conversations that are kept at once."""
SHOWN = 5
"""Lines that could not be used that are named."""


def import_conversations(
    here: CommandContext, file: Path, target: str | None, draft: str | None, route: str
) -> tuple[ImportResult, int]:
    """Score a file's conversations and keep them; return what was kept, and the number of lines that were no use.

    ``draft``: the model with which the route's draft begins, where the store has none yet. Every BATCH of conversations
    are kept at once, so that Ctrl-C loses little, and a second try reads what is left. Raises BadInput without a target
    or a draft, UnknownRoute, BadPromptFile, ModelNotLoaded, StoreError where the draft began with other files.
    """
    from dataclasses import asdict

    from osd.attached.conversations import score_conversations
    from osd.attached.passes import Scorer
    from osd.models.pair import choose_device, load_model
    from osd.models.tokenizer import load_tokenizer

    serve = here.settings.serve
    named = target or serve.target
    if not file.is_file():
        raise BadPromptFile(path=file, reason="there is no such file")
    if named is None:
        raise BadInput(reason="Conversations are read by a target; name it with --target, or serve.target in osd.toml.")
    with here.store() as store:
        model = load_model(named, choose_device(serve.device), serve.dtype)
        version = begin_draft(store, model, draft, serve.draft, route).id
        tokenizer = load_tokenizer(named)
        scorer = Scorer(model, here.settings.storage.top_k, serve.max_length)
        batches = UsableBatches(
            score_conversations(
                file, tokenizer, scorer, route=route, version=version, hidden=serve.record_hidden_states
            )
        )
        done = keep_counted(store.samples, batches)
        store.trail.note("replay import", file.name, asdict(done))
    return done, batches.left


def begin_draft(store: Store, target: Model, draft: str | None, default: str | None, route: str) -> DraftVersion:
    """Return the current version, for the target, of the draft that the route's requests teach.

    ``draft`` becomes its number 0 where there is none, and the route is made where it lacks; ``default`` stands in
    where none is named. Raises BadInput where nothing can be its number 0, UnknownRoute where it is not to be made,
    ModelNotLoaded, VocabularyMismatch, StoreError where the draft began with other files.
    """
    routes = {one.name: one.draft for one in store.routes.list()}
    if route not in routes and draft is None:
        store.routes.get(route)  # says which there are
    name = routes.get(route, route)
    if draft is None and not _has_line(store, name, target):
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


def _has_line(store: Store, draft: str, target: Model) -> bool:
    try:
        store.versions.current(draft, target.digest)
    except UnknownDraft:
        return False
    return True


def fitting_folder(draft: str, target: Model) -> Path:
    """Return a draft's folder on this machine, once it was seen to fit the target. Raises ModelNotLoaded,
    VocabularyMismatch."""
    from osd.engine.session import in_folder
    from osd.models.pair import load_model
    from osd.models.tokenizer import load_tokenizer
    from osd.models.vocabulary import check_vocabularies

    loaded = in_folder(load_model(draft, target.device))
    check_vocabularies(target, loaded, load_tokenizer(target.name), load_tokenizer(draft))
    return Path(loaded.name)


class UsableBatches:
    """Batches of the samples that can be used; lines that cannot are counted, and the first of them named."""

    def __init__(self, scored: Iterator[RequestSamples | BadPromptFile]) -> None:
        self._scored, self.left, self._read = scored, 0, 0

    def __iter__(self) -> Iterator[list[RequestSamples]]:
        while batch := list(islice(self._usable(), BATCH)):
            self._read += len(batch)
            note(f"{count(self._read)} read, {counted(self.left, 'line')} left out")
            yield batch

    def _usable(self) -> Iterator[RequestSamples]:
        for one in self._scored:
            if not isinstance(one, BadPromptFile):
                yield one
                continue
            self.left += 1
            if self.left <= SHOWN:
                note(f"osd: {one}")
