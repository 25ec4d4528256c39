"""How totals name requests that a lossy mode served: by their controller's name, so that sums never mix with exact
ones."""

from __future__ import annotations

import re

_MARK = re.compile(r" \(lossy ([a-z]+)\)$")


def lossy_name(controller: str, mode: str) -> str:
    """Return the name under which totals keep a controller's requests; ``mode`` is empty for exact ones."""
    return f"{controller} (lossy {mode})" if mode else controller


def lossy_mode(controller: str) -> str:
    """Return the mode that such a name tells; empty for exact requests."""
    found = _MARK.search(controller)
    return found[1] if found else ""
