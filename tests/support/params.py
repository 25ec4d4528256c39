"""Parameters of which a few stand for all in the usual suite; ``-m long`` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some_of(values: Iterable[Any], *usual: Any) -> list[Any]:
    """Return each value as a parameter, marked ``long`` unless it is one of the usual ones."""
    return [value if value in usual else pytest.param(value, marks=pytest.mark.long) for value in values]
