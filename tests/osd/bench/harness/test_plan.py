"""A plan's fields, with their docstrings, are the options of its command."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from annotated_types import Ge
from typer.testing import CliRunner

from osd.bench.harness.plan import Count, TargetPlan, command, facts_of
from osd.bench.harness.report import BenchResult
from storage.errors import BadSetting
from storage.settings import Settings, load_settings


@dataclass(frozen=True, kw_only=True)
class SomePlan(TargetPlan):
    """Measure something."""

    arms: tuple[Literal["one", "other"], ...] = ("one",)
    """What is
    compared."""
    sizes: tuple[Annotated[float, Ge(0)], ...] = (0.0, 0.5)
    """Sizes."""
    files: tuple[Path, ...]
    """Files."""
    count: Count = 3
    """How many."""
    fast: bool = True
    """Whether."""
    out: Path | None = None
    """Folder."""


def run(*words: str) -> tuple[Any, SomePlan | None]:
    asked: list[SomePlan] = []

    def bench(plan: SomePlan, settings: Settings, watch: object) -> BenchResult:
        asked.append(plan)
        return BenchResult("some", facts_of(plan, target="t"), {})

    app = typer.Typer()
    app.command()(command(SomePlan, bench, lambda _: load_settings()))
    return CliRunner().invoke(app, list(words)), asked[0] if asked else None


def test_options_become_the_fields_of_the_plan() -> None:
    words = ["--files", "a,b", "--files", "c", "--arms", "other,one", "--sizes", "1,0.25", "--no-fast", "--json"]
    done, plan = run(*words, "--prompts", "sql.jsonl")
    assert done.exit_code == 0 and plan == SomePlan(
        files=(Path("a"), Path("b"), Path("c")), arms=("other", "one"), sizes=(1.0, 0.25), fast=False,
        prompts=("sql.jsonl",),
    )  # fmt: skip
    assert run("--files", "a")[1] == SomePlan(files=(Path("a"),))
    facts = facts_of(SomePlan(files=()), target="t")
    assert facts["target"] == "t" and "out" not in facts and list(facts)[:2] == ["target", "prompts"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arms", "others"], "--arms: 'others' is none of one, other"),
        (["--sizes", "1,-1"], "--sizes: '1,-1' is not a list of numbers from 0 on"),
        (["--sizes", ""], "--sizes: '' is not a list of numbers"),
    ],
)
def test_a_list_that_holds_something_else_is_named(words: list[str], said: str) -> None:
    done, plan = run("--files", "a", *words)
    assert plan is None and isinstance(done.exception, BadSetting) and said in str(done.exception)


def test_what_is_missing_or_too_small_is_refused() -> None:
    assert run()[0].exit_code == run("--files", "a", "--count", "0")[0].exit_code == 2


def test_docstrings_are_the_help() -> None:
    made = command(SomePlan, lambda *_: BenchResult("some", {}, {}), lambda _: load_settings())
    options = inspect.signature(made).parameters
    assert made.__doc__ == SomePlan.__doc__ and options["arms"].annotation.__metadata__[0].help == "What is compared."
    assert options["files"].default is inspect.Parameter.empty and options["sizes"].default is None
