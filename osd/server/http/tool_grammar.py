"""Grammars of tool calls: an answer that must be one is written in the form that its model knows, with arguments that
match the tool's schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from osd.verification.grammar import json_rule
from storage.sampling import Grammar

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
"""The forms by the names of :data:`osd.server.http.tool_calls.FORMS`."""


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
