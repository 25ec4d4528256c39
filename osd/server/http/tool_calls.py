"""Calls of tools, read out of an answer's text while it grows; and the grammar of an answer that must call one.

A form says how a family of models writes calls. What begins like a call is held back until it names one of the
request's tools and its arguments begin: from there on it is a call, whatever follows. What turns out to be none is text
like any other. Space between a call and its neighbours belongs to neither. All of this hangs on the text alone, so a
stream says what a whole answer says, however it was cut.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import regex

from osd.chat_template import TOOL, Chat, ChatTemplate, tool_call
from osd.server.http.answer_parts import CallDelta, Delta
from osd.verification.grammar import json_rule
from storage.errors import BadRequest
from storage.sampling import Grammar

STRING = r'"(?:[^"\\]|\\.)*+"'
OBJECT = rf'(?P<object>\{{(?:[^{{}}"]|{STRING}|(?&object))*+\}})'
ARGUMENTS = r'"(?:arguments|parameters)"\s*:\s*'
NAMED = r"(?P<name>NAMES)"
HEAD = (
    rf'\{{\s*(?:"(?:id|type)"\s*:\s*{STRING}\s*,\s*)*+'
    rf'(?:"name"\s*:\s*{NAMED}\s*,\s*{ARGUMENTS}(?=\{{)|{ARGUMENTS}{OBJECT}\s*,\s*"name"\s*:\s*{NAMED})'
)
"""The beginning of {"name": …, "arguments": {…}}, up to its arguments; with the arguments where they stand first."""
REST = rf"(?:(?:\s*,\s*{STRING}\s*:\s*(?:{STRING}|[\w.+-]+))*+\s*\}})?"
"""What may follow the arguments within that object."""
MARKS = regex.compile(r'\\.|["{}]', regex.DOTALL)


@dataclass(frozen=True, slots=True)
class Form:
    """How a family of models writes calls, as patterns; NAMES stands for the names of the tools."""

    begin: str
    """How a call begins, anywhere."""
    after: str
    """What may follow a call's arguments, with the beginning of the next call where it has no ``begin``."""
    markers: tuple[str, ...]
    """What announces a call; in some tokenizers a special token."""
    at_start: str | None = None
    """How a call begins at an answer's start."""
    new_id: Callable[[], str] = lambda: "call_" + secrets.token_hex(12)


FORMS = {
    "hermes": Form(rf"<tool_call>\s*{HEAD}", rf"{REST}(?:\s*</tool_call>)?", ("<tool_call>", "</tool_call>")),
    "llama3_json": Form(
        rf"<\|python_tag\|>\s*{HEAD}", rf"{REST}(?:\s*;\s*{HEAD})?", ("<|python_tag|>",), rf"\s*+{HEAD}"
    ),
    "mistral": Form(
        rf"\[TOOL_CALLS\]\s*(?:\[\s*{HEAD}|(?P<bare>BARE)\s*(?:\[CALL_ID\]\s*\w*+\s*)?(?:\[ARGS\]\s*)?(?=\{{))",
        rf"{REST}(?:\s*,\s*{HEAD}|\s*\])?",
        ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        new_id=lambda: secrets.token_hex(5)[:9],  # its templates take nine letters and digits, and nothing else
    ),
}  # fmt: skip
"""The forms by the names of vLLM's ``--tool-call-parser``."""


def join_calls(deltas: Iterable[CallDelta]) -> list[CallDelta]:
    """Return one delta for each call."""
    joined: dict[int, CallDelta] = {}
    for delta in deltas:
        before = joined.get(delta.index)
        joined[delta.index] = replace(before, arguments=before.arguments + delta.arguments) if before else delta
    return list(joined.values())


