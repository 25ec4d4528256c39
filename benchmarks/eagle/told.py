"""An engine whose clock shows what a cost table says, so that rules decide as they would on that machine; and what its
texts took by that table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.gamma.costs import CostTable
from osd.bench.harness.prompts import Tokens
from osd.draft import Draft
from osd.engine.engine import Engine
from osd.gamma.costs.model import probe as time_passes
from osd.models.device_timer import Clock
from storage.records import Request

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TreeRound:
    """One round of one text."""

    passes: int
    """Passes of the draft: the tree's depth before nodes were left out."""
    nodes: int
    """Drafted tokens that the target verified."""
    accepted: int
    emitted: int

    def draft_ms(self, costs: CostTable) -> float:
        """Milliseconds of drafting, by a table."""
        return costs.draft_ms(1, self.passes) if self.passes else 0.0

    def verify_ms(self, costs: CostTable) -> float:
        """Milliseconds of the target's pass, by a table."""
        return costs.verify_ms(1, self.nodes + 1)


class ToldClock(Clock):
    """Shows what a round of the newest draft takes by a cost table, whatever it takes here."""

    def __init__(self, costs: CostTable) -> None:
        super().__init__(torch.device("cpu"))
        self._costs = costs
        self.draft: Draft | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the round."""
        super().__exit__(kind, error, trace)
        if self.draft is None:
            return
        rows, passes = len(self.draft.lengths), self.draft.passes
        self.first_ms = self.first_busy_ms = self._costs.draft_ms(rows, passes) if passes else 0.0
        self.second_ms = self.second_busy_ms = self._costs.verify_ms(rows, sum(self.draft.lengths) + rows)

    def since_ms(self) -> float:
        """Return 0: what the host does between passes is no part of a table."""
        return 0.0


class NotedDrafts:
    """A drafter that shows each of its drafts to a clock, and is the drafter it wraps in all else."""

    def __init__(self, drafting: Any, clock: ToldClock) -> None:
        self._drafting, self._clock = drafting, clock
        self.passes: list[int] = []
        """Draft passes of each round."""

    def propose(self, *asked: Any) -> Draft:
        """Draft; see :meth:`osd.drafters.base.Drafting.propose`."""
        draft: Draft = self._drafting.propose(*asked)
        self._clock.draft = draft
        self.passes.append(draft.passes)
        return draft

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafting, name)


class ToldEngine:
    """Decodes texts one after another, by told time. It lives on between texts, as a server does."""

    def __init__(self, engine: Engine, costs: CostTable) -> None:
        """Take an engine that has served nothing yet."""
        engine.clock = clock = ToldClock(costs)
        time_passes(
            engine.costs, 1, 0, lambda rows, width: costs.verify_ms(rows, rows * width),
            lambda rows, passes, unread: costs.draft_ms(rows, passes),
        )  # fmt: skip
        self._engine, self._noted = engine, NotedDrafts(engine.drafting, clock)
        engine.drafting = self._noted  # its __getattr__ is the rest of an engine

    def decode(self, prompt: Tokens, new_tokens: int) -> tuple[Sequence[int], list[TreeRound]]:
        """Return a prompt's greedy answer and its rounds."""
        self._noted.passes.clear()
        (done,) = self._engine.run([Request(prompt, new_tokens)])
        pairs = zip(self._noted.passes, done.rounds, strict=True)
        return done.tokens, [TreeRound(passes, r.drafted, r.accepted, r.emitted) for passes, r in pairs]


@dataclass(frozen=True, slots=True)
class DepthText:
    """What came of one text."""

    data_set: str
    tokens: tuple[int, ...]
    rounds: list[TreeRound]


@dataclass(frozen=True, slots=True)
class ToldTexts:
    """An arm's texts by a cost table, (n,) each."""

    data_sets: tuple[str, ...]
    tokens: Floats
    draft_ms: Floats
    verify_ms: Floats
    nodes: Floats
    accepted: Floats
    levels: Floats
    """Levels of all trees: passes of the draft."""
    rounds: Floats

    @property
    def ms(self) -> Floats:
        """Milliseconds of each text."""
        return self.draft_ms + self.verify_ms

    @classmethod
    def of(cls, texts: Sequence[DepthText], costs: CostTable) -> ToldTexts:
        """Tell the time of texts."""

        def summed(value: Callable[[TreeRound], float]) -> Floats:
            return np.array([sum(map(value, text.rounds)) for text in texts], float)

        return cls(
            tuple(text.data_set for text in texts), np.array([len(text.tokens) for text in texts], float),
            summed(lambda each: each.draft_ms(costs)), summed(lambda each: each.verify_ms(costs)),
            summed(lambda each: each.nodes), summed(lambda each: each.accepted), summed(lambda each: each.passes),
            np.array([len(text.rounds) for text in texts], float),
        )  # fmt: skip

    def only(self, data_set: str) -> ToldTexts:
        """Return the texts of one data set."""
        mine = np.array([name == data_set for name in self.data_sets])
        parts = (self.tokens, self.draft_ms, self.verify_ms, self.nodes, self.accepted, self.levels, self.rounds)
        return ToldTexts(tuple(n for n in self.data_sets if n == data_set), *(each[mine] for each in parts))

    def table_11(self) -> dict[str, float]:
        """Return the columns of on-the-fly adaptation's Table 11: tokens a second served, selected from trees, and
        verified, and the accepted share of the trees' levels; beside them the mean depth and nodes of a round."""
        drafted, verified = float(self.draft_ms.sum()), float(self.verify_ms.sum())
        nodes, levels, rounds = float(self.nodes.sum()), float(self.levels.sum()), float(self.rounds.sum())
        return {
            "serving, tokens/s": float(1e3 * self.tokens.sum() / self.ms.sum()),
            "speculation, tokens/s": 1e3 * nodes / drafted if drafted else 0.0,
            "verification, tokens/s": 1e3 * (nodes + rounds) / verified,
            "acceptance": float(self.accepted.sum()) / levels if levels else 0.0,
            "depth": levels / rounds, "nodes": nodes / rounds, "tokens a round": float(self.tokens.sum()) / rounds,
        }  # fmt: skip
