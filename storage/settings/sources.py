"""Every setting that is in force, and where its value comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from storage.settings.load import OLD, default_path, load_settings, read_toml

DEFAULT = "default"
PASSWORD = re.compile(r"(?<=://)([^:@/\s]*):[^@/\s]+(?=@)")
"""A password within a URL."""


@dataclass(frozen=True, slots=True)
class SettingInForce:
    """One setting."""

    key: str
    """Its whole name: section, tables and key."""
    value: Any
    """Passwords within URLs are not shown."""
    source: str
    """``default``, a file, or an environment variable."""


def in_force(path: Path | None = None) -> list[SettingInForce]:
    """Return every setting with its source, in the order of the sections. ``path`` is as for ``load_settings``. Raises
    BadSetting."""
    settings, file = load_settings(path), path or default_path()
    said = dict(flat(read_toml(file))) if file else {}
    variables = {_key(name): name for name in os.environ if name.startswith("OSD_")}
    return [
        SettingInForce(key, _shown(value), _source(key, said, str(file), variables))
        for key, value in flat(settings.model_dump(mode="json"))
    ]


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value by its whole name; an empty table is one."""
    for key, value in values.items():
        if isinstance(value, BaseModel):
            value = value.model_dump(mode="json")
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _source(key: str, said: Mapping[str, Any], file: str, variables: Mapping[str, str]) -> str:
    """Return the strongest source that says something of a key: a variable may set a whole table, as JSON."""
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        if name := variables.get(".".join(parts[:end])):
            return name
    return file if key in said or any(name.startswith(f"{key}.") for name in said) else DEFAULT


def _key(variable: str) -> str:
    """Return the setting that a variable sets."""
    key = variable.removeprefix("OSD_").lower().replace("__", ".")
    for old, new in OLD.items():
        before = ".".join(old)
        if key == before or key.startswith(f"{before}."):
            key = ".".join(new) + key.removeprefix(before)
    return key


def _shown(value: Any) -> Any:
    return PASSWORD.sub(r"\1:***", value) if isinstance(value, str) else value
