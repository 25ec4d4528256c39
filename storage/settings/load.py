"""Reads the settings: ``osd.toml``, overridden by ``OSD_…`` variables.

A misspelt key or a value out of range is a :class:`~storage.errors.BadSetting` that names the key and what would be
right.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from storage.errors import BadSetting
from storage.settings.explain import explain, unknown
from storage.settings.settings import Settings

CONFIG_NAME = "osd.toml"
log = logging.getLogger("osd")
OLD = {("worker",): ("trainer",), ("fleet", "workers"): ("fleet", "processes")}
"""Names of the release before, which still hold, and what they are called now."""
PLUGIN = "OSD_VLLM_"
"""The variables of vLLM's plugin, which has no settings: it may run in the same environment."""


class _Variables(BaseSettings, Settings):
    """Tells pydantic which ``OSD_…`` variables there are. Nobody makes one."""

    model_config = SettingsConfigDict(env_prefix="OSD_", env_nested_delimiter="__")


def load_settings(path: Path | None = None, **overrides: dict[str, Any]) -> Settings:
    """Return the settings from a file, the environment, and ``overrides`` (section → {key: value}), the last strongest.

    ``path`` defaults to ``$OSD_CONFIG``, then ``./osd.toml``, then no file. Raises BadSetting.
    """
    path = path or default_path()
    variables = _read_environment()
    try:
        settings = Settings(**_merged(read_toml(path) if path else {}, variables))
    except ValidationError as error:
        blamed = "environment" if not path or _has(variables, error.errors()[0]["loc"]) else str(path)
        raise explain(error, blamed, Settings) from None
    return settings.changed(**overrides) if overrides else settings


def default_path() -> Path | None:
    """Return the file that is read where none is named; None for none."""
    if named := os.environ.get("OSD_CONFIG"):
        return Path(named)
    return Path(CONFIG_NAME) if Path(CONFIG_NAME).exists() else None


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a file sets, under the names of now. Raises BadSetting."""
    try:
        return _renamed(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise BadSetting(source=path, key="file", reason=f"cannot be read ({error.strerror})") from None
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(source=path, key="syntax", reason=str(error)) from None


def _read_environment() -> dict[str, Any]:
    """Return what ``OSD_…`` variables set, by section. Raises BadSetting for an unknown section, which pydantic
    ignores, as for a misspelt key."""
    for name in os.environ:
        if name.startswith("OSD_") and name != "OSD_CONFIG" and not name.startswith(PLUGIN):
            section = name.removeprefix("OSD_").lower().split("__")[0]
            if section not in Settings.model_fields and (section,) not in OLD:
                raise unknown("environment", name, section, list(Settings.model_fields))
    try:
        source = EnvSettingsSource(_Variables)
        source.env_vars = {_variable(name): value for name, value in source.env_vars.items()}
        return source()
    except SettingsError as error:
        reason = f"{error.__cause__}; lists and tables are written as JSON"
        raise BadSetting(source="environment", key=str(error).split('"')[1], reason=reason) from None


def _variable(name: str) -> str:
    """Return the name that a variable has now; names of the release before are warned of."""
    for old, new in OLD.items():
        before, after = (f"osd_{'__'.join(path)}" for path in (old, new))
        if name == before or name.startswith(f"{before}__"):
            _warn("environment", before.upper(), after.upper())
            return after + name.removeprefix(before)
    return name


def _renamed(values: dict[str, Any], source: str) -> dict[str, Any]:
    """Return what a file sets under the names of now; those of the release before are warned of."""
    for old, new in OLD.items():
        if _has(values, old):
            _warn(source, ".".join(old), ".".join(new))
            inner: Any = values
            for part in old[:-1]:
                inner = inner[part]
            values = _merged(values, _at(new, inner.pop(old[-1])))
    return values


def _at(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return a table that has the value at a path."""
    for part in reversed(path):
        value = {part: value}
    return dict(value)


@cache
def _warn(source: str, old: str, new: str) -> None:
    """Warn once a process of a name that the next release does not know."""
    log.warning("%s: %s is called %s now; the next release does not know the old name", source, old, new)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both together, table by table; where both say something ``above`` counts."""
    both = dict(below)
    for key, value in above.items():
        own = both.get(key)
        both[key] = _merged(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return both


def _has(values: Any, path: tuple[int | str, ...]) -> bool:
    """Return whether there is something at this path."""
    for part in path:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True
