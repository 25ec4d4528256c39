"""Stored prompts as the router saw them: of a chat its newest message by the user, without the template around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

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
