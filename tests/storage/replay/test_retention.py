"""The policies of retention, one by one and together, as pure decisions."""

from __future__ import annotations

import random

import pytest

from storage.errors import BadSetting
from storage.replay.retention import IndexedRequest, allot, decide
from storage.settings import RetentionSettings, load_settings

NOW = 1_000_000.0


def kept(number: int, **changes: object) -> IndexedRequest:
    """Request ``r<number>``, ``number`` seconds old, of 10 bytes and a prompt of its own."""
    values: dict[str, object] = {
        "request_id": f"r{number}", "route": "default", "tenant": "t", "created_at": NOW - number, "bytes": 10,
        "prompt_hash": number, "divergence": None, "holdout": False,
    }  # fmt: skip
    return IndexedRequest(**{**values, **changes})  # type: ignore[arg-type]


def left(rows: list[IndexedRequest], **policy: object) -> list[str]:
    """Who stays."""
    doomed = decide(rows, RetentionSettings(**policy), NOW)  # type: ignore[arg-type]
    assert doomed.keys() <= {one.request_id for one in rows}
    return [one.request_id for one in rows if one.request_id not in doomed]


def test_without_a_policy_everything_stays() -> None:
    assert RetentionSettings().keeps_all
    assert len(left([kept(n) for n in range(50)])) == 50
    assert not RetentionSettings(routes={"sql": {"age_seconds": 5}}).keeps_all


def test_newest_n_bytes_and_age() -> None:
    rows = [kept(n) for n in range(10)]
    assert left(rows, requests=3) == ["r0", "r1", "r2"]
    assert left(rows, bytes=45) == ["r0", "r1", "r2", "r3"]
    assert left(rows, age_seconds=4) == ["r0", "r1", "r2", "r3", "r4"]


def test_repeated_prompts_keep_the_newest_of_each_tenant() -> None:
    rows = [kept(n, prompt_hash=n % 2) for n in range(6)] + [kept(6, prompt_hash=0, tenant="u"), kept(7)]
    rows += [kept(n, prompt_hash=None) for n in (8, 9)]
    assert left(rows, duplicates=1) == ["r0", "r1", "r6", "r7", "r8", "r9"]
    assert left(rows, duplicates=2) == ["r0", "r1", "r2", "r3", "r6", "r7", "r8", "r9"]


def test_the_farthest_from_the_target_stay() -> None:
    rows = [kept(0), *(kept(n, divergence=n / 10) for n in range(1, 6))]
    assert left(rows, requests=2, prefer="divergent") == ["r4", "r5"]


def test_a_reservoir_is_a_uniform_sample_however_often_it_is_cut() -> None:
    """2,000 requests come 100 at a time and 200 stay: old and new halves are equally likely. The number of the old
    half is hypergeometric with standard deviation 6.7; five of them fail by chance once in a million."""
    stream = [kept(n, request_id=f"{random.Random(n).random()}") for n in range(2000)]
    stay: list[IndexedRequest] = []
    for begin in range(0, 2000, 100):
        stay += stream[begin : begin + 100]
        names = set(left(stay, requests=200, prefer="reservoir"))
        stay = [one for one in stay if one.request_id in names]
    assert {one.request_id for one in stay} == set(left(stream, requests=200, prefer="reservoir"))
    assert abs(sum(NOW - one.created_at < 1000 for one in stay) - 100) < 34


def test_a_loud_tenant_or_route_does_not_push_out_a_quiet_one() -> None:
    rows = [kept(n, tenant="loud") for n in range(90)] + [kept(n, tenant="quiet") for n in range(90, 95)]
    stay = left(rows, requests=20)
    assert len(stay) == 20
    assert [f"r{n}" for n in range(90, 95)] == stay[15:]
    assert not {f"r{n}" for n in range(90, 95)} & set(left(rows, requests=20, fair=False))
    routes = [kept(n, route="loud") for n in range(90)] + [kept(n, route="quiet") for n in range(90, 95)]
    assert left(routes, total_bytes=200) == [f"r{n}" for n in (*range(15), *range(90, 95))]


