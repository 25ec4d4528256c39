"""Validation of a route's ``matches``: the one place that knows its keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from storage.errors import BadInput
from storage.routes.patterns import Pattern

LISTS = ("language", "topic", "tenant")
KEYS = (*LISTS, "pattern")
LANGUAGE = re.compile(r"[a-z]{2,3}")
LONGEST = 200
"""Maximum characters of a topic's or a tenant's name."""


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
