"""What topics are told from: prompts of the traffic, taken again when topics were taught or the traffic has grown.

With two topics and nothing else to compare with, every prompt looks like one of the two. Which of these prompts belong
to a topic after all is left to the training of the topics (:mod:`router.topic_training`).
"""

from __future__ import annotations

import logging

from osd.models.tokenizer import load_tokenizer
from router.topic import features_of
from storage.errors import OsdError, UnknownDraft
from storage.routes.background import Features
from storage.store import Store
from trainer.routes.prompt_text import PromptReader

log = logging.getLogger("osd.trainer")

MOST = 200
"""Prompts that are taken; from 64 to 200 the share of strangers sent to a topic halved, and topics lost nothing."""
LEAST = 16
"""Prompts below which they say little of the traffic."""


class TopicBackground:
    """A worker's look at whether the background is due."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def look(self) -> int:
        """Take the background if it is due; return the number of prompts taken. An error is logged."""
        try:
            if not self._is_due():
                return 0
            found = self._newest()
            if len(found) >= LEAST:
                self._store.background.replace(found, who="osd (trainer)")
                log.info("%d prompts stand for no topic", len(found), extra={"action": "background_taken"})
                return len(found)
        except OsdError as error:
            log.error("topics are not told from the traffic: %s", error, extra={"action": "background_failed"})
        return 0

    def _is_due(self) -> bool:
        if not self._store.examples.counts():
            return False
        taken, revision = self._store.background.taken_at()
        kept = min(MOST, sum(row.requests for row in self._store.samples.stats()))
        return kept >= LEAST and (kept >= 2 * taken or self._store.examples.revision() > revision)

    def _newest(self) -> dict[str, Features]:
        """Return the features of the newest prompts by request id, as many of each draft."""
        drafts = sorted({route.draft for route in self._store.routes.list()})
        found: dict[str, Features] = {}
        for draft in drafts:
            found |= self._of(draft, MOST // len(drafts))
        return {request_id: features for request_id, features in found.items() if features.size}

    def _of(self, draft: str, most: int) -> dict[str, Features]:
        try:
            version = self._store.versions.current(draft, self._store.targets.newest())
        except UnknownDraft:
            return {}  # no server has given it weights yet
        tokenizer = load_tokenizer(self._store.versions.folder(version))
        ids = self._store.samples.recent(draft, limit=most) if tokenizer is not None else []
        reader = PromptReader(tokenizer)
        samples = self._store.samples.read(ids)
        return {s.request_id: features_of(reader.text(s.tokens[: s.prompt_len].tolist())) for s in samples}
