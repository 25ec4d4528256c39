"""All sections together, and where their values come from: ``osd.toml``, overridden by ``OSD_…`` variables.

A misspelt key or a value out of range is a :class:`~storage.errors.BadSetting` that names the key and what would be
right.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from storage.errors import BadSetting
from storage.settings.drafting import DrafterSettings, GammaSettings, NgramSettings
from storage.settings.keeping import PrivacySettings, RetentionSettings, StorageSettings, TraceSettings
from storage.settings.learning import GateSettings, LearnSettings, TrainerSettings
from storage.settings.section import Section, explain, unknown_setting
from storage.settings.serving import (
    AttachSettings,
    FleetSettings,
    RouterSettings,
    ServerSettings,
    ServeSettings,
    UpstreamSettings,
)

CONFIG_NAME = "osd.toml"
DEFAULT = "default"
PLUGIN = "OSD_VLLM_"
"""The variables of vLLM's plugin, which has no settings: it may run in the same environment."""
PASSWORD = re.compile(r"(?<=://)([^:@/\s]*):[^@/\s]+(?=@)")
"""A password within a URL."""


class Settings(Section):
    """All of it. ``Settings()`` has every default; :func:`load_settings` reads file and environment."""

    storage: StorageSettings = StorageSettings()
    serve: ServeSettings = ServeSettings()
    gamma: GammaSettings = GammaSettings()
    drafters: DrafterSettings = DrafterSettings()
    ngram: NgramSettings = NgramSettings()
    server: ServerSettings = ServerSettings()
    fleet: FleetSettings = FleetSettings()
    router: RouterSettings = RouterSettings()
    learn: LearnSettings = LearnSettings()
    gate: GateSettings = GateSettings()
    trainer: TrainerSettings = TrainerSettings()
    retention: RetentionSettings = RetentionSettings()
    privacy: PrivacySettings = PrivacySettings()
    trace: TraceSettings = TraceSettings()
    attach: AttachSettings = AttachSettings()
    upstream: UpstreamSettings = UpstreamSettings()

    def changed(self, **sections: Mapping[str, Any]) -> Settings:
        """Return these settings with other values: section → {key: value}, a table's values likewise. Raises
        BadSetting."""
        try:
            return Settings(**self.with_changes(sections))
        except ValidationError as error:
            raise explain(error, "option", Settings) from None


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
    """Return what a file sets. Raises BadSetting."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
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
            if section not in Settings.model_fields:
                raise unknown_setting("environment", section, list(Settings.model_fields))
    try:
        return EnvSettingsSource(_Variables)()
    except SettingsError as error:
        reason = f"{error.__cause__}; lists and tables are written as JSON"
        raise BadSetting(source="environment", key=str(error).split('"')[1], reason=reason) from None


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


@dataclass(frozen=True, slots=True)
class SettingInForce:
    """One setting, and where its value comes from."""

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
    variables = {
        name.removeprefix("OSD_").lower().replace("__", "."): name for name in os.environ if name.startswith("OSD_")
    }
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


def _shown(value: Any) -> Any:
    return PASSWORD.sub(r"\1:***", value) if isinstance(value, str) else value
