"""Places in a draft: counted from rounds, summed at every span, moved along with a renamed route."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from osd.sequence import by_position
from storage.records import Round, Route
from storage.sql.outcome_tables import PositionRow
from storage.sql.spans import KEPT
from storage.store import Store
from tests.storage.make import outcome

DATABASES = True  # see conftest.py

Triple = tuple[int, int, int]
rounds_of = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20)


def _round(drafted: int, accepted: int) -> Round:
    return Round(drafted, drafted, accepted, accepted + 1, 1.0, 1.0, "v")


def _plainly(rounds: list[Round]) -> tuple[Triple, ...]:
    places = range(max((r.drafted for r in rounds), default=0))
    return tuple(
        (
            sum(r.drafted > i for r in rounds),
            sum(r.accepted > i for r in rounds),
            sum(r.accepted == i < r.drafted for r in rounds),
        )
        for i in places
    )


@given(rounds_of)
def test_places_are_counted(pairs: list[tuple[int, int]]) -> None:
    rounds = [_round(drafted, min(drafted, accepted)) for drafted, accepted in pairs]
    found = by_position(rounds)
    assert found == _plainly(rounds)
    assert sum(drafted for drafted, _, _ in found) == sum(r.drafted for r in rounds)
    assert sum(accepted for _, accepted, _ in found) == sum(r.accepted for r in rounds)
    assert sum(refused for _, _, refused in found) == sum(r.rejected for r in rounds)


def _kept(store: Store) -> dict[tuple[int, str, int], Triple]:
    with store.db.session(read_only=True) as session:
        rows = session.scalars(select(PositionRow)).all()
    return {(row.span, row.route, row.position): (row.drafted, row.accepted, row.refused) for row in rows}


def test_every_span_has_the_sums(store: Store) -> None:
    store.outcomes.add([outcome(positions=((3, 2, 1), (1, 1, 0))), outcome(positions=((2, 0, 2),))], "a")
    store.outcomes.add([outcome(positions=((1, 1, 0),)), outcome()], "b")
    expected = {(span, "default", 0): (6, 3, 3) for span in KEPT} | {(span, "default", 1): (1, 1, 0) for span in KEPT}
    assert _kept(store) == expected


def test_a_renamed_route_takes_its_places_along(store: Store) -> None:
    store.routes.add(Route("sql"))
    left = outcome(route="code", positions=((1, 0, 1),))
    store.outcomes.add([outcome(route="sql", positions=((3, 2, 1),)), left], "a")
    store.routes.rename("sql", "code")
    store.outcomes.add([outcome(route="sql", positions=((1, 1, 0),))], "a")
    assert _kept(store) == {(span, "code", 0): (5, 3, 2) for span in KEPT}
