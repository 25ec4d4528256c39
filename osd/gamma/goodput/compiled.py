"""Compiles :mod:`osd.gamma.goodput.held` and what it calls with Numba, in the background; until that is done, or where
it cannot be, the interpreter runs the same lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import FunctionType
from typing import Any

from osd.gamma.goodput import book, contexts, held, lines, weighing
from osd.kernels.compile_background import BackgroundCompile
from osd.kernels.compile_subprocess import apart

_IN_ORDER = (
    "bin_of", "middle_of", "leaning", "chance_of", "expect", "guess_of", "passed", "forget", "odds_of", "lean", "saw",
    "usual", "slot_of", "recalled", "chance_ahead", "odds_beside", "saw_at",
    "beyond", "brings", "foresee", "hope", "odds_next", "look", "weigh", "judge", "clear", "pays_from",
    "cut", "look_ahead", "learn", "begin_alone", "begin", "weigh_alone", "weigh_together", "pays_alone", "odds_after",
)  # fmt: skip
"""Whatever one calls stands before it."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """Functions of :mod:`osd.gamma.goodput.held`."""

    look_ahead: Callable[..., None]
    learn: Callable[..., None]
    begin_alone: Callable[..., float]
    begin: Callable[..., None]
    weigh_alone: Callable[..., float]
    weigh_together: Callable[..., None]
    pays_alone: Callable[..., float]
    odds_after: Callable[..., float]


_ASKED = tuple(field.name for field in fields(Weighing))
PLAIN = Weighing(**{name: getattr(held, name) for name in _ASKED})
"""Over lists."""


def compile_weighing() -> Weighing:
    """Return the functions, to be compiled, over names of their own, so that the plain ones stay what they are."""
    from osd.kernels.code_cache import kept

    names: dict[str, Any] = {**vars(book), **vars(contexts), **vars(weighing), **vars(held)}
    for name in _IN_ORDER:
        plain = names[name]
        names[name] = kept(FunctionType(plain.__code__, names, name), nogil=False)
        if name == "cut":
            names["parts"] = names[name]
    return Weighing(**{name: names[name] for name in _ASKED})


def compile_and_try() -> Weighing:
    """Return the functions, compiled by calling each once with the kinds of arguments that are to come."""
    made = compile_weighing()
    apart(made.weigh_alone, "osd.gamma.goodput.compiled:compile_and_try")
    numbers = array(lines.new_held(1, 1, new_contexts()))
    made.look_ahead(numbers, 0.0)
    made.begin_alone(numbers, 0, *contexts.NOTHING_BEFORE, 0, 0, 0)
    made.weigh_alone(numbers, 0, 0.0, *contexts.NO_CONTEXT, 0.0)
    made.pays_alone(numbers, 0, 0.0)
    made.begin(numbers, 1, 1)
    made.weigh_together(numbers, 1, 0.0, 0.0)
    made.learn(numbers, 1)
    made.odds_after(numbers, *contexts.NOTHING_BEFORE)
    return made


class Compiler(BackgroundCompile[Weighing]):
    """Compiles once in a process. ``ready`` works over float64 arrays."""

    def __init__(self) -> None:
        otherwise = "goodput's arithmetic is not compiled: each decision takes some microseconds more"
        super().__init__(compile_and_try, "osd-compile-gamma", otherwise)


COMPILER = Compiler()


def array(parts: Any) -> held.Held:
    """Return a tuple's parts as the one array that :func:`osd.gamma.goodput.held.cut` takes apart again."""
    import numpy as np  # here and not above: what is not compiled needs no arrays

    rows, depth = len(parts[-1]), len(parts[2]) - 1
    return np.concatenate([np.array([depth, rows], np.float64), *(np.ravel(np.array(part)) for part in parts)])


def new_contexts() -> contexts.Contexts:
    """Return contexts of which nothing is known, as an array: so many lists would take milliseconds."""
    import numpy as np

    return np.tile(np.array(contexts.NOT_SEEN), (contexts.KINDS, contexts.SLOTS, 1))