def test_released_after_an_update_but_never_what_judges() -> None:
    rows = [kept(0, learned=True), kept(1), kept(2, learned=True, holdout=True), kept(3, learned=True, under_way=True)]
    assert left(rows, release=True) == ["r1", "r2", "r3"]


def test_what_judges_has_its_part_of_a_limit() -> None:
    rows = [kept(n, holdout=n >= 80) for n in range(100)]
    stay = left(rows, requests=50)
    assert len(stay) == 50
    assert sum(int(name[1:]) >= 80 for name in stay) == 10


def test_a_run_under_way_loses_nothing() -> None:
    rows = [kept(n, under_way=n >= 5) for n in range(10)]
    for policy in ({"requests": 2}, {"age_seconds": 1}, {"bytes": 1}, {"total_bytes": 1}, {"duplicates": 1}):
        assert set(left(rows, **policy)) >= {f"r{n}" for n in range(5, 10)}
    assert left(rows, requests=7) == ["r0", "r1", "r5", "r6", "r7", "r8", "r9"], "it counts towards the limit"


def test_policies_compose_and_routes_have_their_own() -> None:
    rows = [kept(n, prompt_hash=n // 2) for n in range(10)] + [kept(n, route="sql") for n in range(10, 20)]
    policy = {"duplicates": 1, "age_seconds": 15.0, "routes": {"sql": {"requests": 3, "age_seconds": 100.0}}}
    assert left(rows, **policy) == ["r0", "r2", "r4", "r6", "r8", "r10", "r11", "r12"]


@pytest.mark.parametrize("seed", range(8))
def test_the_limits_hold_for_whatever_comes(seed: int) -> None:
    """Proof by many: after any stream, every route is within requests, bytes and age, and all within total_bytes."""
    chance = random.Random(seed)
    rows = [
        kept(
            n, route=chance.choice("ab"), tenant=chance.choice("xyz"), bytes=chance.randint(1, 99),
            divergence=chance.choice([None, 0.1, 0.9]), holdout=chance.random() < 0.2, created_at=NOW - chance.random(),
        )
        for n in range(300)
    ]  # fmt: skip
    policy = {
        "requests": chance.randint(1, 200), "bytes": chance.randint(1, 5000), "age_seconds": chance.random(),
        "total_bytes": chance.randint(1, 6000), "prefer": chance.choice(["newest", "reservoir", "divergent"]),
    }  # fmt: skip
    stay = [one for one in rows if one.request_id in set(left(rows, **policy))]
    for route in "ab":
        mine = [one for one in stay if one.route == route]
        assert len(mine) <= policy["requests"]
        assert sum(one.bytes for one in mine) <= policy["bytes"]
    assert all(NOW - one.created_at <= policy["age_seconds"] for one in stay)
    assert sum(one.bytes for one in stay) <= policy["total_bytes"]


def test_sharing_out_a_limit() -> None:
    assert allot({"a": 1, "b": 100, "c": 100}, 101) == {"a": 1, "b": 50, "c": 50}
    assert allot({"a": 5, "b": 6}, 100) == {"a": 5, "b": 6}
    assert allot({}, 5) == {}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[retention]\nbytes = -1\n", "retention.bytes"),
        ("[retention]\nrequests = 0\n", "retention.requests"),
        ("[retention]\nage_secs = 5\n", "age_seconds"),
        ("[retention.routes.sql]\nbytes = -5\n", "retention.routes.sql.bytes"),
        ('[retention]\nprefer = "oldest"\n', "retention.prefer"),
    ],
)
def test_a_policy_that_is_none_is_named(tmp_path, text: str, named: str) -> None:
    (tmp_path / "osd.toml").write_text(text)
    with pytest.raises(BadSetting, match=named):
        load_settings(tmp_path / "osd.toml")
