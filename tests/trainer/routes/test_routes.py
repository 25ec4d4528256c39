"""Routes found in traffic: the nearest draft, what clusters would win, whether drafts differ, whether traffic moved."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from storage.errors import BadInput
from storage.records import RequestSamples, Route
from storage.settings import Settings
from storage.store import Store
from tests.trainer.routes.conftest import Domains, keep
from trainer.distil.checkpoints import load_trainable, write_full
from trainer.distil.distil import distil
from trainer.routes.compare import LEVEL, compare_routes, find_drift, rank_drafts
from trainer.routes.offers import OfferMaker, read_traffic, readable

CPU = torch.device("cpu")


def with_draft(store: Store, settings: Settings, name: str, samples: Sequence[RequestSamples], folder: Path) -> None:
    """A draft of that name, trained on these samples from the draft ``default``, and a route to it."""
    model = load_trainable(store, store.versions.current("default"), settings.learn, CPU)
    distil(model, list(samples), settings.learn)
    folder.mkdir()
    write_full(model, folder, store.versions.folder(store.versions.current("default")))
    store.versions.register_root(name, folder)
    store.routes.add(Route(name, name))


def test_the_nearest_draft_is_the_one_that_learned_the_same(
    drafted: Store, settings: Settings, domains: Domains, tmp_path: Path
) -> None:
    for name, samples in domains.items():
        with_draft(drafted, settings, name, samples[:24], tmp_path / name)
    for name, samples in domains.items():
        fits = rank_drafts(drafted, samples[24:], CPU)
        assert fits[0].draft == name
        assert {fit.draft for fit in fits} == {"default", "low", "high"}
        assert fits[0].acceptance > fits[-1].acceptance
        assert fits[0].requests == 24


def test_without_a_position_nothing_can_be_compared(drafted: Store) -> None:
    with pytest.raises(BadInput, match="None of the samples"):
        rank_drafts(drafted, [], CPU)


def test_clusters_of_mixed_traffic_are_its_kinds_and_each_would_win(
    mixed: Store, settings: Settings, domains: Domains
) -> None:
    kinds = {s.request_id: name for name, some in domains.items() for s in some}
    traffic = read_traffic(mixed, "default", ["default"], 200, 0, CPU)
    told: list[tuple[int, int]] = []
    words = lambda tokens: [f"w{token}" for token in tokens]  # noqa: E731
    offers = OfferMaker(mixed, settings, traffic, CPU, words, say=lambda *at: told.append(at)).offers()
    named = {s.request_id: offer.name for offer in offers for s in offer.requests}
    assert adjusted_rand_score([kinds[i] for i in named], list(named.values())) >= 0.9
    assert set(named) == set(kinds)
    assert all(offer.better and offer.evidence["difference"] > 0 for offer in offers)
    assert sum(offer.share for offer in offers) == pytest.approx(1.0)
    assert all(offer.words and offer.name for offer in offers)
    assert told[-1][0] == told[-1][1] and told == sorted(told)


def test_candidates_are_judged_by_requests_that_they_never_saw(mixed: Store) -> None:
    traffic = read_traffic(mixed, "default", ["default"], 200, 0, CPU)
    for label in range(len(traffic.clusters)):
        training, judges = traffic.split(label)
        assert judges and not {s.request_id for s in training} & {s.request_id for s in judges}


def test_words_that_say_nothing_are_not_shown() -> None:
    assert readable(["(", "", "return", ">>", "return", "int", "0"]) == ["return", "int"]
    assert readable(["(", "", ")"]) == ["(", ")"]


def test_traffic_of_one_kind_offers_nothing(drafted: Store, settings: Settings, domains: Domains) -> None:
    keep(drafted, domains["low"][:20])
    traffic = read_traffic(drafted, "default", ["default"], 200, 0, CPU)
    assert OfferMaker(drafted, settings, traffic, CPU, lambda _: []).offers() == []


def test_drafts_that_learned_the_same_are_the_same_and_others_are_not(
    drafted: Store, settings: Settings, domains: Domains, tmp_path: Path
) -> None:
    for name, learned in (("low", domains["low"]), ("again", domains["low"][::-1]), ("high", domains["high"])):
        with_draft(drafted, settings, name, learned[:40], tmp_path / name)
    judges = {"low": domains["low"][40:], "again": domains["low"][40:], "high": domains["high"][40:]}

    def compared(a: str, b: str) -> bool:
        found = compare_routes(drafted, settings.gate, {a: a, b: b}, {a: judges[a], b: judges[b]}, CPU)
        assert found is not None
        return found.same

    assert compared("low", "again")
    assert not compared("low", "high")


def test_too_few_judges_say_nothing(drafted: Store, settings: Settings, domains: Domains) -> None:
    one = {"a": domains["low"][:1], "b": domains["high"][:1]}
    assert compare_routes(drafted, settings.gate, {"a": "default", "b": "default"}, one, CPU) is None


def test_traffic_that_moved_is_noticed_and_traffic_that_did_not_is_not(domains: Domains) -> None:
    low = [s.tokens.tolist() for s in domains["low"]]
    high = [s.tokens.tolist() for s in domains["high"]]
    moved = find_drift(low + high[:16])
    assert moved is not None and moved.moved and moved.p_value <= LEVEL
    still = find_drift(low)
    assert still is None or not still.moved
    assert find_drift(low[:20]) is None


def test_false_alarms_of_drift_are_rare() -> None:
    """Forty streams that do not move: more than one alarm has a chance below 0.001 at a level of 0.001."""
    alarms = 0
    for seed in range(40):
        chance = random.Random(seed)
        stream = [chance.choices(range(40), k=12) for _ in range(64)]
        drift = find_drift(stream, seed)
        alarms += drift is not None and drift.moved
    assert alarms <= 1
