"""Things that a setting chooses among: those that ship with osd, and those that installed packages bring.

A package brings one by an entry point, which names an entry of the registry's own kind; nothing of it is imported
before it is asked for. Each entry has a section for its settings, so that the table of an entry that osd knows nothing
of is checked as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, Protocol, TypeVar

from pydantic import ValidationError

from storage.errors import BadSetting
from storage.settings.section import OpenSection, Section, explain


class RegistryEntry(Protocol):
    """What every entry of a registry has."""

    @property
    def settings(self) -> type[Section]:
        """The section that its table is checked by."""


E = TypeVar("E", bound=RegistryEntry)


class Registry(Generic[E]):
    """Entries by name. ``section`` is where their tables are, ``key`` the setting that chooses, ``group`` that of the
    entry points."""

    def __init__(self, section: str, key: str, group: str, kind: type[E], shipped: Mapping[str, E]) -> None:
        self.section, self.key, self.group, self.kind, self.shipped = section, key, group, kind, shipped
        self._loaded: dict[str, E] = dict(shipped)

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.shipped}

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, osd's own first; none is imported for it."""
        return (*self.shipped, *sorted(self._points))

    def entry(self, name: str, key: str | None = None) -> E:
        """Return an entry, imported if need be. ``key``: the setting that names it, if it is not the usual one. Raises
        BadSetting."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name, key or self.key)
        return self._loaded[name]

    def table(self, name: str, settings: OpenSection) -> Section:
        """Return the settings of one entry, checked. Raises BadSetting."""
        section, table = self.entry(name).settings, settings.table(name)
        if isinstance(table, Section):
            return table
        try:
            return section(**table)
        except ValidationError as error:
            raise explain(error, "settings", section, f"{self.section}.{name}") from None

    def require_known(self, settings: OpenSection) -> None:
        """Raise BadSetting for a table that belongs to no entry."""
        for name in settings.foreign:
            if name not in self.names:
                raise self._unknown(name, f"{self.section}.{name}")

    def _load(self, name: str, key: str) -> E:
        if name not in self._points:
            raise self._unknown(name, key)
        point = self._points[name]
        try:
            found = point.load()
        except Exception as error:  # another's code
            reason = f"{name!r} ({point.value}) cannot be imported: {type(error).__name__}: {error}"
            raise BadSetting(source="settings", key=key, reason=reason) from error
        if not isinstance(found, self.kind):
            reason = f"{name!r} ({point.value}) is no {self.kind.__name__} but {type(found).__name__}"
            raise BadSetting(source="settings", key=key, reason=reason)
        return found

    def _unknown(self, name: str, key: str) -> BadSetting:
        return BadSetting(source="settings", key=key, reason=f"there is no {name!r}; known: {', '.join(self.names)}")
