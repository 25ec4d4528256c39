"""Traffic, arms and results of `python -m benchmarks routes`, without models."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.routes.bench import RoutesCell, draw
from benchmarks.routes.result import ArmResult, RoutedRequest, summary
from benchmarks.routes.traffic import ORDERS, arrange, languages_of, set_up
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.turns import Cell
from osd.demo.prompts import prompts as shipped_prompts
from osd.server.start import SHIPPED
from storage.store import open_store
from tests.support.settings import settings_of

DOMAINS = {name: [f"{name} {i}" for i in range(60)] for name in ("a", "b", "c")}


@pytest.mark.parametrize("order", ORDERS)
def test_every_prompt_comes_once_and_each_domain_in_its_own_order(order: str) -> None:
    items = arrange(DOMAINS, order, seed=1)
    for name, prompts in DOMAINS.items():
        assert [item.prompt for item in items if item.domain == name] == prompts
    assert arrange(DOMAINS, order, seed=1) == items


def test_mixed_traffic_is_mixed_from_the_beginning() -> None:
    assert min(Counter(item.domain for item in arrange(DOMAINS, "mixed")[:60]).values()) >= 8


def test_abrupt_traffic_changes_at_once() -> None:
    assert [item.domain for item in arrange(DOMAINS, "abrupt")] == ["a"] * 60 + ["b"] * 60 + ["c"] * 60


def test_gradual_traffic_fades_from_one_domain_into_the_next() -> None:
    names = [item.domain for item in arrange(DOMAINS, "gradual")]
    middle = Counter(names[50:70])
    assert set(names[:20]) == {"a"} or Counter(names[:20])["a"] >= 18
    assert middle["a"] >= 4 and middle["b"] >= 4
    assert Counter(names[-20:])["c"] >= 18


def test_a_linear_change_goes_in_a_straight_line() -> None:
    two = {name: [f"{name} {i}" for i in range(1000)] for name in ("a", "b")}
    names = [item.domain for item in arrange(two, "linear")]
    shares = [names[i : i + 200].count("b") / 200 for i in range(0, 2000, 200)]
    assert all(abs(share - (place + 0.5) / 10) < 0.12 for place, share in enumerate(shares))
    three = [item.domain for item in arrange(DOMAINS, "linear")]
    assert Counter(three[:20])["a"] >= 15 and Counter(three[80:100])["b"] >= 9 and Counter(three[-20:])["c"] >= 15


def test_domains_that_are_learned_apart_are_served_mixed() -> None:
    items = arrange(DOMAINS, "apart")
    assert [item.domain for item in items] == [item.domain for item in arrange(DOMAINS, "mixed")]
    assert {item.domain for item in items[:90] if item.learn} == {"a"}
    assert {item.domain for item in items[90:] if item.learn} == {"b", "c"}
    assert all(item.learn for item in arrange(DOMAINS, "mixed"))


def arm(hits: int, route: str | None = None, kind: str = "full", size: int = 100) -> ArmResult:
    seen = [
        RoutedRequest(name, route or name, name, f"{name}-1", 10, hits, 2, 0.1, number)
        for name in ("a", "b")
        for number in range(120)
    ]
    return ArmResult(seen, published=3, checked=2, memory=[{"draft": "a", "kind": kind, "bytes": size}])


def test_the_last_line_says_what_the_issue_asks_for() -> None:
    arms = {"single": arm(5, "default"), "routed": arm(7), "routed_lora": arm(6, kind="lora", size=10)}
    line = summary(arms, ["a", "b"])
    assert line["domains"]["a"] == {"frozen": 0.2, "single": 0.5, "routed": 0.7, "routed_lora": 0.6}
    assert line["bytes_per_draft"] == {"full": 100, "lora": 10}
    assert line["misrouted"] == 0 and line["gain"] == pytest.approx(0.2)
    assert summary({"routed": arm(7, "default")}, ["a"])["misrouted"] == 1
    assert (
        line["lossless_checked"] == 6
        and line["lossless_failed"] == 0
        and line["tokens_per_s"]["single"] == pytest.approx(100)
    )
    json.dumps(line)


def test_an_arm_survives_the_disk(tmp_path: Path) -> None:
    cell = Cell("routed", arm(7))
    RunFolder(tmp_path, {}, "arms.jsonl", RoutesCell).add(cell)
    assert RunFolder(tmp_path, {}, "arms.jsonl", RoutesCell).finished == [cell]


def test_only_the_last_hundred_of_a_domain_count() -> None:
    early = [RoutedRequest("a", "a", "a", "a-1", 10, 0, 0, 0.1, 0)] * 50
    late = [RoutedRequest("a", "a", "a", "a-1", 10, 9, 0, 0.1, 0)] * 100
    assert summary({"routed": ArmResult([*early, *late])}, ["a"])["domains"]["a"]["routed"] == 0.9


def test_the_picture_has_a_curve_an_arm(tmp_path: Path) -> None:
    arms = {"single": arm(5, "default"), "routed": arm(7)}
    assert draw(arms, ["a", "b"], tmp_path).stat().st_size > 5_000
    curves = (tmp_path / "routes.svg").read_text()
    assert "one draft for everything" in curves and "an adapter" not in curves


def test_a_draft_for_each_language_that_domains_are_in(tmp_path: Path) -> None:
    teaching = {name: shipped_prompts(name, 30, 0) for name in ("arithmetic", "python", "finnish")}
    assert languages_of(teaching) == {"arithmetic": "en", "python": "en", "finnish": "fi"}
    with open_store(settings_of(storage__directory=tmp_path / "data")) as store:
        assert set_up(store, "by_language", SHIPPED / "draft", teaching) == ["default", "en", "fi"]
        routes = {route.name: (route.draft, dict(route.matches)) for route in store.routes.list()}
    assert routes["en"] == ("en", {"language": ["en"]}) and routes["fi"] == ("fi", {"language": ["fi"]})
