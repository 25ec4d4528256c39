"""Prompts of the traffic, as topics are told from them: taken again when topics were taught or the traffic has grown.

With two topics and nothing else to compare with, every prompt looks like one of the two. Which of these prompts belong
to a topic after all is left to the training of the topics (:mod:`router.topic_training`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from router.topic import features_of
from storage.errors import OsdError
from storage.routes.examples import Features
from storage.store import Store

MARKS = ("osd\u2063first", "osd\u2063answer", "osd\u2063second")


class PromptReader:
    """Turns prompts' tokens back into the texts by which they were routed."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._opening, self._closing = _around_user(tokenizer)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the newest user message of a chat's tokens, or the whole text where they hold no chat."""
        if self._opening:
            whole = str(self._tokenizer.decode(tokens, skip_special_tokens=False))
            _, found, rest = whole.rpartition(self._opening)
            if found:
                return (rest.partition(self._closing)[0] if self._closing else rest).strip()
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True)).strip()


def _around_user(tokenizer: Any) -> tuple[str, str]:
    """Return what the chat template writes before and after a user's message; both empty without a template."""
    if not getattr(tokenizer, "chat_template", None):
        return "", ""
    roles = ("user", "assistant", "user")
    chat = [{"role": role, "content": mark} for role, mark in zip(roles, MARKS, strict=True)]
    try:
        rest = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    except (TemplateError, ValueError, TypeError):
        return "", ""
    parts = []
    for mark in MARKS:
        before, found, rest = rest.partition(mark)
        if not found:
            return "", ""
        parts.append(before)
    return _common(parts[0][::-1], parts[2][::-1])[::-1].strip(), _common(parts[1], rest).strip()


def _common(one: str, other: str) -> str:
    """Return the longest common beginning."""
    return one[: next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))]


log = logging.getLogger("osd.trainer")

MOST = 200
"""Prompts that are taken; from 64 to 200 the share of strangers sent to a topic halved, and topics lost nothing."""
LEAST = 16
"""Prompts below which they say little of the traffic."""


class TopicBackground:
    """A worker's look at whether the background is due."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def take_if_due(self) -> int:
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
            found |= self._newest_of(draft, MOST // len(drafts))
        return {request_id: features for request_id, features in found.items() if features.size}

    def _newest_of(self, draft: str, most: int) -> dict[str, Features]:
        from osd.models.vocabulary import load_tokenizer  # takes seconds

        if (version := self._store.versions.find(draft, self._store.targets.newest())) is None:
            return {}  # no server has given it weights yet
        tokenizer = load_tokenizer(self._store.versions.folder(version))
        ids = self._store.samples.recent(draft, limit=most) if tokenizer is not None else []
        reader = PromptReader(tokenizer)
        samples = self._store.samples.read(ids)
        return {s.request_id: features_of(reader.text(s.tokens[: s.prompt_len].tolist())) for s in samples}
