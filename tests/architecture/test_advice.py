"""What an error advises can be done: commands, options and settings that a text names are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from osd.cli.reference import commands as every_command
from storage.settings import Settings
from storage.settings.section import Section

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"`?\bosd ((?:[a-z]+ )*[a-z]+)")
SETTING = re.compile(rf"(?<![\w./-])((?:{'|'.join(Settings.model_fields)})\.[a-z_]+)\b(?![./(])")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z_-]+")
OTHERS = {
    "--help", "--error-unmatch", "--full-name",
    "--dbname", "--exit-on-error", "--format", "--no-owner", "--no-privileges", "--single-transaction", "--snapshot",
    "--multi_gpu", "--num_machines", "--num_processes", "--main_process_port", "--mixed_precision", "--dynamo_backend",
    "--module",
}  # fmt: skip
"""Options of every command, of git, of PostgreSQL's programs, and of accelerate's."""
VLLM = {
    "--tool-call-parser", "--scheduler-cls", "--logprobs-mode", "--max-logprobs", "--speculative-config",
    "--middleware", "--worker-extension-cls", "--per-request-spec-decode-metrics",
    "--served-model-name", "--kv-transfer-config",
}  # fmt: skip
SGLANG = {
    "--dp-size", "--enable-metrics", "--speculative-algorithm", "--speculative-draft-model-path",
    "--speculative-num-steps",
}  # fmt: skip
FILES = {"ngram.json"}
ELSEWHERE = ("osd/bench/", "osd/demo/", "trainer/__main__.py", "storage/settings/explain.py")
"""Commands of `python -m`, and names of earlier releases."""


def texts() -> Iterator[tuple[str, str]]:
    """Every text in the code that may reach a user, with its place: not what a module says of itself."""
    for package in ("storage", "router", "osd", "trainer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name, tree = str(path.relative_to(ROOT)), ast.parse(path.read_text())
            for node in ast.walk(tree) if not name.startswith(ELSEWHERE) else ():
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node is not tree.body[0].value:  # type: ignore[attr-defined]
                    yield f"{name}:{node.lineno}", " ".join(node.value.split())


@cache
def found(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """What texts name, and where."""
    return [(where, name) for where, text in texts() for name in pattern.findall(text)]


def commands() -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Every command and group with its options."""
    for name, command in every_command():
        options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        yield tuple(name.split()[1:]), options


def test_every_command_that_a_text_names_exists() -> None:
    known = {path for path, _ in commands()}
    groups = {path[0] for path in known if len(path) > 1}
    named = [(where, tuple(name.split())) for where, name in found(COMMAND)]
    assert len(named) > 100
    assert not [one for one in named if one[1][0] in groups and len(one[1]) > 1 and one[1][:2] not in known]


def test_every_option_that_a_text_names_exists() -> None:
    known = {option for _, options in commands() for option in options} | OTHERS | VLLM | SGLANG
    assert not [one for one in found(OPTION) if one[1] not in known]


def settings(section: type[Section] = Settings, path: str = "") -> Iterator[str]:
    """Every setting by its name."""
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from settings(inner, f"{path}{name}.")
        yield f"{path}{name}"


def test_every_setting_that_a_text_names_exists() -> None:
    known = set(settings())
    named = [one for one in found(SETTING) if one[1] not in FILES]
    assert len(named) > 50 and not [one for one in named if one[1] not in known]
