"""Regular expressions of routes: RE2's, because its time grows with the text's length and with nothing else.

Python's own engine takes minutes for ``(a+)+$`` on thirty letters; one such pattern would stop serving. RE2 knows no
look-around and no back-references, and says so when such a pattern is added.
"""

from __future__ import annotations

from typing import Any

import re2

from storage.errors import BadPattern

PATTERN_LENGTH = 1_000
"""Characters of a pattern at most."""
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
        """Whether it occurs in the first TEXT_LENGTH characters."""
        return self._compiled.search(_readable(text[:TEXT_LENGTH])) is not None


def _readable(text: str) -> str:
    """RE2 reads UTF-8, which has no lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _said(error: Exception) -> str:
    """RE2's message, which ends with the part of the pattern that it means."""
    told = error.args[0] if error.args else ""
    return told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)
