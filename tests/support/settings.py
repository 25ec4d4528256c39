"""Settings in one line: keys as in the environment, SECTION__KEY and SECTION__TABLE__KEY."""

from __future__ import annotations

from typing import Any

from storage.settings import Settings


def settings_of(**values: Any) -> Settings:
    """Returns the defaults with these values; nothing is read from file or environment."""
    return changed(Settings(), **values)


def changed(settings: Settings, **values: Any) -> Settings:
    """Returns the settings with other values. Raises BadSetting."""
    sections: dict[str, Any] = {}
    for name, value in values.items():
        *path, key = name.split("__")
        place = sections
        for part in path:
            place = place.setdefault(part, {})
        place[key] = value
    return settings.changed(**sections)
