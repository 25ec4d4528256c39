"""What is printed: plain JSON, CSV with a heading, tables that do not read markup into data."""

import json
import re
from enum import Enum
from pathlib import Path

import pytest
from rich.console import Console

from osd.cli import out


class Colour(str, Enum):
    RED = "red"


def test_json_has_no_nan_no_enum_and_no_path(capsys: pytest.CaptureFixture[str]) -> None:
    out.print_json({"a": float("nan"), "b": [float("inf"), Colour.RED], "c": Path("x"), "d": (1, "é")})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"a": None, "b": [None, "red"], "c": "x", "d": [1, "é"]}
    assert printed.count("\n") == 1


def test_csv_has_the_keys_as_heading(capsys: pytest.CaptureFixture[str]) -> None:
    out.print_csv([{"route": "sql", "alpha": 0.5}, {"route": "a,b", "alpha": None}])
    assert capsys.readouterr().out.splitlines() == ["route,alpha", "sql,0.5", '"a,b",']


def test_an_empty_table_is_a_note_and_leaves_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    out.print_table([], [out.Column("a", "a")], empty="nothing there")
    assert capsys.readouterr() == ("", "nothing there\n")


def test_a_table_shows_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    out.print_table([{"a": "[bold]x[/bold]", "b": None}], [out.Column("a", "a"), out.Column("b", "b")])
    shown = capsys.readouterr().out
    assert "[bold]x[/bold]" in shown
    assert out.NOTHING in shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 KB"), (2.5e9, "2.5 GB"), (3e15, "3000.0 TB")]
)
def test_bytes_in_the_unit_that_suits(value: float, shown: str) -> None:
    assert out.size(value) == shown


def test_numbers_are_never_broken_in_two(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a terminal is narrow words are folded; a number that does not fit says that it was cut."""
    columns = [out.Column("name", "name"), *(out.Column(key, key, out.NUMBER) for key in "abcd")]
    row = {"name": "a-name-that-is-long", "a": 12, "b": 345, "c": 6789, "d": 123_456_789}
    for width in range(16, 50):
        monkeypatch.setattr(out, "console", lambda width=width: Console(width=width))
        out.print_table([row], columns)
        lines = [line for line in capsys.readouterr().out.splitlines() if re.search(r"\d|…", line)]
        assert len(lines) == 1 and len(lines[0].split()) == 5, lines
    assert lines[0].split()[1:] == ["12", "345", "6789", "123456789"]
