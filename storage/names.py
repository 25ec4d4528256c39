"""Names that follow from others: of a draft's acceptance heads, of its lines for further targets, and of totals."""

from __future__ import annotations

import re


def head_of(draft: str) -> str:
    """Return the name under which a draft's acceptance heads have their versions, runs and lease."""
    return f"{draft}.head"


def draft_of_head(head: str) -> str:
    """Return the draft, or the line of it, whose acceptance heads have this name."""
    return head.removesuffix(".head")


LINE = "@"
"""Separator in the names of a draft's lines; no draft's name has it."""


def line_name(draft: str, target: str) -> str:
    """Return the name of a draft's line for a target that is not its first."""
    return f"{draft}{LINE}{target[:8]}"


def draft_of(line: str) -> str:
    """Return the draft whose line it is, see :mod:`storage.versions.targets`."""
    return line.partition(LINE)[0]


_LINE_OF_HEAD = re.compile(rf"{LINE}[0-9a-f]{{8}}(?=\.head$)")


def given_name(draft: str) -> str:
    """Return a name without the `@…` of a line's acceptance heads; any other as it is."""
    return _LINE_OF_HEAD.sub("", draft)


_MARK = re.compile(r" \(lossy ([a-z]+)\)$")


def lossy_name(controller: str, mode: str) -> str:
    """Return the name under which totals keep a controller's requests; ``mode`` is empty for exact ones."""
    return f"{controller} (lossy {mode})" if mode else controller


def lossy_mode(controller: str) -> str:
    """Return the mode that such a name tells; empty for exact requests."""
    found = _MARK.search(controller)
    return found[1] if found else ""
