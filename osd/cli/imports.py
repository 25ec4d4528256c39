"""`osd replay import` of conversations: a target reads them, and they are kept as if they had been served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from osd.cli.context import CommandContext
from osd.cli.out import count, counted, note
from storage.errors import BadInput, BadPromptFile
from storage.replay.imports import ImportResult
from storage.sql import admin_log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage.records import RequestSamples
    from storage.store import Store

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
        done, left = keep(store, score_conversations(file, tokenizer, scorer, route=route, version=version))
        with store.db.session() as session:
            admin_log.note(session, None, "import", file.name, asdict(done))
    return done, left


def keep(store: Store, scored: Iterable[RequestSamples | BadPromptFile]) -> tuple[ImportResult, int]:
    """Keep samples as they come; return the counts, and that of lines that were no use."""
    requests = positions = known = left = 0
    batch: list[RequestSamples] = []

    def flush() -> None:
        nonlocal requests, positions, known
        fresh = [one for one in batch if one.request_id not in store.samples.kept([one.request_id])]
        if fresh:
            store.samples.add(fresh)
        requests, known = requests + len(fresh), known + len(batch) - len(fresh)
        positions += sum(map(len, fresh))
        batch.clear()
        note(f"{count(requests)} kept, {counted(left, 'line')} left out")

    for one in scored:
        if isinstance(one, BadPromptFile):
            left += 1
            if left <= SHOWN:
                note(f"osd: {one}")
        else:
            batch.append(one)
        if len(batch) == BATCH:
            flush()
    flush()
    return ImportResult(requests, positions, known), left