class ToolCallStream:
    """Divides one answer's text into content and calls. A push costs as much as its own text and what is held back."""

    def __init__(self, form: Form, names: tuple[str, ...], *, parallel: bool = True) -> None:
        self._form, self._parallel = form, parallel
        self._begin, self._after, self._at_start = patterns(form, names)
        self._text = self._space = ""
        """Not yet decided; space after content, which is shown when more content follows."""
        self._called = False
        """Whether nothing but space has come since the last call."""
        self._step = self._start if self._at_start else self._outside
        self._depth, self._quoted = 0, False
        self.count = 0
        """Calls so far."""
        self._content, self._calls = "", list[CallDelta]()

    def push(self, text: str, *, last: bool = False) -> tuple[str, list[CallDelta]]:
        """Return the content and the calls that this text adds. ``last``: nothing follows."""
        self._text, self._content, self._calls = self._text + text, "", []
        while self._step(last):
            pass
        if last:
            self._content += self._space
        calls = self._calls if self._parallel else [call for call in self._calls if call.index == 0]
        return self._content, join_calls(calls)

    def divide(self, delta: Delta) -> Delta:
        """Return a delta with the calls in its text as calls."""
        content, calls = self.push(delta.text, last=delta.finish_reason is not None)
        reason = "tool_calls" if delta.finish_reason == "stop" and self.count else delta.finish_reason
        return replace(delta, text=content, finish_reason=reason, calls=calls)

    def _start(self, last: bool) -> bool:
        assert self._at_start
        found = self._at_start.match(self._text, partial=not last)
        if found and found.partial:
            return False
        if found:
            self._open(found)
        else:
            self._step = self._outside
        return True

    def _outside(self, last: bool) -> bool:
        found = self._begin.search(self._text, partial=not last)
        self._say(self._text[: found.start()] if found else self._text)
        if found and not found.partial:
            self._open(found)
            return True
        self._text = self._text[found.start() :] if found else ""
        return False

    def _say(self, text: str) -> None:
        whole = (self._space + text).lstrip() if self._called else self._space + text
        shown = whole.rstrip()
        self._called = self._called and not shown
        self._content, self._space = self._content + shown, whole[len(shown) :]

    def _open(self, found: regex.Match[str]) -> None:
        """Begin the call whose head was found."""
        groups = found.groupdict()
        name = groups.get("bare") or json.loads(groups["name"])
        self._calls.append(CallDelta(self.count, groups.get("object") or "", self._form.new_id(), name))
        self.count, self._called = self.count + 1, True
        self._space, self._text = "", self._text[found.end() :]
        self._step = self._between if groups.get("object") else self._arguments

    def _arguments(self, last: bool) -> bool:
        """Show arguments up to their closing brace, which is found by counting outside of strings."""
        end = 0
        for mark in MARKS.finditer(self._text):
            end = mark.end()
            if mark[0] == '"':
                self._quoted = not self._quoted
            elif mark[0] in "{}" and not self._quoted:
                self._depth += 1 if mark[0] == "{" else -1
                if self._depth == 0:
                    break
        closed = end > 0 and self._depth == 0
        if not closed:
            end = len(self._text) - self._text.endswith("\\", end) * (not last)
        if end:
            self._calls.append(CallDelta(self.count - 1, self._text[:end]))
        self._text = self._text[end:]
        if closed:
            self._step = self._between
        return closed

    def _between(self, last: bool) -> bool:
        if not last and self._after.fullmatch(self._text, partial=True):
            return False
        found = self._after.match(self._text)
        if found.groupdict().get("name"):
            self._open(found)
        else:
            self._text, self._step = self._text[found.end() :], self._outside
        return True


class CallReader(NamedTuple):
    """How calls are read out of the answers to one request."""

    form: Form
    names: tuple[str, ...]
    parallel: bool
    hidden: frozenset[int] | None
    """Where a special token announces calls, so that texts are decoded with special tokens: the others, which they do
    not show nevertheless. Else None."""

    def stream(self) -> ToolCallStream:
        """Begin one answer."""
        return ToolCallStream(self.form, self.names, parallel=self.parallel)


def hidden_tokens(form: Form, special: Mapping[str, int]) -> frozenset[int] | None:
    """Return the special tokens (text -> id) that stay hidden where one of the form's markers is such a token, else
    None."""
    markers = {special[marker] for marker in form.markers if marker in special}
    return frozenset(special.values()) - markers if markers else None


