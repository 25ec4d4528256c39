"""An engine whose clock shows what a cost table says, so that rules decide as they would on that machine."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from benchmarks.gamma.costed import CostedRound, CostedText
from benchmarks.gamma.costs import CostTable
from osd.bench.harness.prompts import Tokens
from osd.draft import Draft
from osd.engine.engine import Engine
from osd.gamma.costs.model import probe as time_passes
from osd.models.device_timer import Clock
from storage.records import Request


class ToldClock(Clock):
    """Shows what a round of the newest draft takes by a cost table, whatever it takes here."""

    def __init__(self, costs: CostTable) -> None:
        super().__init__(torch.device("cpu"))
        self._costs = costs
        self.drafts: list[Draft] = []
        """Those of one text, round by round."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the round."""
        super().__exit__(kind, error, trace)
        if not self.drafts:
            return
        draft = self.drafts[-1]
        rows, passes = len(draft.lengths), draft.passes
        self.first_ms = self.first_busy_ms = self._costs.draft_ms(rows, passes) if passes else 0.0
        self.second_ms = self.second_busy_ms = self._costs.verify_ms(rows, sum(draft.lengths) + rows)

    def since_ms(self) -> float:
        """Return 0: what the host does between passes is no part of a table."""
        return 0.0


class NotedDrafts:
    """A drafter that shows each of its drafts to a clock, and is the drafter it wraps in all else."""

    def __init__(self, drafting: Any, clock: ToldClock) -> None:
        self._drafting, self._clock = drafting, clock

    def propose(self, *asked: Any) -> Draft:
        """Draft; see :meth:`osd.drafters.base.Drafting.propose`."""
        draft: Draft = self._drafting.propose(*asked)
        self._clock.drafts.append(draft)
        return draft

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafting, name)


class ToldEngine:
    """Decodes texts one after another, by told time. It lives on between texts, as a server does."""

    def __init__(self, engine: Engine, costs: CostTable) -> None:
        """Take an engine that has served nothing yet."""
        engine.clock = self._clock = ToldClock(costs)
        time_passes(
            engine.costs, 1, 0, lambda rows, width: costs.verify_ms(rows, rows * width),
            lambda rows, passes, unread: costs.draft_ms(rows, passes),
        )  # fmt: skip
        engine.drafting = NotedDrafts(engine.drafting, self._clock)  # its __getattr__ is the rest of a drafter
        self._engine = engine

    def decode(self, data_set: str, prompt: Tokens, new_tokens: int) -> CostedText:
        """Return a prompt's greedy answer and its rounds."""
        self._clock.drafts.clear()
        (done,) = self._engine.run([Request(prompt, new_tokens)])
        pairs = zip(self._clock.drafts, done.rounds, strict=True)
        return CostedText(data_set, done.tokens, [CostedRound(d.passes, r.drafted, r.judged_right) for d, r in pairs])
