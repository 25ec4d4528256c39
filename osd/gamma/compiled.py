"""Compiles :mod:`osd.gamma.weighing`, ``book`` and ``contexts`` with Numba, in the background; until that is done, or
where it cannot be, the interpreter runs the same lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from osd.compiled.apart import apart
from osd.compiled.background import InBackground
from osd.gamma import book, contexts, lines, weighing

_IN_ORDER = (
    "bin_of", "middle_of", "leaning", "chance_of", "expect", "guess_of", "passed", "forget", "odds_of", "lean", "saw",
    "recalled", "odds_after", "odds_at", "saw_at",
    "beyond", "brings", "foresee", "hope", "look", "weigh", "judge", "begin", "pays_from",
)  # fmt: skip
"""Whatever one calls stands before it."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """Functions of :mod:`osd.gamma.weighing`."""

    begin: Callable[..., float]
    foresee: Callable[..., None]
    weigh: Callable[..., float]
    pays_from: Callable[..., float]


PLAIN = Weighing(weighing.begin, weighing.foresee, weighing.weigh, weighing.pays_from)
"""Over lists."""


def compile_weighing() -> Weighing:
    """The functions over names of their own, so that the plain ones stay what they are. What Numba makes of them is
    kept beside the byte code."""
    from numba import njit

    names: dict[str, Any] = {**vars(book), **vars(contexts), **vars(weighing)}
    for name in _IN_ORDER:
        plain = names[name]
        names[name] = njit(cache=True)(FunctionType(plain.__code__, names, name))
    return Weighing(names["begin"], names["foresee"], names["weigh"], names["pays_from"])


def compile_and_try() -> Weighing:
    """The functions, called once with each kind of argument that is to come, which compiles them."""
    made = compile_weighing()
    apart(made.weigh, "osd.gamma.compiled:compile_and_try")
    known, held = array(lines.new_book()), new_contexts()
    desk, places, peaks = array(lines.new_desk(1, 1)), whole([0]), array([[0.0, *contexts.NO_CONTEXT]])
    prices, outlook = array([0.0, 0.0]), array(lines.new_outlook())
    made.foresee(known, outlook, prices, 0.0)
    made.begin(known, held, desk, places, 1, prices, outlook)
    made.pays_from(known, desk[0], prices, outlook, 0.0)
    made.weigh(known, held, desk, places, peaks, 1, prices, outlook, 0.0)
    return made


class Compiler(InBackground[Weighing]):
    """Compiles once in a process. ``ready`` works over float64 arrays."""

    def __init__(self) -> None:
        otherwise = "goodput's arithmetic is not compiled: each decision takes some microseconds more"
        super().__init__(compile_and_try, "osd-compile-gamma", otherwise)


COMPILER = Compiler()


def array(values: Any) -> Any:
    """As float64 numbers."""
    import numpy as np  # here and not above: what is not compiled needs no arrays

    return np.array(values, np.float64)


def new_contexts() -> contexts.Contexts:
    """Nothing is known of any context. Arrays from the beginning: so many lists would take milliseconds."""
    import numpy as np

    return np.tile(np.array(contexts.NOT_SEEN), (contexts.KINDS, contexts.SLOTS, 1))


def whole(values: Any) -> Any:
    """As int64 numbers."""
    import numpy as np

    return np.array(values, np.int64)
