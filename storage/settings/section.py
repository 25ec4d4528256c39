"""What every part of the configuration is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def with_changes(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that are set, with ``changes`` on top: {key: value}. What changes in a table leaves the
        table's other values; a plain mapping is replaced."""
        values = self.model_dump(exclude_unset=True)
        for key, value in changes.items():
            own = getattr(self, key, None)
            tables = isinstance(own, Section) and isinstance(value, Mapping)
            values[key] = cast(Section, own).with_changes(value) if tables else value
        return values


class OpenSection(Section):
    """A section of things that third parties may add to: it keeps their tables as they are written. Whoever makes such
    a thing checks its table (:class:`storage.settings.registry.Registry`)."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Any]] = Field(init=False)

    def table(self, name: str) -> Section | dict[str, Any]:
        """Return the table of one choice; an empty one where nothing is set."""
        own = getattr(self, name) if name in type(self).model_fields else self.foreign.get(name)
        return own if isinstance(own, Section | dict) else {}

    @property
    def foreign(self) -> dict[str, dict[str, Any]]:
        """Tables that osd itself knows nothing of, by name."""
        return self.__pydantic_extra__ or {}
