"""What learning saves: traffic that took s seconds at acceptance α would have taken s L(α) ÷ L(α − g) without a gain of
g (L: :mod:`storage.insights.round_length`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from storage import records
from storage.insights.round_length import tokens_per_round
from storage.insights.runs import totals
from storage.names import head_of
from storage.outcomes.outcome_window import EVERYTHING, Window
from storage.outcomes.outcomes import AcceptanceRow
from storage.sql.spans import HOUR
from storage.store import Store


@dataclass(frozen=True, slots=True)
class PayBack:
    """What training a draft has cost and saved, in seconds, and when it will have paid for itself."""

    draft: str
    cost_seconds: float
    """Seconds of training runs, gates and acceptance heads included."""
    learned_seconds: float
    """Decode seconds saved by the gains, as the gate measured them, of the versions that served."""
    pace: float
    """``learned_seconds`` − ``cost_seconds`` of the last hour, a second."""

    @property
    def pays_in_seconds(self) -> float | None:
        """Seconds until it has paid for itself at this pace; 0 where it has, None where it will not."""
        owed = self.cost_seconds - self.learned_seconds
        return 0.0 if owed <= 0 else owed / self.pace if self.pace > 0 else None


def pay_backs(store: Store) -> list[PayBack]:
    """Return the account of each draft that was trained, by name."""
    at = records.now()
    lately = Window(since=at - HOUR)
    return [_pay_back(store, draft, lately, at) for draft in _trained(store, EVERYTHING)]


def _pay_back(store: Store, draft: str, lately: Window, at: float) -> PayBack:
    gains = _gains(store, draft)
    began = min(version.created_at for version in store.versions.list(draft))
    spent, spent_lately = (_trained(store, window).get(draft, 0.0) for window in (EVERYTHING, lately))
    saved, saved_lately = (_saved(store, replace(window, draft=draft), gains) for window in (EVERYTHING, lately))
    return PayBack(draft, spent, saved, (saved_lately - spent_lately) / min(HOUR, max(1.0, at - began)))


def _trained(store: Store, window: Window) -> dict[str, float]:
    """Return seconds of training by draft, those of its acceptance head with its own."""
    seconds = {row.draft: row.seconds for row in totals(store.db, window)}
    heads = {head_of(draft) for draft in seconds}
    return {name: own + seconds.get(head_of(name), 0.0) for name, own in seconds.items() if name not in heads}


def _gains(store: Store, draft: str) -> dict[str, float]:
    """Return the gain of each version over number 0: the sum of what the gate measured along its lineage."""
    gains: dict[str, float] = {}
    for version in sorted(store.versions.list(draft), key=lambda version: version.number):
        own = float(version.evidence.get("difference") or 0.0)
        gains[version.id] = own + gains.get(version.parent or "", 0.0)
    return gains


def _saved(store: Store, window: Window, gains: dict[str, float]) -> float:
    rows: Iterable[AcceptanceRow] = store.outcomes.acceptance(
        ["version"], window.since, window.until, draft=window.draft
    )
    return sum(_saved_by(row, gains.get(row.by["version"], 0.0)) for row in rows)


def _saved_by(row: AcceptanceRow, gain: float) -> float:
    """Return the seconds that the same tokens would have taken more without the gain."""
    if row.alpha is None or not row.rounds:
        return 0.0
    gamma, seconds = row.drafted / row.rounds, (row.draft_ms + row.verify_ms) / 1000
    before = min(1.0, max(0.0, row.alpha - gain))
    return seconds * (tokens_per_round(row.alpha, gamma) / tokens_per_round(before, gamma) - 1)
