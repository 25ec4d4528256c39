"""Rendering of a chat as a prompt, by the tokenizer's own template or by a configured one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from osd.server.http.errors import ApiError
from osd.server.http.wire import Message
from storage.errors import BadSetting


def read_template(path: Path | None) -> str | None:
    """Return the template in a file. Raises BadSetting."""
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(source="server", key="server.chat_template", reason=f"cannot be read ({error})") from None


def chat_text(
    tokenizer: Any, template: str | None, messages: Sequence[Message], *, add_generation_prompt: bool = True
) -> str:
    """Return the chat as the model reads it. Raises ApiError where there is no template, or it rejects the chat."""
    if not (template or tokenizer.chat_template):
        reason = "the model has no chat template; use /v1/completions, or name a template with server.chat_template"
        raise ApiError(reason=reason, param="messages", code="no_chat_template")
    chat = [{"role": _role(message), "content": message.text} for message in messages]
    try:
        return str(tokenizer.apply_chat_template(
            chat, chat_template=template, add_generation_prompt=add_generation_prompt, tokenize=False
        ))  # fmt: skip
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        reason = f"the chat template does not take these messages ({first[0]})"
        raise ApiError(reason=reason, param="messages") from None


def _role(message: Message) -> str:
    """Return the message's role; `developer` is what newer clients call `system`."""
    return "system" if message.role == "developer" else message.role


def last_user_text(messages: Sequence[Message]) -> str:
    """Return the newest message of the user, by which the router decides."""
    said = [message.text for message in messages if message.role == "user"]
    return said[-1] if said else messages[-1].text
