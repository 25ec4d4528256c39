"""`osd replay import` of conversations: a target reads them, and they are kept as if they had been served."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from osd.cli.context import CommandContext
from osd.cli.out import count, counted, note
from storage.errors import BadInput, BadPromptFile
from storage.replay.imports import ImportResult, keep_counted
from storage.sql import admin_log

if TYPE_CHECKING:
    from storage.records import RequestSamples

BATCH = 64
"""Conversations that are kept at once."""
SHOWN = 5
"""Lines that could not be used that are named."""


def import_conversations(here: CommandContext, file: Path, target: str | None, route: str) -> tuple[ImportResult, int]:
    """Score a file's conversations and keep them; return what was kept, and the number of lines that were no use.

    Every BATCH of them are kept at once, so that Ctrl-C loses little, and a second try reads what is left. Raises
    BadInput without a target, UnknownRoute, UnknownDraft, BadPromptFile, ModelNotLoaded.
    """
    from dataclasses import asdict

    from osd.engines.conversations import score_conversations
    from osd.engines.scorer import Scorer
    from osd.models.pair import choose_device, load_model
    from osd.models.tokenizer import load_tokenizer

    serve = here.settings.serve
    named = target or serve.target
    if named is None:
        raise BadInput(reason="Conversations are read by a target; name it with --target, or serve.target in osd.toml.")
    with here.store() as store:
        model = load_model(named, choose_device(serve.device), serve.dtype)
        version = store.versions.current(store.routes.get(route).draft, model.digest).id
        tokenizer = load_tokenizer(named)
        scorer = Scorer(model, here.settings.storage.top_k, serve.max_length)
        batches = UsableBatches(score_conversations(file, tokenizer, scorer, route=route, version=version))
        done = keep_counted(store.samples, batches)
        with store.db.session() as session:
            admin_log.note(session, None, "import", file.name, asdict(done))
    return done, batches.left


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
