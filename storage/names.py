"""Names that follow from a draft's: of its acceptance heads, and of its lines for further targets."""

from __future__ import annotations


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
