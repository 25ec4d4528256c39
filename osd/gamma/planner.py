"""Plans the draft lengths of a batch: the gamma rule of each route, and the rows shared out among the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from osd.gamma.base import DraftDecision, GammaController, Signal
from osd.gamma.costs.model import CostModel
from osd.gamma.rules.fsm import FixedController

Read = Callable[[Signal], list[Any]]
"""Returns a signal of the newest draft pass, for every row that shares it."""
Make = Callable[[str, CostModel], GammaController]
"""Makes the gamma rule of this name with these costs."""
_ON = DraftDecision.ON


class PlannedRow(Protocol):
    """A row of the batch, as far as its gamma is concerned."""

    controller: GammaController
    gamma_state: Any
    """Its state there."""

    def room(self) -> int:
        """Return how many tokens may be drafted."""
        ...

    def unread(self) -> int:
        """Return how many tokens the drafter must read before it can draft."""
        ...


class GammaPlanner:
    """Plans the drafts of a batch whose rows may follow different rules."""

    def __init__(
        self, usual: GammaController, by_route: Mapping[str, GammaController], make: Make | None = None
    ) -> None:
        """Take the rules of the engine's first draft; ``make`` makes those of other drafts."""
        self._usual, self._by_route, self._make = usual, by_route, make
        self._others: dict[tuple[str, int], tuple[CostModel, GammaController]] = {}
        self._fixed: dict[int, FixedController] = {}

    def controller(self, route: str, costs: CostModel | None = None) -> GammaController:
        """Return the rule of a route, for the draft that has these costs; None is the first draft."""
        usual = self._by_route.get(route, self._usual)
        if costs is None or self._make is None:
            return usual
        key = usual.name, id(costs)
        if key not in self._others:
            self._others[key] = costs, self._make(usual.name, costs)
        return self._others[key][1]

    def fixed(self, gamma: int) -> GammaController:
        """Return the rule shared by all rows that ask for this gamma, so that they are planned together."""
        return self._fixed.setdefault(gamma, FixedController(gamma))

    def plan(self, rows: Sequence[PlannedRow]) -> list[int]:
        """Return the most tokens to draft, by row."""
        gammas = [0] * len(rows)
        for controller, members in _shared_out(rows, range(len(rows))):
            own = [rows[i] for i in members]
            states, rooms = [row.gamma_state for row in own], [row.room() for row in own]
            asked = controller.plan(states, rooms, len(rows), [row.unread() for row in own])
            for i, gamma, room in zip(members, asked, rooms, strict=True):
                gammas[i] = min(gamma, room)
        return gammas

    def should_continue(self, rows: Sequence[PlannedRow], lengths: list[int], drafted: int, read: Read) -> None:
        """Shorten ``lengths`` of the rows that stop after draft pass number ``drafted``."""
        going = [i for i, length in enumerate(lengths) if length >= drafted]
        for controller, members in _shared_out(rows, going):
            if controller.signal == "none":
                continue
            signals = read(controller.signal)
            if len(members) < len(rows):
                signals = [signals[i] for i in members]
            answers = controller.should_continue([rows[i].gamma_state for i in members], drafted, signals)
            for i, go in zip(members, answers, strict=True):
                if go is not _ON:
                    lengths[i] = drafted if go else drafted - 1


def _shared_out(rows: Sequence[PlannedRow], which: Sequence[int]) -> list[tuple[GammaController, Sequence[int]]]:
    """Group the rows by rule. Nearly always there is one, and this is asked after every draft pass."""
    controllers = [rows[i].controller for i in which]
    if not controllers or controllers.count(controllers[0]) == len(controllers):
        return [(controllers[0], which)] if controllers else []
    members: dict[int, tuple[GammaController, list[int]]] = {}
    for i, controller in zip(which, controllers, strict=True):
        members.setdefault(id(controller), (controller, []))[1].append(i)
    return list(members.values())
