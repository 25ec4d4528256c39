"""`osd config` and `osd use`: which settings are in force and from where, and an osd.toml for a pair."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from osd.cli.context import CommandContext
from osd.cli.out import NOTHING, Format, Output, columns, note
from osd.server.start import SHIPPED, shipped_store
from storage.errors import BadInput
from storage.settings import CONFIG_NAME, load_settings

COLUMNS = columns(
    {"value": Format(lambda value: NOTHING if value in (None, [], {}) else json.dumps(value))},
    key="setting", value="value", source="from",
)  # fmt: skip


@dataclass(frozen=True)
class SettingsFilter:
    """The settings that are shown."""

    key: Annotated[str, typer.Argument(metavar="KEY")] | None = None
    """This section or setting only: learn, learn.method."""
    changed: bool = False
    """Only what is not the default."""


def config(here: CommandContext, wanted: SettingsFilter, output: Output) -> None:
    """Show which settings are in force, and where each comes from: a file, a variable of the environment, the default.

    The environment is stronger than the file. Options of other commands are stronger than both. docs/operating.md says
    what each setting does.
    """
    from storage.settings.settings import DEFAULT, in_force

    key, rows = wanted.key, [asdict(one) for one in in_force(here.config)]
    if key is not None and not (rows := [one for one in rows if f"{one['key']}.".startswith(f"{key}.")]):
        raise BadInput(reason=f"There is no setting {key!r}; `osd config` shows those there are.")
    if wanted.changed:
        rows = [one for one in rows if one["source"] != DEFAULT]
    output.rows(rows, COLUMNS, empty="Every setting has its default.")
    if key is None and not output.as_json:
        note(f"The store is {here.settings.storage.database_url()}.")


@dataclass(frozen=True)
class WantedPair:
    """The pair, and where its store is."""

    target: Annotated[str, typer.Argument(metavar="TARGET")] | None = None
    """Folder or hub name of the target."""
    draft: Annotated[str, typer.Argument(metavar="DRAFT")] | None = None
    """Folder or hub name of the draft."""
    data: Annotated[Path, typer.Option(metavar="DIR")] | None = None
    """Where the store is. Default: where it is already."""
    shipped: bool = False
    """The small pair that ships with osd, with a store of its own."""


def use(here: CommandContext, pair: WantedPair) -> None:
    """Write the pair that is served into osd.toml here, so that every command in this folder means it and its store.

    Other settings in the file stay as they are.

    Examples: `osd use ./llama-8b ./llama-1b`, `osd use --shipped`
    """
    if pair.shipped is (pair.target is not None) or (pair.target is None) is not (pair.draft is None):
        raise BadInput(reason="Say which: a TARGET and a DRAFT, or --shipped.")
    data, wanted = pair.data, {"serve": {"target": named(pair.target), "draft": named(pair.draft)}}
    if pair.shipped:
        wanted["serve"] = {name: str(SHIPPED / name) for name in ("target", "draft")}
        data = data or shipped_store(here.settings)
    if data is not None:
        wanted["storage"] = {"directory": str(data.expanduser().absolute())}
    file = here.config or Path(CONFIG_NAME)
    text = file.read_text("utf-8") if file.exists() else ""
    file.write_text(with_values(text, wanted), "utf-8")
    note(f"{file} names {wanted['serve']['target']} and {wanted['serve']['draft']}; the store is "
         f"{load_settings(file).storage.database_url()}.")  # fmt: skip


def named(model: str | None) -> str:
    """Return a model's name; a folder's by its whole path, so that the file means it wherever it is read."""
    return str(Path(model).absolute()) if model and Path(model).is_dir() else str(model)


def with_values(text: str, wanted: dict[str, dict[str, str]]) -> str:
    """Return a TOML file's text with these values in its sections, all else as it was. Raises BadInput where that
    cannot be done line by line."""
    before = _parsed(text)
    for section, values in wanted.items():
        for key, value in values.items():
            text = _with_value(text, section, f"{key} = {json.dumps(value)}", rf"\s*{key}\s*=")
    after = _parsed(text)
    expected = {**before, **{section: {**before.get(section, {}), **values} for section, values in wanted.items()}}
    if after != expected:
        keys = ", ".join(f"{section}.{key}" for section, values in wanted.items() for key in values)
        raise BadInput(reason=f"osd.toml is written in a way that cannot be changed line by line; set {keys} yourself.")
    return text


def _with_value(text: str, section: str, line: str, key: str) -> str:
    lines = text.splitlines()
    heads = [i for i, one in enumerate(lines) if re.match(rf"\s*\[{section}\]\s*(#.*)?$", one)]
    if not heads:
        return "\n".join([*lines, *([""] if lines else []), f"[{section}]", line, ""])
    end = next((i for i in range(heads[0] + 1, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
    old = [i for i in range(heads[0] + 1, end) if re.match(key, lines[i])]
    if old:
        lines[old[0]] = line
    else:
        lines.insert(heads[0] + 1, line)
    return "\n".join([*lines, ""])


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(reason=f"osd.toml cannot be read ({error}); mend it, or give --config.") from None
