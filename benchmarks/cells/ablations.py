"""goodput without one of its terms each: what a term is worth over all cells (docs/gamma.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from osd.gamma.base import CostModel
from osd.gamma.costs import pass_times
from osd.gamma.goodput.acceptance import Effect, Regression
from osd.gamma.goodput.goodput import GoodputController, GoodputRow, Prices
from storage.settings.drafting import GoodputSettings


class PlainPrice(GoodputController):
    """λ is plain decoding's rate, whatever drafts make."""

    def _settle(self) -> None:
        super()._settle()
        self.speedup = 1.0


class OneAhead(GoodputController):
    """Asks of the next pass alone whether it pays."""

    def _best(
        self, prices: Prices, rows: Sequence[tuple[float, float]], rate: float, done: int = 0, kept: int = 0,
        share: int = 1,
    ) -> tuple[int, float]:  # fmt: skip
        if done >= self._maximum:
            return 0, 0.0
        price = (prices.draft[done + 1] - prices.draft[done]) / share
        verify = prices.verify[kept + len(rows)] - prices.verify[kept]
        won = sum(chance for chance, _ in rows) - rate * self._batch * (price + verify)
        return (1, won) if won > 0 else (0, 0.0)


class Unbounded(GoodputController):
    """Drafts wherever that seems to pay, whatever was lost by it; the credit buys tries alone."""

    def _affordable(self, prices: Prices, rows: int, read: float) -> int:
        return self._maximum


class Untried(GoodputController):
    """Never drafts where that does not seem to pay."""

    def _explore(
        self, prices: Prices, rows: Sequence[GoodputRow], who: list[int], first: Sequence[float], unread: Sequence[int]
    ) -> list[int]:
        return []


class ReadsFree(GoodputController):
    """Takes the reading of prompts for free."""

    def _look_up(self, batch: int) -> Prices:
        return super()._look_up(batch)._replace(read=0.0)


class _NoRequest(Regression):
    def look(self, z: float, request: Effect, token: Effect) -> tuple[float, float]:
        return super().look(z, [0.0, 0.0], token)

    def learn(self, z: float, request: Effect, token: Effect, verdict: float) -> None:
        super().learn(z, [0.0, 0.0], token, verdict)


class _NoToken(Regression):
    def context(self, token: int) -> Effect:
        return [0.0, 0.0]


class _NoConfidence(Regression):
    def look(self, z: float, request: Effect, token: Effect) -> tuple[float, float]:
        return super().look(0.0, request, token)

    def learn(self, z: float, request: Effect, token: Effect, verdict: float) -> None:
        super().learn(0.0, request, token, verdict)


class _AtItsWord(Regression):
    """Takes the draft's probability for the truth."""

    def look(self, z: float, request: Effect, token: Effect) -> tuple[float, float]:
        return (z, 0.0) if self._prior[1] else super().look(z, request, token)


def _without(kind: type[Regression]) -> Callable[..., GoodputController]:
    def make(costs: CostModel, *, maximum: int, settings: GoodputSettings) -> GoodputController:
        rule = GoodputController(costs, maximum=maximum, settings=settings)
        for name in ("first", "after", "then"):
            before: Any = getattr(rule.acceptance, name)
            after = kind(before.slope, before.var_slope, settings.spread, settings.memory)
            setattr(rule.acceptance, name, after)
        return rule

    return make


@dataclass(frozen=True, slots=True)
class Ablation:
    """goodput without a term."""

    kind: Callable[..., GoodputController]
    probes: bool = True
    """Whether passes are probed before the first request."""
    bend: float = pass_times.BEND
    """How far costs may depart from a plane."""

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Let costs be fitted as this ablation has it."""
        usual, pass_times.BEND = pass_times.BEND, self.bend
        try:
            yield
        finally:
            pass_times.BEND = usual

    def make(self, costs: CostModel, maximum: int, settings: Any) -> GoodputController:
        """Return it over a cost model."""
        return self.kind(costs, maximum=maximum, settings=settings)


WHOLE = Ablation(GoodputController)
ABLATIONS: Mapping[str, Ablation] = {
    "without λ": Ablation(PlainPrice),
    "without looking ahead": Ablation(OneAhead),
    "without the request's term": Ablation(_without(_NoRequest)),
    "without the token's term": Ablation(_without(_NoToken)),
    "without the draft's confidence": Ablation(_without(_NoConfidence)),
    "at the draft's word": Ablation(_without(_AtItsWord)),
    "without credit": Ablation(Unbounded),
    "without tries": Ablation(Untried),
    "without the price of reading": Ablation(ReadsFree),
    "with costs on a plane": Ablation(GoodputController, bend=1e-6),
    "without probes": Ablation(GoodputController, probes=False),
}
"""By name."""
