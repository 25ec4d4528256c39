"""What a command starts from: the configuration file asked for, the settings, and the open store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from storage.settings import Settings, load_settings

if TYPE_CHECKING:
    from storage.store import Store


@dataclass
class Surroundings:
    """Everything that commands share. It lives in ``ctx.obj``; settings are read when first asked for."""

    config: Path | None = None

    @cached_property
    def settings(self) -> Settings:
        """The settings. Raises BadSetting."""
        return load_settings(self.config)

    def serving(self, **changed: object) -> Settings:
        """The settings, from now on with what options of the command line say of ``serve``; None says nothing. Raises
        BadSetting."""
        if said := {name: value for name, value in changed.items() if value is not None}:
            self.settings = load_settings(self.config, serve=said)
        return self.settings

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The store, closed afterwards. Raises DatabaseUnreachable or SchemaOutdated."""
        from storage.store import open_store

        store = open_store(self.settings)
        try:
            yield store
        finally:
            store.close()


def surroundings(ctx: typer.Context) -> Surroundings:
    """The surroundings of the command that runs."""
    return ctx.ensure_object(Surroundings)
