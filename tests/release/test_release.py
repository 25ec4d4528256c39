"""What a release is: sdists and wheels of osd-llm and of vLLM's plugin, installed into empty environments. `make
release-check` runs this; it asks the package index, and takes minutes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "osd" / "attached" / "vllm" / "plugin"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PACKAGES = {"storage", "router", "osd", "trainer", "migrations"}
pytestmark = pytest.mark.release


def run(*command: object, folder: Path = ROOT) -> str:
    """What a command says; it must succeed, and sees nothing of this checkout by the way."""
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=1500, stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each distribution by its kind; wheels are built from the sdists."""
    out = tmp_path_factory.mktemp("dist")
    for folder in (ROOT, PLUGIN):
        run(sys.executable, "-m", "build", "--outdir", out, folder)
    names = {"sdist": "osd_llm-*.tar.gz", "wheel": "osd_llm-*.whl", "plugin": "osd_llm_vllm-*.whl"}
    return {kind: path for kind, name in names.items() for path in out.glob(name)}


def empty(folder: Path, *install: object) -> Path:
    """The Python of a new environment with these distributions."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *install)
    return python


def test_distributions_are_whole_and_hold_what_is_ours_alone(built: dict[str, Path]) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *built.values())
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = wheel.namelist()
    info = f"osd_llm-{VERSION}.dist-info"
    assert {name.split("/")[0] for name in names} == {*PACKAGES, info}
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE", "osd/demo/pair/README.md"} <= set(names)
    tracked = set(run("git", "ls-files", *PACKAGES).split())
    assert {name for name in names if not name.startswith(info)} == tracked
    with zipfile.ZipFile(built["plugin"]) as wheel:
        assert wheel.read(f"osd_llm_vllm-{VERSION}.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    with tarfile.open(built["sdist"]) as sdist:
        kept = {Path(name).parts[1] for name in sdist.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "tests", "benchmarks", "docs"} <= kept
    assert not kept & {".ci", "out", ".venv", "dist"}


def test_osd_runs_where_nothing_else_is_installed(built: dict[str, Path], tmp_path: Path) -> None:
    python = empty(tmp_path / "env", "-c", ROOT / "constraints.txt", "torch", built["wheel"])
    osd = tmp_path / "env" / "bin" / "osd"
    assert VERSION in run(osd, "--version", folder=tmp_path)
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"prompt": "How many singers are there?"}\n')
    said = run(osd, "generate", "--prompts", asked, "--max-tokens", 8, "--no-learn", folder=tmp_path)
    assert said.startswith("── line 1\n") and said.split("\n")[1]
    run(python, "-m", "pip", "check")


def test_the_plugin_is_one_that_vllm_finds(built: dict[str, Path], tmp_path: Path) -> None:
    python = empty(tmp_path / "env", "--no-deps", built["plugin"])
    ask = "from importlib.metadata import entry_points as e; print([p.value for p in e(group='vllm.endpoint_plugins')])"
    assert "osd_vllm.routes:OsdRoutes" in run(python, "-c", ask, folder=tmp_path)


def test_a_tag_and_the_changelog_name_the_version() -> None:
    tags = [tag for tag in run("git", "tag", "--points-at", "HEAD").split() if re.match(r"v\d", tag)]
    assert tags in ([], [f"v{VERSION}"])
    plugin = re.search(r'__version__ = "(.*)"', (PLUGIN / "osd_vllm" / "__init__.py").read_text())
    assert plugin and plugin[1] == VERSION
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" and (not tags or VERSION in headings)
