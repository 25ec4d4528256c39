"""What a route matches: validation of its ``matches``, the one place that knows their keys, and its regular expression.

Patterns go through RE2, whose time grows linearly with the text. Python's own engine takes minutes for ``(a+)+$`` on
thirty letters; one such pattern would stop serving. RE2 supports neither look-around nor back-references; a pattern
that uses them is refused when it is added.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import re2

from storage.errors import BadInput, BadPattern

LISTS = ("language", "topic", "tenant", "model")
KEYS = (*LISTS, "pattern")
LANGUAGE = re.compile(r"[a-z]{2,3}")
LONGEST = 200
"""Maximum characters of a topic's, a tenant's or a model's name."""


def checked(matches: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``matches`` normalised for storage: lists without doubles, a lone word as a list of one, nothing empty.

    Raises BadInput for an unknown key or an invalid value, BadPattern.
    """
    for key in matches:
        if key not in KEYS:
            raise BadInput(reason=f"A route cannot match by {key!r}; {_hint(str(key))}.")
    kept: dict[str, Any] = {key: _words(key, matches[key]) for key in LISTS if matches.get(key)}
    if pattern := matches.get("pattern"):
        if not isinstance(pattern, str):
            raise BadInput(reason=f"A route's pattern is one regular expression, not {pattern!r}.")
        Pattern(pattern)
        kept["pattern"] = pattern
    return kept


def _hint(key: str) -> str:
    near = difflib.get_close_matches(key, KEYS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(KEYS)}"


def _words(key: str, value: Any) -> list[str]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise BadInput(reason=f"A route's {key} is a list of words, not {value!r}.")
    cleaned = list(dict.fromkeys(word.strip().lower() if key == "language" else word.strip() for word in words))
    for word in cleaned:
        if not 0 < len(word) <= LONGEST:
            raise BadInput(reason=f"{word[:40]!r} is no {key}: it needs 1 to {LONGEST} characters.")
        if key == "language" and not LANGUAGE.fullmatch(word):
            raise BadInput(reason=f"{word!r} is no language: use ISO 639-1, else 639-3, such as en, de or yue.")
    return cleaned


PATTERN_LENGTH = 1_000
"""Maximum length of a pattern in characters."""
TEXT_LENGTH = 20_000
"""Characters of a prompt that are searched, from its start."""


class Pattern:
    """A compiled pattern. Raises BadPattern for one that does not compile or is too long."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_LENGTH:
            raise BadPattern(pattern=f"{text[:40]}…", reason=f"it has {len(text)} characters, {PATTERN_LENGTH} at most")
        options = re2.Options()
        options.log_errors = False
        try:
            self._compiled: Any = re2.compile(text.encode("utf-8", "replace"), options)
        except re2.error as error:
            raise BadPattern(pattern=text, reason=_said(error)) from None

    def found_in(self, text: bytes) -> bool:
        """Return whether the pattern occurs in a text's :func:`searched` part."""
        return self._compiled.search(text) is not None


def searched(text: str) -> bytes:
    """Return the first TEXT_LENGTH characters as RE2 reads them, UTF-8 with lone surrogates replaced: encoded once, for
    however many patterns."""
    return text[:TEXT_LENGTH].encode("utf-8", "replace")


def _said(error: Exception) -> str:
    """Return RE2's message, which ends with the offending part of the pattern."""
    told = error.args[0] if error.args else ""
    return told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)
