"""The context of a command: its configuration file, the settings, and the open store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from storage.settings import Settings
    from storage.store import Store


@dataclass
class CommandContext:
    """The state that commands share, in ``ctx.obj``; settings are read when first used."""

    config: Path | None = None
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What options of the command line say of the settings, by section."""

    @cached_property
    def settings(self) -> Settings:
        """The settings. Raises BadSetting."""
        from storage.settings import load_settings

        return load_settings(self.config, **self.changes)

    def say(self, **given: Mapping[str, Any]) -> None:
        """Take what options of the command line say of the settings, by section; None says nothing."""
        for section, values in given.items():
            said = {name: value for name, value in values.items() if value is not None}
            self.changes[section] = {**self.changes.get(section, {}), **said}
        self.__dict__.pop("settings", None)

    def changed(self, **given: Mapping[str, Any]) -> Settings:
        """Return the settings with what options say of them, from now on. Raises BadSetting."""
        self.say(**given)
        return self.settings

    def drafting(self, kind: str | None) -> Settings:
        """Return the settings, from now on with the drafter ``kind``; None names none. Raises BadSetting."""
        return self.changed(drafters={"kind": kind})

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Open the store and close it afterwards. Raises DatabaseUnreachable or SchemaOutdated."""
        from storage.sql.audit import acting
        from storage.store import open_store

        store = open_store(self.settings)
        if target := self.settings.serve.target or self.settings.attach.target:  # it shows a redaction hook text
            vocabulary = "osd.models.vocabulary"  # takes seconds to import
            store.samples.redactor.find_tokenizer = lambda: import_module(vocabulary).load_tokenizer(target)
        try:
            with acting("cli"):
                yield store
        finally:
            store.close()

    @contextmanager
    def store_as_it_is(self) -> Iterator[Store | None]:
        """Yield the store without making or changing anything; None where there is none yet, or of another schema.
        Raises StoreError where the database does not answer."""
        from storage.store import lay_out

        with lay_out(self.settings) as store:
            yield store if store.db.check()["current"] else None


def surroundings(ctx: typer.Context) -> CommandContext:
    """Return the context of the running command."""
    return ctx.ensure_object(CommandContext)
