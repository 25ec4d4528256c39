"""The reference pages say what the code says; `python -m osd.cli.reference` writes them anew."""

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

from typer.main import get_command

from osd.cli.main import app
from osd.cli.reference import DOCS, command_page, commands, settings_table, with_settings
from storage.settings import Settings

OPERATING = DOCS / "operating.md"


def test_the_page_of_commands_is_that_of_the_code() -> None:
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == command_page()


def test_the_table_of_settings_is_that_of_the_code() -> None:
    page = OPERATING.read_text(encoding="utf-8")
    assert page == with_settings(page)


def test_every_setting_has_a_row_and_a_sentence() -> None:
    rows = [line.split(" | ") for line in settings_table().splitlines()[2:]]
    assert [row[0] for row in rows] == [f"| `{name}`" for name in names(Settings().model_dump())]
    assert all(row[3].rstrip(" |").endswith(".") for row in rows)


def names(values: dict[str, Any], before: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield from names(value, f"{before}{key}.") if value and isinstance(value, dict) else [f"{before}{key}"]


def test_every_command_and_option_says_what_it_does() -> None:
    page = command_page()
    assert "None" not in page
    for section in page.split("\n## ")[1:]:
        assert len(section.split("\n\n")) >= 3, section


def test_the_help_of_the_root_is_what_each_command_says_of_itself() -> None:
    """It is written down a second time, so that `osd --help` imports no command."""
    said = {name: command.help for name, command in commands()}
    for name, command in get_command(app).commands.items():
        assert command.help == cleandoc(said[f"osd {name}"]).split("\n\n")[0].replace("\n", " "), name
