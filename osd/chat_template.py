"""A chat as the model reads it: the whole of every message goes through the chat template, or is refused by its name.

A template is a program of the model's. Some read a message's content as a string and some as a list of parts, and one
that does not know a role, a field or tools leaves them out without a word. So every new shape of chat is rendered once
with marks in place of its texts, in each form that a message can take; a form that shows all of them is used.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from storage.errors import BadRequest

Json: TypeAlias = dict[str, Any]

REASONING = ("reasoning_content", "reasoning", "thinking")
"""The names under which templates read a message's reasoning."""
REFERENCES = {"role", "content", "name", "tool_calls", "tool_call_id"}
"""Fields of a message whose names say nothing in a template's source: marks tell, or they refer to what is shown."""
PRINTED = re.compile(r"""['"]type['"]: ['"]text['"]""")
"""How a list of parts looks that was printed as it is."""
SHAPES = 1024
"""Shapes of chats that are remembered."""
INSTEAD = "leave it out, or name a template that shows it with server.chat_template"


@dataclass(frozen=True, slots=True)
class Chat:
    """What a template is given."""

    messages: Sequence[Json]
    """Whole messages; arguments of tool calls are objects."""
    tools: Sequence[Json] | None = None
    documents: Sequence[Json] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    """The template's own variables, such as Qwen3's ``enable_thinking``."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class ChatTemplate:
    """The tokenizer's chat template, or another in its place."""

    def __init__(self, tokenizer: Any, source: str | None = None) -> None:
        self._tokenizer, self._given = tokenizer, source
        self._reserved = set(inspect.signature(tokenizer.apply_chat_template).parameters)
        self._forms: dict[bytes, int] = {}
        """Digest of a chat's shape -> the form that shows all of it."""

    @property
    def exists(self) -> bool:
        """Whether there is a template."""
        return bool(self._given or self._tokenizer.chat_template)

    def source(self, *, tools: bool = False) -> str:
        """Return the template that a chat goes through; some models have another one for tools. Empty: none."""
        try:
            return str(self._tokenizer.get_chat_template(self._given, [{}] if tools else None)) if self.exists else ""
        except ValueError:
            return ""

    def reads(self, name: str, *, tools: bool = False) -> bool:
        """Whether the template names this variable or field anywhere."""
        return re.search(rf"\b{re.escape(name)}\b", self.source(tools=tools)) is not None

    def render(self, chat: Chat) -> str:
        """Return the chat's text. Raises BadRequest, which names the field that the template would lose."""
        chat = replace(chat, messages=[self._known(message) for message in chat.messages])
        self._refuse_unread(chat)
        return self._apply(chat, FORMS[self._form(json.dumps(_marked(chat)))])

    def _form(self, marked: str) -> int:
        digest = hashlib.blake2b(marked.encode(), digest_size=16).digest()
        if (form := self._forms.get(digest)) is None:
            form = self._find_form(Chat(**json.loads(marked)))
            if len(self._forms) >= SHAPES:
                self._forms.clear()
            self._forms[digest] = form
        return form

    def _known(self, message: Json) -> Json:
        """Return a message with its reasoning under every name, and `developer` as the `system` of older models."""
        said = next((message[name] for name in REASONING if message.get(name)), None)
        message = {name: value for name, value in message.items() if value is not None and name not in REASONING}
        if message["role"] == "developer" and not self.reads("developer"):
            message["role"] = "system"
        return message | dict.fromkeys(REASONING, said) if said else message

    def _refuse_unread(self, chat: Chat) -> None:
        """Refuse what no mark can be put into, where the template does not even name it."""
        for name in chat.variables:
            if name in self._reserved:
                raise BadRequest(field=f"chat_template_kwargs.{name}", reason="it is no variable of a chat template")
        given: list[tuple[str, tuple[str, ...]]] = [
            (f"chat_template_kwargs.{name}", (name,)) for name in chat.variables
        ]
        given += [("documents", ("documents",))] if chat.documents else []
        for i, message in enumerate(chat.messages):
            others = sorted(message.keys() - REFERENCES)
            given += [(f"messages.{i}.{name}", REASONING if name in REASONING else (name,)) for name in others]
        for where, names in given:
            if not any(self.reads(name, tools=bool(chat.tools)) for name in names):
                raise BadRequest(field=where, reason=f"the chat template does not read it; {INSTEAD}")

    def _find_form(self, chat: Chat) -> int:
        """Return the first form in which the template shows every mark of a marked chat. Raises BadRequest."""
        parts_first = any(isinstance(message.get("content"), list) for message in chat.messages)
        lost: list[str] | None = None
        for form in sorted(range(len(FORMS)), key=lambda form: (form != PARTS) if parts_first else form):
            try:
                text = self._apply(chat, FORMS[form])
            except BadRequest:
                continue
            missing = [where for mark, where in _marks(chat) if mark not in text]
            if not missing and not PRINTED.search(text):
                return form
            lost = lost or missing
        if lost:
            raise BadRequest(field=lost[0], reason=_lost(chat, lost[0]))
        return 0  # it takes no such chat; the real one's error says why

    def _apply(self, chat: Chat, form: Callable[[Json], Json]) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(
                [form(message) for message in chat.messages], tools=chat.tools or None, documents=chat.documents,
                chat_template=self._given, add_generation_prompt=chat.add_generation_prompt,
                continue_final_message=chat.continue_final_message, tokenize=False, **chat.variables,
            ))  # fmt: skip
        except Exception as error:  # a template is somebody else's program: whatever it raises, it takes no such chat
            first = str(error).strip().splitlines() or [type(error).__name__]
            raise BadRequest(
                field="messages", reason=f"the chat template does not take these messages ({first[0]})"
            ) from None


