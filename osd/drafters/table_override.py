"""One round of one draft with tables beside it: which tokens a table put in, and how often it was right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from osd.drafters.base import PassSignals
from osd.drafters.ngram.drafter import NgramDrafter
from osd.drafters.ngram.predictions import (
    NO_PREDICTION,
    BlendedRows,
    HitRates,
    choose,
    count_row,
    count_text,
    look_up,
)
from osd.gamma.base import Signal


class TableGroup:
    """The rows that have their places with one table."""

    def __init__(
        self, drafter: NgramDrafter, rates: HitRates, places: Sequence[int], texts: Sequence[Sequence[int]],
        sampled: Sequence[bool], most: int,
    ) -> None:  # fmt: skip
        """Prepare for at most ``most`` drafted tokens. ``rates``: how often this table was right, kept up to date."""
        self._drafter, self._rates = drafter, rates
        reach, count = drafter.order - 1, len(places)
        tails = np.array([[*[-1] * (reach - len(text)), *text[-reach:]] for text in texts], np.int64)
        said, found, drafted = np.full((3, most, count), NO_PREDICTION, np.int64)
        peaks, believed = np.zeros((2, most, count))
        flags = np.array(sampled, np.bool_), np.zeros(count, np.bool_)
        self._rows = BlendedRows(
            np.array(places, np.int64), flags[0], tails, flags[1], said, found, drafted, peaks, believed
        )

    def look_up(self, step: int) -> list[bool]:
        """Look the next tokens up; return for each row whether the draft need not be asked."""
        with self._drafter.table.lock:
            look_up(self._drafter.table.cells, self._drafter.overlays.arena, self._rows, self._rates, step)
        certain: list[bool] = self._rows.certain.tolist()
        return certain

    def choose(
        self, step: int, said: Sequence[int] | None, peaks: Sequence[float] | None
    ) -> tuple[list[int], list[float]]:
        """Choose the next tokens, given the draft's choices if it was asked. Returns them with the trust in each that
        is the table's, else −1."""
        rows = self._rows
        if said is not None:
            rows.said[step], rows.peaks[step] = said, peaks
        choose(rows, self._rates, step)
        return rows.drafted[step].tolist(), rows.believed[step].tolist()

    def predictions(self, step: int) -> list[tuple[int, float]]:
        """Return what was found for each row, and the trust in it; call it before :meth:`choose`."""
        return list(zip(self._rows.found[step].tolist(), self._rows.believed[step].tolist(), strict=True))

    def count_drafted(self, row: int, emitted: Sequence[int]) -> tuple[int, int]:
        """Update the rates with the target's tokens where a row's were drafted; return how many were the table's, and
        right."""
        rows, tokens = self._rows, np.array(emitted, np.int64)
        count_row(rows, self._rates, row, tokens)
        ours = rows.believed[: len(tokens), row] >= 0
        return int(ours.sum()), int((ours & (tokens == rows.found[: len(tokens), row])).sum())


def count_predicted(
    drafter: NgramDrafter, rates: HitRates, place: int, tokens: npt.NDArray[np.int64], start: int, *, sampled: bool
) -> None:
    """Count whether the tables of the row at a place were right about ``tokens[start:]`` of the target, which they have
    not learned yet."""
    own = drafter.overlays.table(place)
    with drafter.table.lock:
        count_text(drafter.table.cells, own, tokens, start, drafter.order - 1, sampled, rates.predictions)


