"""What every part of the configuration is, and what is said of a setting that is wrong: the key, and what would be
right."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from storage.errors import BadSetting


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


def explain(error: ValidationError, source: str, model: type[BaseModel], inside: str = "") -> BadSetting:
    """Return the first of the errors in words. ``inside``: the key of ``model`` itself, where it is not all of the
    settings."""
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"]]
    key, known = ".".join([*filter(None, [inside]), *path]), _fields_at(model, path[:-1])
    no_table = problem["type"] == "dict_type" and path[-1] not in known  # an open section takes unknown tables alone
    if problem["type"] == "extra_forbidden" or no_table:
        return unknown_setting(source, key, known)
    return BadSetting(source=source, key=key, reason=f"{problem['msg']} (got {problem['input']!r})")


def unknown_setting(source: str, key: str, known: list[str]) -> BadSetting:
    """Return the error of a key that there is not."""
    near = difflib.get_close_matches(key.rpartition(".")[2], known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return BadSetting(source=source, key=key, reason=f"there is no such setting; {hint}")


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Return the keys of the section or table at a path; none where there is no such."""
    for part in path:
        found = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            return []
        model = found
    return list(model.model_fields)
