"""What a command is: a function whose parameters are its context, its arguments, and dataclasses of options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
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
    it has one, is the heading of its options in the command's help.
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
        return [_option(hint, field) for field in fields(hint)]
    kind = typer.Context if hint is CommandContext else hint
    return [parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)]


def _option(group: Any, field: Field[Any]) -> inspect.Parameter:
    """Return the option, or argument, of a field."""
    info = copy(next(_said(get_type_hints(group, include_extras=True)[field.name]), OptionInfo(default=...)))
    info.help = field_docs(group).get(field.name, info.help)
    info.rich_help_panel = getattr(group, "PANEL", info.rich_help_panel)
    if field.default is False and info.default is ...:
        info.default = f"--{field.name.replace('_', '-')}"  # a flag, without a second one that takes it back
    annotation: Any = Annotated[get_type_hints(group)[field.name], info]
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _said(hint: Any) -> Iterator[ParameterInfo]:
    """Yield what a type says to Typer, wherever in it that stands."""
    for part in (*getattr(hint, "__metadata__", ()), *get_args(hint)):
        if isinstance(part, ParameterInfo):
            yield part
        else:
            yield from _said(part)
