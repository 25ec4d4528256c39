"""What a command is: a function whose parameters are its context, its arguments, and dataclasses of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from osd.bench.harness.field_docs import field_docs
from osd.cli.context import CommandContext, surroundings

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended."""
Command = TypeVar("Command", bound=Callable[..., None])


class CommandGroup(typer.Typer):
    """A group of commands, each as :func:`with_options` reads it."""

    def __init__(self, help: str, **settings: Any) -> None:
        super().__init__(**{"no_args_is_help": True, "help": help, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:
        """Add a command."""
        add = super().command(name, **settings)

        def register(command: Command) -> Command:
            add(with_options(command))
            return command

        return register


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command for Typer: in place of each parameter that is a dataclass it takes the dataclass's fields as
    options, after the command's own, and in place of a CommandContext Typer's own context.

    What stands below a field is the option's help, a field that is False is a flag, and the dataclass's ``PANEL``, if
    it has one, is the heading of its options in the command's help. A parameter that is no dataclass may have its help
    as a text in its ``Annotated``.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = sorted(inspect.signature(command).parameters.values(), key=lambda one: is_options(hints[one.name]))

    @wraps(command)
    def run(**given: Any) -> None:
        for parameter in parameters:
            hint = hints[parameter.name]
            if hint is CommandContext:
                given[parameter.name] = surroundings(given[parameter.name])
            elif is_options(hint):
                options = {field.name: given.pop(field.name) for field in fields(hint)}
                given[parameter.name] = hint(**options)
        command(**given)

    taken = [one for parameter in parameters for one in _taken(parameter, hints[parameter.name])]
    run.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in taken}
    return run


def is_options(hint: Any) -> bool:
    """Return whether a parameter is a set of options."""
    return is_dataclass(hint) and hint is not CommandContext


def _taken(parameter: inspect.Parameter, hint: Any) -> list[inspect.Parameter]:
    """Return what Typer takes in place of a parameter."""
    if is_options(hint):
        hints, docs, panel = get_type_hints(hint, include_extras=True), field_docs(hint), getattr(hint, "PANEL", None)
        return [_option(one.name, one.default, hints[one.name], docs.get(one.name), panel) for one in fields(hint)]
    if any(isinstance(said, str) for said in _said(hint)):
        return [_option(parameter.name, parameter.default, hint)]
    kind = typer.Context if hint is CommandContext else hint
    return [parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)]


def _option(name: str, default: Any, hint: Any, help: str | None = None, panel: str | None = None) -> inspect.Parameter:
    """Return an option, or an argument."""
    info = copy(next((said for said in _said(hint) if isinstance(said, ParameterInfo)), OptionInfo(default=...)))
    info.help = help or next((said for said in _said(hint) if isinstance(said, str)), info.help)
    info.rich_help_panel = panel or info.rich_help_panel
    if default is False and info.default is ...:
        info.default = f"--{name.replace('_', '-')}"  # a flag, without a second one that takes it back
    (plain,) = get_type_hints(SimpleNamespace(__annotations__={name: hint})).values()
    default = inspect.Parameter.empty if default is MISSING else default
    annotation: Any = Annotated[plain, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _said(hint: Any) -> Iterator[ParameterInfo | str]:
    """Yield what a type says to Typer, and its help, wherever in it they stand."""
    for part in (*getattr(hint, "__metadata__", ()), *get_args(hint)):
        if isinstance(part, (ParameterInfo, str)):
            yield part
        else:
            yield from _said(part)