def _string(message: Json) -> Json:
    content = message.get("content") or ""
    return message | {"content": content if isinstance(content, str) else "".join(part["text"] for part in content)}


def _parts(message: Json) -> Json:
    content = message.get("content")
    return message | {"content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _bare(message: Json) -> Json:
    return {name: value for name, value in _string(message).items() if name != "content" or value}


FORMS: tuple[Callable[[Json], Json], ...] = (_string, _parts, _bare)
"""The forms of a message's content: a string, a list of parts, a string that is left out where it is empty."""
PARTS = FORMS.index(_parts)


def _marked(chat: Chat) -> Json:
    """Return the chat's shape: the same messages with marks in place of their texts."""
    return {
        "messages": [_marked_message(i, message) for i, message in enumerate(chat.messages)],
        "tools": [TOOL] if chat.tools else None,
        "variables": chat.variables,
        "add_generation_prompt": chat.add_generation_prompt,
        "continue_final_message": chat.continue_final_message,
    }


TOOL_MARK = "osdmarktool"
TOOL = {"type": "function", "function": {
    "name": "osd_tool", "description": TOOL_MARK, "parameters": {"type": "object", "properties": {}},
}}  # fmt: skip


def _marked_message(i: int, message: Json) -> Json:
    marked: Json = {name: value for name, value in message.items() if name in ("role", *REASONING)}
    marked |= {name: f"osdmark{i}reasoning" for name in REASONING if name in message}
    content = message.get("content")
    if isinstance(content, str):
        marked["content"] = f"osdmark{i}content" if content else ""
    elif content is not None:
        marked["content"] = [{"type": "text", "text": f"osdmark{i}part{n}x"} for n in range(len(content))]
    if "name" in message:
        marked["name"] = f"osdmark{i}name"
    if message.get("tool_calls"):
        marked["tool_calls"] = [tool_call(f"osdmark{i}call{n}x") for n in range(len(message["tool_calls"]))]
    if "tool_call_id" in message:
        marked["tool_call_id"] = CALL_ID
    return marked


CALL_ID = "osdmark00"
"""An id of a call that Mistral's templates take as well: nine letters and digits."""


def tool_call(name: str) -> Json:
    """Return a call with a mark for its function's name, and one derived from it for its argument."""
    return {"id": CALL_ID, "type": "function", "function": {"name": name, "arguments": {"argument": f"{name}value"}}}


def _marks(chat: Chat) -> Iterator[tuple[str, str]]:
    """Yield the marks of a marked chat, and the field that each stands in."""
    if chat.tools:
        yield TOOL_MARK, "tools"
    for i, message in enumerate(chat.messages):
        content = message.get("content")
        for text in [content] if isinstance(content, str) else [part["text"] for part in content or ()]:
            yield text, f"messages.{i}.content"
        if "name" in message and message["role"] not in ("tool", "function"):  # there it repeats the call's
            yield message["name"], f"messages.{i}.name"
        for n, call in enumerate(message.get("tool_calls", ())):
            yield call["function"]["name"], f"messages.{i}.tool_calls.{n}"
            yield call["function"]["arguments"]["argument"], f"messages.{i}.tool_calls.{n}.function.arguments"


def _lost(chat: Chat, where: str) -> str:
    if where == "tools":
        return f"the chat template does not show tools to the model; {INSTEAD}"
    _, i, what, *_ = where.split(".")
    return f"the chat template does not show the {what} of this {chat.messages[int(i)]['role']} message; {INSTEAD}"
