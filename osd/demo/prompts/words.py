"""The words for prompts: a .toml file beside each domain's module."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def words_of(domain: str) -> dict[str, Any]:
    """Return the contents of ``<domain>.toml``."""
    return tomllib.loads((Path(__file__).parent / f"{domain}.toml").read_text(encoding="utf-8"))
