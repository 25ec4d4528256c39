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


def test_imports_that_run_upwards_are_found(tmp_path: Path) -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed; `make test` installs it")
    for name in ("storage", "router", "osd", "trainer", "migrations", "benchmarks"):
        others = shutil.ignore_patterns("*.safetensors", "*.npz", "__pycache__", "static")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=others)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path, above in TURNED_ROUND.items():
        with (tmp_path / path).open("a", encoding="utf-8") as file:
            file.write(f"import {above}\n")
    done = subprocess.run(
        [linter, "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    for path, above in TURNED_ROUND.items():
        assert f"{path.removesuffix('.py').replace('/', '.')} -> {above}" in done.stdout, done.stdout


LIGHT = (
    "storage.store", "router.fixed", "osd.cli.main", "osd.cli.stats", "osd.prompts", "trainer.__main__",
    "trainer.routes.apply", "osd.server.upstream.run",
)  # fmt: skip


def test_they_load_without_the_heavy_libraries() -> None:
    code = (
        "import sys\n"
        "from importlib import import_module\n"
        f"for module in {LIGHT!r}:\n"
        "    import_module(module)\n"
        f"    if found := sorted({set(HEAVY)!r} & sys.modules.keys()): sys.exit(f'{{module}} imports {{found}}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


COMMANDS = (
    "--help", "stats acceptance", "stats positions", "stats change", "stats rejections", "stats gain", "stats runs",
    "router list", "drafts list", "drafts show none", "replay stats", "db check", "db upgrade",
    "engines list", "engines show none", "servers list", "trainer list", "keys list", "audit", "config",
    "engines probe http://127.0.0.1:9 --kind sglang", "engines tune http://127.0.0.1:9",
    "drafts export none x", "replay import none.jsonl",
)  # fmt: skip
PLAIN = ("--help", "replay export", "db upgrade", "drafts export")
"""Those that have no --json."""
ABSENT = ("torch", "transformers", "numba", "sklearn", "peft", "celery")


def test_commands_that_look_import_none_of_what_decodes_and_trains(tmp_path: Path) -> None:
    """Each is run, one after the other, in a process that would fail if it imported one of them."""
    commands = (*COMMANDS, f"replay export {tmp_path / 'all.parquet'}")
    code = (
        "from osd.cli.main import app\n"
        f"for words in {commands!r}:\n"
        f"    try: app(words.split() if words.startswith({PLAIN!r}) else [*words.split(), '--json'], prog_name='osd')\n"
        "    except SystemExit as end: assert end.code in (0, 1, 2, 3, 5), words\n"
    )
    run_without(ABSENT, code, tmp_path)


def run_without(absent: tuple[str, ...], code: str, data: Path) -> None:
    """Run the code in a process that fails where it imports one of the libraries."""
    head = f"import sys\nfor name in {absent!r}: sys.modules[name] = None\n"
    variables = {"OSD_STORAGE__DIRECTORY": str(data), "PATH": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", head + code]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_doctor_tells_of_machine_and_store_before_it_imports_what_decodes(tmp_path: Path) -> None:
    code = (
        "from osd.cli.context import CommandContext\n"
        "from osd.cli.doctor import without_torch\n"
        "found = list(without_torch(CommandContext()))\n"
        "assert {one.part for one in found} >= {'packages', 'database', 'broker', 'trainers'}, found\n"
        "assert all(one.state != 'broken' for one in found), found\n"
    )
    run_without((*ABSENT, "alembic"), code, tmp_path)


def test_a_store_that_is_there_is_opened_without_its_migrations(tmp_path: Path) -> None:
    code = (
        "from osd.cli.main import app; app(['stats', 'acceptance', '--json'], prog_name='osd', standalone_mode=False)\n"
    )
    run_without((), code, tmp_path)
    run_without((*ABSENT, "alembic"), code, tmp_path)


def test_an_engine_without_adapters_is_started_without_peft(tmp_path: Path) -> None:
    run_without(("peft", "sklearn", "matplotlib", "celery"), "import osd.engine.session\n", tmp_path)


def test_the_help_of_the_root_imports_no_command() -> None:
    code = "import osd.cli.main, sys; print(*sorted(name for name in sys.modules if name.startswith('osd.cli.')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["osd.cli.command", "osd.cli.context", "osd.cli.main"]
