"""The reference pages in docs/, generated from the code: ``python -m osd.cli.reference``.

docs/cli.md is every command's help; docs/operating.md contains a table of every setting between two marks. A test
compares both with the output of this module, so neither can fall behind.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from osd.bench.harness.field_docs import field_docs
from osd.cli.main import app, loaded
from storage.settings import Section, Settings

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- settings: written by python -m osd.cli.reference -->", "<!-- end of settings -->"
LIMITS = {Ge: "≥ {ge}", Gt: "> {gt}", Le: "≤ {le}", Lt: "< {lt}"}


def commands(command: Any = None, name: str = "osd") -> Iterator[tuple[str, Any]]:
    """Yield every command from this one on, else from the root, with its full name, in the order of the help."""
    command = command or typer.main.get_command(app)
    yield name, command
    for child in map(loaded, getattr(command, "commands", {}).values()):
        yield from commands(child, f"{name} {child.name}")


def command_page() -> str:
    """Return the text of docs/cli.md."""
    parts = [
        "# The osd command",
        "Written from the command's own help by `python -m osd.cli.reference`; a test keeps it true.",
    ]
    parts += [command_section(name, command) for name, command in commands()]
    return "\n\n".join(parts) + "\n"


def command_section(name: str, command: Any) -> str:
    """Return a command's section: usage, description, arguments and options."""
    is_group = hasattr(command, "commands")
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    usage = " ".join([name, *map(argument_usage, arguments), *(["COMMAND"] if is_group else [])])
    lines = [f"- {signature(parameter)} {sentence(parameter)}" for parameter in command.params if parameter.help]
    parts = [f"## {name}", f"    {usage}", inspect.cleandoc(command.help or ""), "\n".join(lines)]
    return "\n\n".join(part for part in parts if part)


def argument_usage(parameter: Any) -> str:
    """Format an argument for the usage line."""
    name = f"{metavar(parameter)} ..." if parameter.nargs == -1 else metavar(parameter)
    return name if parameter.required else f"[{name}]"


def metavar(parameter: Any) -> str:
    """Return the placeholder for a value."""
    return str(parameter.metavar or parameter.name.upper())


def signature(parameter: Any) -> str:
    """Format an argument, or an option with its value: ``--since WHEN``."""
    if parameter.param_type_name == "argument":
        return f"`{metavar(parameter)}`"
    words = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return f"`{words}`" if parameter.is_flag else f"`{words} {metavar(parameter)}`"


def sentence(parameter: Any) -> str:
    """Return a parameter's help, with its default if it has one."""
    if isinstance(said := getattr(parameter, "show_default", None), str):
        return f"{parameter.help} Default: {said}."
    shown = parameter.default not in (None, False, (), []) and not callable(parameter.default)
    return f"{parameter.help} Default: `{parameter.default}`." if shown else str(parameter.help)


def settings_table() -> str:
    """Return the table of every setting, section by section."""
    lines = ["| setting | default | values | what it does |", "|---|---|---|---|"]
    for name, field, doc in settings_below(Settings):
        cells = (f"`{name}`", default(field), values(field), doc)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def settings_below(section: type[Section], name: str = "") -> Iterator[tuple[str, FieldInfo, str]]:
    """Yield every setting of a section and of its tables: its whole name, its field, and what stands below that."""
    docs = field_docs(section)
    for key, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from settings_below(field.annotation, f"{name}{key}.")
        else:
            yield f"{name}{key}", field, docs.get(key, "")


def default(field: FieldInfo) -> str:
    """Format a default as in osd.toml."""
    return "–" if field.default is None else f"`{field.default}`"


def values(field: FieldInfo) -> str:
    """Describe a setting's type or choices, and its limits."""
    return ", ".join([words_for(field.annotation), *limits_of(field)])


def limits_of(field: FieldInfo) -> list[str]:
    """Describe a setting's limits."""
    return [LIMITS[type(limit)].format_map(vars_of(limit)) for limit in field.metadata if type(limit) in LIMITS]


def vars_of(limit: Any) -> dict[str, Any]:
    """Return a limit's one attribute, by name."""
    return {name: getattr(limit, name) for name in ("ge", "gt", "le", "lt") if hasattr(limit, name)}


def words_for(annotation: Any) -> str:
    """Name a type for people."""
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(annotation))
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return " or ".join(words_for(part) for part in typing.get_args(annotation) if part is not type(None))
    if typing.get_origin(annotation) is typing.Annotated:
        inner, field = typing.get_args(annotation)
        return ", ".join([words_for(inner), *limits_of(field)])
    if typing.get_origin(annotation) is dict:
        inner = typing.get_args(annotation)[1]
        return "table of texts" if inner is str else f"table, each value one of {words_for(inner)}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return ", ".join(f"`{name}`" for name in annotation.model_fields)
    names = {int: "whole number", float: "number", str: "text", Path: "path", bool: "true, false"}
    return names.get(annotation, str(annotation))


def with_settings(page: str) -> str:
    """Return docs/operating.md with its table of settings replaced."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{settings_table()}\n\n{END}{after}"


def main() -> None:
    """Write both pages."""
    (DOCS / "cli.md").write_text(command_page(), encoding="utf-8")
    operating = DOCS / "operating.md"
    operating.write_text(with_settings(operating.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
