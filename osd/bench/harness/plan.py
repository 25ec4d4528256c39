"""A bench is a plan: a dataclass whose fields, with their docstrings, are the options of its command. Nobody lists them
again: :func:`command` makes the command of a plan, :func:`facts_of` what its result says of it.

A field of type tuple is an option that may be repeated, and whose value may hold several, separated by commas.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge, Le

from osd.bench.harness.field_docs import field_docs
from osd.bench.harness.prompts import Tokens, choose, listed, numbers, tokens_by_set
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch, watching
from storage.sampling import GREEDY, Sampling
from storage.settings import Settings

P = TypeVar("P")
Count = Annotated[int, Ge(1)]
Arrival = Literal["lockstep", "paced", "free"]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on one line instead of a table.")]
METAVARS: Mapping[Any, str] = {int: "N,…", float: "X,…", Path: "FILE,…"}
"""How lists are shown in help, by what they hold."""


@dataclass(frozen=True, kw_only=True)
class TargetPlan:
    """A bench of a target, over prompts."""

    resumes: ClassVar[bool] = True
    """Whether the same command goes on in the folder of a run that was stopped."""
    target: str | None = None
    """Target: a Hugging Face folder or hub name. Default: serve.target, else the shipped one."""
    prompts: tuple[str, ...] = ()
    """JSONL files, plain or .gz, with a `prompt` field; each is a data set. Default: the prompts that ship with osd."""


@dataclass(frozen=True, kw_only=True)
class PairPlan(TargetPlan):
    """A bench of a pair, over prompts."""

    draft: str | None = None
    """Draft: a Hugging Face folder or hub name. Default: serve.draft, else the shipped one."""


@dataclass(frozen=True, kw_only=True)
class SampledPlan:
    """A bench whose answers are sampled as it is asked to."""

    temperature: Annotated[float, Ge(0), Le(2)] = 0.0
    """Temperature of the answers; 0 is greedy."""
    top_p: Annotated[float, Le(1)] = 1.0
    """Answers are drawn from the likeliest tokens with this much probability."""

    @property
    def sampling(self) -> Sampling:
        """How the answers are sampled, whatever the model's generation_config.json says. Raises typer.BadParameter."""
        return sampling_of(self.temperature, self.top_p)


def sampling_of(temperature: float, top_p: float) -> Sampling:
    """Return how the answers of a bench are sampled. Raises typer.BadParameter."""
    if not top_p > 0:
        raise typer.BadParameter("it is the probability that is kept: above 0, at most 1", param_hint="--top-p")
    if temperature == 0:
        return GREEDY
    return Sampling(temperature, top_k=0, top_p=top_p, min_p=0.0, repetition_penalty=1.0)


def body_of(sampling: Sampling) -> dict[str, float]:
    """Return the fields by which a request to a server asks for such answers."""
    if sampling.greedy:
        return {"temperature": 0}
    named = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return {name: getattr(sampling, name) for name in named}


def new_folder(name: str) -> Path:
    """Return the path ``out/<name>-<date>-<time>``."""
    return Path("out") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def facts_of(plan: Any, **more: Any) -> dict[str, Any]:
    """Return what makes the figures of a run what they are: every field but where they are left, and ``more``."""
    return {each.name: getattr(plan, each.name) for each in fields(plan) if each.name != "out"} | more


def command(
    plan: type[P], bench: Callable[[P, Settings, Watch], BenchResult], settings: Callable[[typer.Context], Settings]
) -> Callable[..., None]:
    """Return the command of a bench: its options are the fields of ``plan``, its help the docstring."""
    hints, docs = get_type_hints(plan, include_extras=True), field_docs(plan)  # type: ignore[arg-type]

    def run(ctx: typer.Context, json: bool, **given: Any) -> None:
        asked = plan(**{name: _value(hints[name], name, value) for name, value in given.items() if value is not None})
        with watching(getattr(asked, "out", None) if getattr(plan, "resumes", True) else None) as watch:
            result = bench(asked, settings(ctx), watch)
        raise typer.Exit(result.show(as_json=json))

    options = [_parameter(each, hints[each.name], docs[each.name]) for each in fields(plan)]  # type: ignore[arg-type]
    options.append(inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption))
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    run.__signature__ = inspect.Signature([context, *options])  # type: ignore[attr-defined]
    run.__doc__ = plan.__doc__
    return run


def _parameter(field: Field[Any], hint: Any, doc: str) -> inspect.Parameter:
    """Return a field as typer reads it: a list of texts for a tuple, what it is for all else."""
    kind, bounds = _kind(hint)
    default: Any = inspect.Parameter.empty if field.default is MISSING else field.default
    flag, more = f"--{field.name.replace('_', '-')}", dict[str, Any](help=doc)
    if get_origin(kind) is tuple:
        inner = _kind(get_args(kind)[0])[0]
        kind = list[str]
        more |= {"metavar": METAVARS.get(inner, ",".join(get_args(inner)) or "NAME,…")}
        if default is not inspect.Parameter.empty:
            shown = ",".join(f"{each:g}" if isinstance(each, float) else str(each) for each in default)
            more["show_default"] = shown or False
            kind, default = list[str] | None, None
    elif kind is bool:
        flag = f"{flag}/--no-{flag[2:]}" if default else flag
    else:
        more |= bounds
    option = typer.Option(flag, **more)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _kind(hint: Any) -> tuple[Any, dict[str, Any]]:
    """Return a type without its bounds, and these as typer names them."""
    if get_origin(hint) is not Annotated:
        return hint, {}
    kind, *marks = get_args(hint)
    return kind, dict(("min", mark.ge) if isinstance(mark, Ge) else ("max", mark.le) for mark in marks)


def _value(hint: Any, name: str, value: Any) -> Any:
    """Return an option's value as the plan has it. Raises BadSetting for a list that holds something else."""
    if get_origin(kind := _kind(hint)[0]) is not tuple:
        return value
    inner, bounds = _kind(get_args(kind)[0])
    option = f"--{name.replace('_', '-')}"
    if get_origin(inner) is Literal:
        return choose(value, get_args(inner), option)
    if inner in (int, float):
        return numbers(value, option, inner, bounds.get("min", 1))
    return tuple(map(inner, listed(value)))


def data_sets(
    plan: TargetPlan, tokenizer: Any, count: int, longest: int, *, seed: int | None = None
) -> dict[str, list[Tokens]]:
    """Return up to ``count`` prompts of each of the plan's data sets; see :func:`tokens_by_set`."""
    return tokens_by_set(tokenizer, plan.prompts, count, longest, seed=seed)


def all_prompts(sets: Mapping[str, Sequence[Tokens]]) -> list[Tokens]:
    """Return the prompts of all data sets, one set after another."""
    return [tokens for some in sets.values() for tokens in some]
