"""Plans the draft lengths of a batch: the gamma rule of each route, and the rows shared out among the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from osd.gamma.base import TENANTS, DraftDecision, GammaController, Signal
from osd.gamma.costs.model import CostModel
from osd.gamma.rules.fsm import FixedController
from storage.records import DEFAULT_TENANT

Read = Callable[[Signal], list[Any]]
"""Returns a signal of the newest draft pass, for every row that shares it."""
Make = Callable[[str, CostModel | None], GammaController]
"""Makes the gamma rule of this name with these costs; None is the first draft's."""
_ON = DraftDecision.ON


class PlannedRow(Protocol):
    """A row of the batch, as far as its gamma is concerned."""

    controller: GammaController
    gamma_state: Any
    """Its state there."""

    def room(self) -> int:
        """Return how many tokens may be drafted."""

    def unread(self) -> int:
        """Return how many tokens the drafter must read before it can draft."""


class GammaPlanner:
    """Plans the drafts of a batch whose rows may follow different rules.

    How many tokens a rule drafts shows what it has seen accepted, so each tenant has a controller of its own. Where
    those of several can be planned together, one that belongs to none of them plans, from what each knows of its rows.
    """

    def __init__(
        self, usual: GammaController, by_route: Mapping[str, GammaController], make: Make | None = None
    ) -> None:
        """Take the rules of the engine's first draft; ``make`` makes those of other drafts."""
        self._usual, self._by_route = usual, by_route
        self._made = None if make is None else lru_cache(TENANTS)(lambda name, costs, tenant: make(name, costs))
        """Returns the rule of a name for a draft, by its costs, and a tenant; nobody's tenant is the empty one."""
        self._plans: dict[int, GammaController] = {}
        """Who planned the newest round of a row, by the row's identity."""
        self._fixed: dict[int, FixedController] = {}

    def begin_after(self, other: GammaPlanner) -> None:
        """Have rules that can go on after those of an engine whose target has moved."""
        theirs = [other._usual, *other._by_route.values()]
        for own, one in zip([self._usual, *self._by_route.values()], theirs, strict=True):
            getattr(own, "begin_after", lambda _: None)(one)

    def expect(self, alpha: float) -> None:
        """Tell rules that can use it at what acceptance the first draft was judged."""
        for own in (self._usual, *self._by_route.values()):
            getattr(own, "expect", lambda _: None)(alpha)

    def controller(self, route: str, costs: CostModel | None = None, tenant: str = DEFAULT_TENANT) -> GammaController:
        """Return a tenant's rule of a route, for the draft that has these costs; None is the first draft."""
        usual = self._by_route.get(route, self._usual)
        if (costs is None and tenant == DEFAULT_TENANT) or self._made is None:
            return usual
        return self._made(usual.name, costs, tenant)

    def _planners(self, rows: Sequence[PlannedRow]) -> list[GammaController]:
        """Return who plans each row: its own controller, or nobody's, where the rule plans several tenants' together
        (:attr:`osd.gamma.goodput.goodput.GoodputController.joint`)."""
        own = [row.controller for row in rows]
        if not own or own.count(own[0]) == len(own):
            return own
        joint: list[Any] = [getattr(controller, "joint", controller) for controller in own]
        pairs = {(id(each), id(controller)) for each, controller in zip(joint, own, strict=True)}
        tenants = Counter(each for each, _ in pairs)
        return [
            controller if tenants[id(each)] == 1 or self._made is None else self._made(controller.name, each, "")
            for each, controller in zip(joint, own, strict=True)
        ]

    def fixed(self, gamma: int) -> GammaController:
        """Return the rule shared by all rows that ask for this gamma, so that they are planned together."""
        return self._fixed.setdefault(gamma, FixedController(gamma))

    def plan(self, rows: Sequence[PlannedRow]) -> list[int]:
        """Return the most tokens to draft, by row."""
        gammas, planners = [0] * len(rows), self._planners(rows)
        self._plans = {id(row): controller for row, controller in zip(rows, planners, strict=True)}
        for controller, members in _shared_out(planners, range(len(rows))):
            own = [rows[i] for i in members]
            states, rooms = [row.gamma_state for row in own], [row.room() for row in own]
            asked = controller.plan(states, rooms, len(rows), [row.unread() for row in own])
            for i, gamma, room in zip(members, asked, rooms, strict=True):
                gammas[i] = min(gamma, room)
        return gammas

    def should_continue(self, rows: Sequence[PlannedRow], lengths: list[int], drafted: int, read: Read) -> None:
        """Shorten ``lengths`` of the rows that stop after draft pass number ``drafted``."""
        going = [i for i, length in enumerate(lengths) if length >= drafted]
        for controller, members in _shared_out([self._plans.get(id(row), row.controller) for row in rows], going):
            if controller.signal == "none":
                continue
            signals = [read(controller.signal)]
            if getattr(controller, "reads_head", False):
                signals.append(read("acceptance"))
            if len(members) < len(rows):
                signals = [[each[i] for i in members] for each in signals]
            answers = controller.should_continue([rows[i].gamma_state for i in members], drafted, *signals)
            for i, go in zip(members, answers, strict=True):
                if go is not _ON:
                    lengths[i] = drafted if go else drafted - 1


def _shared_out(
    planners: Sequence[GammaController], which: Sequence[int]
) -> list[tuple[GammaController, Sequence[int]]]:
    """Group the rows by who plans them. Nearly always it is one, and this is asked after every draft pass."""
    controllers = [planners[i] for i in which]
    if not controllers or controllers.count(controllers[0]) == len(controllers):
        return [(controllers[0], which)] if controllers else []
    members: dict[int, tuple[GammaController, list[int]]] = {}
    for i, controller in zip(which, controllers, strict=True):
        members.setdefault(id(controller), (controller, []))[1].append(i)
    return list(members.values())
