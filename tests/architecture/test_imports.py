"""Who imports whom, and what is not loaded when it is not needed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "celery", "kombu", "sklearn", "scipy", "matplotlib", "peft")


def test_the_contracts_of_the_import_direction_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists() and not shutil.which("lint-imports"):
        pytest.skip("import-linter is not installed; `make test` installs it")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


TURNED_ROUND = {"osd/kernels/host.py": "osd.engine.stats", "osd/drafters/pool.py": "osd.recording.queue"}


@pytest.mark.parametrize("path", TURNED_ROUND)
def test_an_import_that_runs_upwards_is_found(path: str, tmp_path: Path) -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed; `make test` installs it")
    for name in ("storage", "router", "osd", "trainer", "migrations", "benchmarks"):
        others = shutil.ignore_patterns("*.safetensors", "*.npz", "__pycache__", "static")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=others)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / path).open("a", encoding="utf-8") as file:
        file.write(f"import {TURNED_ROUND[path]}\n")
    done = subprocess.run(
        [linter, "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    module = path.removesuffix(".py").replace("/", ".")
    assert done.returncode == 1 and f"{module} -> {TURNED_ROUND[path]}" in done.stdout, done.stdout


LIGHT = (
    "storage.store", "router.fixed", "osd.cli.main", "osd.cli.stats", "osd.prompts", "trainer.__main__",
    "trainer.routes.apply", "osd.server.upstream.run",
)  # fmt: skip


@pytest.mark.parametrize("module", LIGHT)
def test_it_loads_without_the_heavy_libraries(module: str) -> None:
    code = f"import {module}, sys; print(*sorted({HEAVY} & sys.modules.keys()))".replace(str(HEAVY), str(set(HEAVY)))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


COMMANDS = ["stats acceptance", "stats rejections", "stats cost", "drafts list", "replay stats", "db check"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_runs_without_torch(command: str, tmp_path: Path) -> None:
    """The command itself is run, in a process that would fail if it imported torch or Celery."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['celery'] = None\n"
        f"sys.argv = ['osd', *{command.split()!r}, '--json']\n"
        "from osd.cli.main import main; main()"
    )
    variables = {"OSD_STORAGE__DIRECTORY": str(tmp_path), "PATH": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 5), done.stderr
    assert "Traceback" not in done.stderr