@lru_cache(64)
def patterns(form: Form, names: tuple[str, ...]) -> tuple[Any, Any, Any]:
    """Return a form's patterns for tools of these names: begin, after, at_start."""
    quoted = "|".join(regex.escape(json.dumps(name, ensure_ascii=False)) for name in names)
    bare = "|".join(regex.escape(name) for name in sorted(names, key=len, reverse=True))

    def compiled(pattern: str | None) -> Any:
        return pattern and regex.compile(pattern.replace("NAMES", quoted).replace("BARE", bare), regex.DOTALL)

    return compiled(form.begin), compiled(form.after), compiled(form.at_start)


def detect(template: ChatTemplate, special: Iterable[str]) -> str | None:
    """Return the form in which a chat template writes a call, or None where that is not sure. ``special``: tokens that
    close a message."""
    user, call = {"role": "user", "content": "osd"}, tool_call("osd_name")
    make = partial(Chat, tools=[TOOL])
    try:
        before = template.render(make([user]))
        whole = template.render(make([user, {"role": "assistant", "tool_calls": [call]}], add_generation_prompt=False))
    except BadRequest:
        return None
    shared = next((i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
    turn = whole[shared:]
    names = [name for name, form in FORMS.items() if _reads(form, turn, call["function"], special)]
    return names[0] if len(names) == 1 else None


def _reads(form: Form, turn: str, called: dict[str, Any], special: Iterable[str]) -> bool:
    for token in set(special) - set(form.markers):
        turn = turn.replace(token, "")
    content, calls = ToolCallStream(form, (called["name"],)).push(turn, last=True)
    return not content.strip() and [json.loads(call.arguments) for call in calls] == [called["arguments"]]


WORD = re.compile(r"\bBEGIN\b|\bEND\b")


class CallForm(NamedTuple):
    """How a family of models writes calls, in Lark's notation."""

    one: str
    """A call; ``call`` is its object."""
    between: str
    """What stands between two calls."""
    whole: str = "calls"
    """An answer of ``calls``."""
    arguments: str = "arguments"
    """What the object calls its arguments."""
    words: Mapping[str, str] = {}
    """What BEGIN and END stand for: a special token where the tokenizer has it as one, else its letters."""


CALL_FORMS = {
    "hermes": CallForm(r'BEGIN "\n" call "\n" END', r'"\n"', words={"BEGIN": "<tool_call>", "END": "</tool_call>"}),
    "llama3_json": CallForm("call", '"; "', arguments="parameters"),
    "mistral": CallForm("call", '", "', 'BEGIN "[" calls "]"', words={"BEGIN": "[TOOL_CALLS]"}),
}
"""The forms by the names of :data:`FORMS`."""


def tool_grammar(
    tools: Sequence[tuple[str, Mapping[str, Any] | None]],
    form: str,
    tokenizer: Any,
    *,
    many: bool = True,
    field: str = "tool_choice",
) -> Grammar:
    """Return the grammar of one call, or of one or more (``many``), of these tools: names with the JSON schemas of
    their arguments, None for any object. ``field``: what asks for it, for errors."""
    wanted = CALL_FORMS[form]
    special = {str(token): number for number, token in tokenizer.added_tokens_decoder.items() if token.special}

    def spelt(found: re.Match[str]) -> str:
        word = wanted.words[found[0]]
        return f"<[{special[word]}]>" if word in special else _quoted(word)

    rules = [
        "start: " + WORD.sub(spelt, wanted.whole),
        f"calls: one ({wanted.between} one)*" if many else "calls: one",
        "one: " + WORD.sub(spelt, wanted.one),
        "call: " + " | ".join(f"call_{number}" for number in range(len(tools))),
    ]
    for number, (name, schema) in enumerate(tools):
        head = f'{{"name": {_quoted(name)}, "{wanted.arguments}": '
        rules += [f'call_{number}: {_quoted(head)} arguments_{number} "}}"']
        rules += [f"arguments_{number}: {json_rule(schema or {'type': 'object'})}"]
    return Grammar("lark", "\n".join(rules), field)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