class TableOverride:
    """One draft's rows in one round, with their tables."""

    def __init__(
        self, groups: Sequence[tuple[TableGroup, Sequence[int]]], rows: int, *, ask_always: bool, has_head: bool = False
    ) -> None:
        """Begin a round. ``groups``: each table's rows, and which of the draft's ``rows`` they are; ``has_head``:
        whether the draft has an acceptance head."""
        self._groups, self._rows, self._ask_always = groups, rows, ask_always
        self._where = {i: (group, at) for group, members in groups for at, i in enumerate(members)}
        self._step, self._has_head = 0, has_head
        self._newest = [0.0 if has_head else math.nan] * rows
        """How likely each row's newest token is to be accepted: the trust in a table's, the draft's probability of its
        own; NaN where there is no head, by which rules know that."""

    def needs_draft(self, going: Sequence[bool]) -> bool:
        """Return whether to ask the draft; see :meth:`osd.drafters.base.ChainOverride.needs_draft`."""
        certain = [False] * self._rows
        for group, members in self._groups:
            for i, sure in zip(members, group.look_up(self._step), strict=True):
                certain[i] = sure
        return self._ask_always or any(go and not sure for go, sure in zip(going, certain, strict=True))

    def put_in(self) -> tuple[list[int], PassSignals]:
        """Return the tables' tokens; see :meth:`osd.drafters.base.ChainOverride.put_in`."""
        tokens, sure = [0] * self._rows, dict[int, float]()
        for group, members in self._groups:
            chosen, believed = group.choose(self._step, None, None)
            for at, i in enumerate(members):
                tokens[i], sure[i] = max(0, chosen[at]), believed[at]
        before = self._end([sure.get(i, 0.0) for i in range(self._rows)])
        return tokens, OverriddenSignals(None, sure, dict(enumerate(tokens)), before)

    def overrule(self, chosen: Tensor, q: Tensor | None, signals: PassSignals) -> tuple[Tensor, PassSignals]:
        """Replace the draft's tokens; see :meth:`osd.drafters.base.ChainOverride.overrule`."""
        said, peaks = chosen.tolist(), signals.read("peak")
        others: dict[int, tuple[int, float]] = {}
        for group, members in self._groups:
            tokens, sure = group.choose(self._step, [said[i] for i in members], [peaks[i] for i in members])
            others |= {i: (tokens[at], sure[at]) for at, i in enumerate(members) if sure[at] >= 0}
        sure_of = {i: sure for i, (_, sure) in others.items()}
        token_of = {i: token for i, (token, _) in others.items()}
        before = self._end([sure_of.get(i, peak) for i, peak in enumerate(peaks)])
        if not others:
            return chosen, signals
        tokens = [token for token, _ in others.values()]
        where, which = torch.tensor(list(others), device=chosen.device), torch.tensor(tokens, device=chosen.device)
        if q is not None:
            q[where] = 0.0
            q[where, which] = 1.0
        return chosen.index_put((where,), which), OverriddenSignals(signals, sure_of, token_of, before)

    def _end(self, newest: list[float]) -> list[float]:
        """End a step: note how likely its tokens are to be accepted, and return that of the tokens before."""
        before, self._step = self._newest, self._step + 1
        if self._has_head:
            self._newest = newest
        return before

    def count_drafted(self, row: int, emitted: Sequence[int]) -> tuple[int, int]:
        """Update the trust as :meth:`TableGroup.count_drafted`; ``row`` is the index among the draft's rows."""
        group, at = self._where.get(row, (None, 0))
        return group.count_drafted(at, emitted) if group else (0, 0)


class OverriddenSignals:
    """A pass's signals, with the trust in their place where tokens are a table's."""

    def __init__(
        self, signals: PassSignals | None, sure: dict[int, float], tokens: dict[int, int], before: Sequence[float]
    ) -> None:
        """``signals``: the draft's own, None where it was not asked; ``sure``: the trust in this step's ``tokens``;
        ``before``: how likely each row's token before is to be accepted, for where no head has read it."""
        self._signals, self._sure, self._tokens, self._before = signals, sure, tokens, before

    def read(self, signal: Signal) -> list[Any]:
        """Read a signal; see :meth:`osd.drafters.base.PassSignals.read`."""
        if signal == "acceptance":  # of the token before: this step's, whoever names it, is not judged yet
            return self._signals.read(signal) if self._signals else list(self._before)
        sure: dict[int, Any] = self._sure
        nothing: Any = 0.0
        if signal == "peak_token":
            sure, nothing = {i: (trust, self._tokens[i]) for i, trust in sure.items()}, (0.0, -1)
        values = self._signals.read(signal) if self._signals else [nothing] * len(self._before)
        return [sure.get(i, value) for i, value in enumerate(values)]
