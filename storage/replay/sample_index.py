"""The index of stored samples: counts, waiting requests, and the requests of a draft.

The divergence of a draft from the target on a request is computed from its samples: a drafted token x ~ q is
accepted with min(1, p(x)/q(x)), whose mean under q is Σ_v min(p(v), q(v)). So 1 minus the mean acceptance of the
drafted tokens is an unbiased estimate of the total variation distance between the two, under the sampling that the
request itself asked for. For a greedy request it is the share of its drafted tokens that were rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import BigInteger, ColumnElement, case, cast, distinct, func, select
from sqlalchemy.orm import Session

from storage import records
from storage.names import draft_of
from storage.records import RequestSamples, TokenKind
from storage.replay.segment_files import is_held_out, prompt_hash
from storage.sql.tables import RouteRow, SampleRow


@dataclass(frozen=True, slots=True)
class Waiting:
    """Requests that no training run has claimed, without held-out ones."""

    requests: int
    oldest_age_seconds: float | None
    """Age of the oldest waiting request; None when nothing waits."""


@dataclass(frozen=True, slots=True)
class ReplayStats:
    """The totals of one route's stored requests."""

    route: str
    requests: int
    positions: int
    bytes: int
    """Bytes on disk; a segment that routes share is divided among its requests."""
    hidden_bytes: int
    """How many of them are the target's hidden states."""
    segments: int
    oldest: float
    newest: float
    waiting: int
    """Requests not yet claimed by a training run."""
    holdout: int
    """Requests never trained on."""
    set_aside: int
    """Requests that runs no longer take, see :mod:`storage.sql.suspects`."""


def row_of(
    place: Mapping[str, Any], samples: RequestSamples, divergence: float | None, holdout: float
) -> dict[str, Any]:
    """Return the columns of a request that was written at a place (:class:`storage.replay.segment_files.NewSegment`).
    ``holdout``: the share of prompts that are held out."""
    same = ("route", "tenant", "draft_version", "created_at", "prompt_len", "target")
    return {
        **place,
        **{name: getattr(samples, name) for name in same},
        "tokens": len(samples.tokens),
        "positions": len(samples),
        "holdout": is_held_out(samples, holdout),
        "prompt_hash": prompt_hash(samples),
        "divergence": divergence,
    }


def waiting(session: Session, draft: str, usable: ColumnElement[bool]) -> Waiting:
    """Return what waits for a draft, see :meth:`storage.replay.samples.SampleStore.waiting`."""
    query = select(func.count(), func.min(SampleRow.created_at)).where(of_draft(draft), usable, *IS_WAITING)
    count, oldest = session.execute(query).one()
    return Waiting(count, None if oldest is None else max(0.0, records.now() - oldest))


def stats(session: Session) -> list[ReplayStats]:
    """Return totals by route, see :meth:`storage.replay.samples.SampleStore.stats`."""
    free = SampleRow.holdout.is_(False) & SampleRow.claimed_by.is_(None) & SampleRow.set_aside.is_(None)
    query = select(
        SampleRow.route,
        func.count(),
        whole(SampleRow.positions),
        whole(SampleRow.bytes),
        whole(SampleRow.hidden_bytes),
        func.count(distinct(SampleRow.segment_id)),
        func.min(SampleRow.created_at),
        func.max(SampleRow.created_at),
        whole(case((free, 1), else_=0)),
        whole(case((SampleRow.holdout.is_(True), 1), else_=0)),
        whole(case((SampleRow.set_aside.is_not(None), 1), else_=0)),
    ).group_by(SampleRow.route).order_by(SampleRow.route)  # fmt: skip
    rows: list[Any] = list(session.execute(query))
    return [ReplayStats(*row) for row in rows]


def whole(column: Any) -> ColumnElement[int]:
    """Cast a sum to an integer: PostgreSQL sums integers to decimals."""
    return cast(func.sum(column), BigInteger)


def of_draft(draft: str) -> ColumnElement[bool]:
    """Return the SQL condition for requests whose route is served by the draft, given by a line of it."""
    return SampleRow.route.in_(select(RouteRow.name).where(RouteRow.draft == draft_of(draft)))


