"""docs/extending.md is true: its package is installed, its settings are read, and osd decodes with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support import launch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES: dict[str, str] = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, with what an installer would write beside them."""
    folder = tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    facts = folder / f"osd_example-{project['version']}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    (facts / "entry_points.txt").write_text(
        "\n".join(f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in points.items()) for group, points in groups)
    )
    return folder


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A module in a process that finds the package, and the folder's osd.toml."""
    return launch.run([sys.executable, "-m", *arguments], env=environment(folder, variables), cwd=folder)


def environment(folder: Path, variables: dict[str, str]) -> dict[str, str]:
    paths = {"PYTHONPATH": f"{ROOT}:{folder}", "PATH": ""}
    return {**paths, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}


def osd(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that has imported nothing."""
    command, own = [sys.executable, "-m", "osd.cli.main", *arguments], environment(folder, variables)
    return subprocess.run(command, env=own, cwd=folder, capture_output=True, text=True, check=False)


def test_it_decodes_as_the_page_says_and_the_text_is_the_targets(installed: Path, tmp_path: Path) -> None:
    said = re.search(r"```console\nosd generate (\"[^\"]+\") (.*)\n```", PAGE)
    assert said is not None
    asked = ["generate", json.loads(said[1]), *said[2].split(), "--max-tokens", "24", "--temperature", "0"]
    done = run(installed, "osd.cli.main", *asked)
    assert done.returncode == 0, done.stderr
    (tmp_path / "osd.toml").write_text("[gamma]\nrule = 'fixed'\ninitial = 0\n")
    plain = run(tmp_path, "osd.cli.main", *asked)
    assert plain.returncode == 0, plain.stderr
    own, targets = (json.loads(each.stdout) for each in (done, plain))
    assert own["text"] == targets["text"] and own["rounds"] < targets["rounds"]


CASES = {
    "OSD_GAMMA__RULE": ("dubling", "gamma.rule: there is no 'dubling'; known: goodput"),
    "OSD_DRAFTERS__KIND": ("echoes", "drafters.kind: there is no 'echoes'; known: causal"),
    "OSD_GAMMA__DOUBLING__LEAST": ("0", "gamma.doubling.least: "),
    "OSD_GAMMA__DOUBLING__LEATS": ("1", "gamma.doubling.leats: there is no such setting; did you mean 'least'?"),
    "OSD_DRAFTERS__ECHO__LONGER": ("1", "drafters.echo.longer: there is no such setting; did you mean 'longest'?"),
    "OSD_GAMMA__TRIPLING__LEAST": ("1", "gamma.tripling: there is no 'tripling'"),
}


CHECK = """
import json, os, sys
from osd.drafters.factory import require_drafter_kind
from osd.gamma import require_rules
from storage.errors import BadSetting
from storage.settings import load_settings

for name, value in json.loads(sys.argv[1]).items():
    os.environ[name] = value
    try:
        settings = load_settings()
        require_rules(settings.gamma)
        require_drafter_kind(settings)
        print("nothing is wrong")
    except BadSetting as error:
        print(error)
    del os.environ[name]
"""


def test_what_is_wrong_is_named_and_third_parties_names_are_listed(installed: Path) -> None:
    values = json.dumps({"OSD_DRAFTERS__ECHO__LONGEST": "3"} | {name: value for name, (value, _) in CASES.items()})
    (installed / "a_check.py").write_text(CHECK)
    done = run(installed, "a_check", values)
    right, *said = done.stdout.splitlines()
    assert right == "nothing is wrong", done.stderr
    for line, (_, words) in zip(said, CASES.values(), strict=True):
        assert words in line
    known = [line.partition("known: ")[2].split(", ") for line in said]
    assert "doubling" in known[0] and "doubling" not in known[1] and "echo" in known[1]


def test_commands_that_only_look_import_neither(installed: Path, tmp_path: Path) -> None:
    """Torch is not there, and both modules end the process that imports them."""
    site = tmp_path / "site"
    (site / "osd_example").mkdir(parents=True)
    for name in ("doubling", "echo"):
        (site / "osd_example" / f"{name}.py").write_text("raise SystemExit(99)\n")
    facts = next(installed.glob("*.dist-info"))
    (site / facts.name).mkdir()
    for part in facts.iterdir():
        (site / facts.name / part.name).write_bytes(part.read_bytes())
    (site / "osd.toml").write_text(FILES["osd.toml"])
    (site / "torch.py").write_text("raise SystemExit(98)\n")
    for command in (["stats", "acceptance"], ["drafts", "list"]):
        done = osd(site, *command, "--json", OSD_STORAGE__DIRECTORY=str(tmp_path / "data"))
        assert done.returncode in (0, 5), (done.returncode, done.stderr)
    assert osd(site, "generate", "hello", "--no-learn").returncode == 98
