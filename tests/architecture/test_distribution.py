"""What we tell people to install is ours, exists, and can be had from a checkout."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.distribution import DISTRIBUTION, install_extra, needing, osd_version
from storage.errors import BadSetting

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEXTS = {".py", ".md", ".toml", ".yaml", ".txt", ".html"}
FOLDERS = ("storage", "router", "osd", "trainer", "migrations", "benchmarks", "tests", "docs")
NOT_OURS = re.compile(r"\bosd\[[a-z]|\bpip3? install(?:\s+-\S+)*\s+['\"`]?osd(?!-llm)\b")
EXTRA = re.compile(r"(?:install_extra|needing)\(['\"](\w+)['\"][,)]|'\.\[([\w,]+)\]'")


def texts() -> Iterator[tuple[str, str]]:
    """Each text of the repository, with its path."""
    loose = (path for path in ROOT.iterdir() if path.is_file() and (path.suffix in TEXTS or not path.suffix))
    for path in (*loose, *(found for folder in FOLDERS for found in (ROOT / folder).rglob("*"))):
        if path.is_file() and path.suffix in {*TEXTS, ""} and path != Path(__file__) and not path.name.startswith("."):
            yield str(path.relative_to(ROOT)), path.read_text(errors="ignore")


@pytest.mark.parametrize("advice", ["pip install osd", "pip install -U 'osd[serve]'", "install osd[redis]"])
def test_what_installs_another_project_is_recognised(advice: str) -> None:
    assert NOT_OURS.search(advice)
    assert not NOT_OURS.search(advice.replace("osd", "osd-llm"))


def test_no_text_advises_installing_what_is_not_ours() -> None:
    assert [(path, found[0]) for path, text in texts() for found in NOT_OURS.finditer(text)] == []


def test_every_extra_that_a_text_names_exists() -> None:
    named = {extra for _, text in texts() for found in EXTRA.findall(text) for extra in "".join(found).split(",")}
    assert {"serve", "redis", "otel"} <= named <= set(PROJECT["optional-dependencies"])


def test_the_name_is_said_once_and_its_version_is_found() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert osd_version() == PROJECT["version"]
    assert "'.[serve]'" in install_extra("serve")


def test_what_is_not_installed_is_named_with_its_extra() -> None:
    with pytest.raises(BadSetting, match=r"osd attach: nobody_has_this is not installed.*\.\[serve\]"):  # noqa: SIM117
        with needing("serve", "osd attach"):
            import nobody_has_this  # type: ignore[import-not-found]  # noqa: F401