def routed_to(session: Session, draft: str, *, candidate: bool) -> ColumnElement[bool]:
    """Return the SQL condition for requests of the routes that the draft serves; of a ``candidate``, of those that it
    might serve and does not."""
    return SampleRow.route.in_(candidate_routes(session, draft)) if candidate else of_draft(draft)


def candidate_routes(session: Session, draft: str) -> list[str]:
    """Return the names of the routes that a draft, given by a line of it, might serve and does not."""
    own, rows = draft_of(draft), session.execute(select(RouteRow.name, RouteRow.draft, RouteRow.candidates))
    return sorted(name for name, serving, others in rows if own in others and serving != own)


CONDITIONS: dict[str, Callable[[Any], ColumnElement[bool]]] = {
    "request_id": lambda value: SampleRow.request_id == value,
    "segment": lambda value: SampleRow.segment_id == value,
    "route": lambda value: SampleRow.route == value,
    "routes": lambda value: SampleRow.route.in_(value),
    "version": lambda value: SampleRow.draft_version == value,
    "tenant": lambda value: SampleRow.tenant == value,
    "target": lambda value: SampleRow.target == value,
    "holdout": lambda value: SampleRow.holdout.is_(value),
    "claimed": lambda value: SampleRow.claimed_by.is_not(None) if value else SampleRow.claimed_by.is_(None),
    "claimed_before": lambda value: SampleRow.claimed_by != value,  # by another run than this one
    "since": lambda value: SampleRow.created_at >= value,
    "before": lambda value: SampleRow.created_at < value,
}
"""What requests are chosen by, and the SQL of each."""


def meeting(**conditions: Any) -> list[ColumnElement[bool]]:
    """Return SQL for the conditions that are given, by their names in ``CONDITIONS``; None asks for nothing."""
    return [CONDITIONS[name](value) for name, value in conditions.items() if value is not None]


IS_WAITING = (SampleRow.holdout.is_(False), SampleRow.claimed_by.is_(None), SampleRow.set_aside.is_(None))
"""SQL conditions: neither held out, claimed, nor set aside."""


def oldest(
    session: Session, routes: Sequence[str], wanted: Sequence[ColumnElement[bool]], limit: int | None
) -> list[tuple[str, float]]:
    """Return (id, creation time) of these routes' requests, oldest first.

    Queries a route at a time, because the index has them in order then: among millions, the first few hundred are found
    without sorting the rest.
    """
    first = SampleRow.created_at, SampleRow.request_id
    query = select(SampleRow.request_id, SampleRow.created_at).where(*wanted).order_by(*first).limit(limit)
    found = [(row[0], row[1]) for name in routes for row in session.execute(query.where(SampleRow.route == name))]
    return sorted(found, key=lambda row: (row[1], row[0]))[:limit]


def routes_of(session: Session, draft: str) -> list[str]:
    """Return the names of the routes that the draft serves, given by a line of it."""
    query = select(RouteRow.name).where(RouteRow.draft == draft_of(draft)).order_by(RouteRow.name)
    return list(session.scalars(query))


def divergences(batch: Sequence[RequestSamples]) -> list[float | None]:
    """Return the estimated total variation distance of each request, in [0, 1]; None where no drafted token was
    judged."""
    kinds = np.concatenate([samples.kinds for samples in batch])
    chances = np.concatenate([_chances(samples) for samples in batch])
    distances = np.where(np.isnan(chances), kinds == TokenKind.REJECTED, 1 - chances)
    judged = kinds != TokenKind.UNDRAFTED
    number = np.repeat(np.arange(len(batch)), [len(samples) for samples in batch])[judged]
    counts = np.bincount(number, minlength=len(batch))
    sums = np.bincount(number, distances[judged], len(batch))
    return [total / count if count else None for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]


def _chances(samples: RequestSamples) -> npt.NDArray[np.float64]:
    known = np.full(len(samples), np.nan) if samples.acceptance is None else samples.acceptance
    return known.astype(np.float64)
