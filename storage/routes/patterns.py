"""Regular expressions of routes, through RE2, whose time grows linearly with the text.

Python's own engine takes minutes for ``(a+)+$`` on thirty letters; one such pattern would stop serving. RE2 supports
neither look-around nor back-references; a pattern that uses them is refused when it is added.
"""

from __future__ import annotations

from typing import Any

import re2

from storage.errors import BadPattern

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
            self._compiled: Any = re2.compile(_readable(text), options)
        except re2.error as error:
            raise BadPattern(pattern=text, reason=_said(error)) from None

    def found_in(self, text: str) -> bool:
        """Return whether the pattern occurs in the first TEXT_LENGTH characters."""
        return self._compiled.search(_readable(text[:TEXT_LENGTH])) is not None


def _readable(text: str) -> str:
    """Return the text with lone surrogates replaced: RE2 reads UTF-8, which has none."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _said(error: Exception) -> str:
    """Return RE2's message, which ends with the offending part of the pattern."""
    told = error.args[0] if error.args else ""
    return told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)
