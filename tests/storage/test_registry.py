"""Entries of installed packages: found without an import, checked when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.errors import BadSetting
from storage.settings import Registry, Section, Settings


class Weights(Section):
    weight: float = 1.0


@dataclass(frozen=True)
class Rule:
    word: str
    settings: type[Section] = Section


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[Rule]:
    facts = tmp_path / "theirs-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = {
        "theirs": f"{__name__}:THEIRS", "absent": "no_such_module:RULE", "other": "json:loads", "own": "json:loads",
    }  # fmt: skip
    (facts / "entry_points.txt").write_text("[osd.test]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry("gamma", "gamma.rule", "osd.test", Rule, {"own": Rule("own", Weights)})


THEIRS = Rule("theirs", Weights)


def test_a_package_adds_entries_and_takes_none_of_osds_own_names(registry: Registry[Rule]) -> None:
    assert registry.names == ("own", "absent", "other", "theirs")
    assert registry.entry("own").word == "own" and registry.entry("theirs") == THEIRS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "'absent' (no_such_module:RULE) cannot be imported: ModuleNotFoundError"),
        ("other", "'other' (json:loads) is no Rule but function"),
        ("unheard", "there is no 'unheard'; known: own, absent, other, theirs"),
    ],
)
def test_what_is_no_entry_is_told(registry: Registry[Rule], name: str, words: str) -> None:
    with pytest.raises(BadSetting) as caught:
        registry.entry(name, "gamma.routes.sql")
    assert str(caught.value).startswith("settings: gamma.routes.sql: ") and words in str(caught.value)


def test_a_table_is_checked_by_the_entrys_own_section(registry: Registry[Rule]) -> None:
    gamma = Settings().changed(gamma={"theirs": {"weight": "0.5"}, "own": {"wieght": 2}, "nobodys": {}}).gamma
    assert registry.table("theirs", gamma) == Weights(weight=0.5)
    with pytest.raises(BadSetting, match=r"gamma\.own\.wieght: there is no such setting; did you mean 'weight'"):
        registry.table("own", gamma)
    with pytest.raises(BadSetting, match=r"gamma\.nobodys: there is no 'nobodys'"):
        registry.require_known(gamma)
