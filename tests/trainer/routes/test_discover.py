"""From unlabelled traffic to routes: proposals in the store, applied or declined."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from sqlalchemy import update

from storage.errors import BadInput, DuplicateRoute, UnknownProposal, WrongState
from storage.records import Outcome, Route, new_id, now
from storage.routes.proposals import ProposalKind, ProposalState, RouteProposal
from storage.settings import Settings
from storage.sql.tables import VersionRow
from storage.store import Store
from tests.storage import make
from tests.trainer.routes.conftest import Domains, in_mixed_order, keep
from trainer.routes.apply import apply, candidates, decline, sweep
from trainer.routes.discover import RouteDiscovery, Search, discover, propose_for_adapters
from trainer.routes.offers import Offer, OfferMaker, read_traffic


def splits(found: Sequence[RouteProposal]) -> list[RouteProposal]:
    return [proposal for proposal in found if proposal.kind is ProposalKind.SPLIT]


def test_each_kind_of_traffic_is_proposed_with_what_it_would_win_and_no_text(
    found: Store, settings: Settings, domains: Domains
) -> None:
    """Words that set a cluster apart are named; no prompt is."""
    proposals = splits(found.proposals.list())
    kinds = {s.request_id: name for name, some in domains.items() for s in some}
    named = {member: proposal.facts["name"] for proposal in proposals for member in proposal.facts["members"]}
    assert adjusted_rand_score([kinds[i] for i in named], list(named.values())) >= 0.8
    assert len(proposals) == 2
    assert sum(proposal.facts["share"] for proposal in proposals) == pytest.approx(1.0, abs=1e-3)
    for proposal in proposals:
        evidence = proposal.facts["evidence"]
        assert evidence["difference"] > 0 and evidence["apart"] > evidence["apart_error"] > 0
        assert evidence["apart_confidence"] == pytest.approx(1 - (1 - settings.gate.confidence) / 2), "two clusters"
        assert (candidates(found) / str(proposal.id) / "model.safetensors").is_file()
        said = json.dumps(dict(proposal.facts))
        for samples in (s for some in domains.values() for s in some):
            prompt = " ".join(f"w{token}" for token in samples.tokens[: samples.prompt_len])
            assert prompt not in said and str(samples.tokens.tolist())[1:-1] not in said


def test_what_learns_as_well_together_is_not_proposed(mixed: Store, settings: Settings) -> None:
    """Early on every kind would be published by the gate, and learns more from both than from its own requests."""
    early = settings.changed(learn={"epochs": 6, "learning_rate": 0.002})
    traffic = read_traffic(mixed, "default", ["default"], 200, 0, torch.device("cpu"))
    offers = OfferMaker(mixed, early, traffic, torch.device("cpu"), lambda tokens: [f"w{i}" for i in tokens]).offers()
    assert all(offer.evidence["better"] and not offer.better for offer in offers) and len(offers) == 2
    assert splits(discover(mixed, early, Search())) == []


def test_an_adapter_on_which_the_draft_is_proven_worse_is_offered_a_draft_of_its_own(
    drafted: Store, settings: Settings, domains: Domains
) -> None:
    """Another, on which it is as good as on the target, is not, nor one of which too little is known."""
    for name in ("sql", "chat", "rare"):
        drafted.routes.add(Route(name, "default", {"model": [f"{name}-lora"]}))
    high = {sample.request_id for sample in domains["high"]}
    for sample in in_mixed_order(domains):
        keep(drafted, [sample], "sql" if sample.request_id in high else "default")
    root = drafted.versions.current("default").id
    told = {"default": (48, 30), "chat": (48, 30), "sql": (48, 20), "rare": (1, 20)}
    drafted.outcomes.add([
        make.outcome(request_id=new_id(), route=route, draft_version=root, accepted=right + at % 3, rejections=10)
        for route, (count, right) in told.items() for at in range(count)
    ], "server")  # fmt: skip
    device = torch.device("cpu")
    (proposal,) = propose_for_adapters(drafted, settings, Search(), "default", drafted.routes.list(), device)
    assert proposal.facts["name"] == "sql" and proposal.facts["requests"] == 48
    apply(drafted, proposal.id)
    routes = {route.name: route.draft for route in drafted.routes.list()}
    assert routes == {"default": "default", "chat": "default", "rare": "default", "sql": "sql"}
    assert drafted.versions.current("sql").number == 0 and drafted.versions.current("default").id == root
    assert propose_for_adapters(drafted, settings, Search(), "default", drafted.routes.list(), device) == []


def test_an_applied_split_is_a_draft_a_route_and_a_topic(found: Store) -> None:
    proposal, other = splits(found.proposals.list())
    done = apply(found, proposal.id, name="mine", who="admin@here")
    assert done.state is ProposalState.APPLIED and done.facts["route"] == "mine"
    assert found.routes.get("mine") == Route("mine", "mine", {"topic": ["mine"]})
    assert found.versions.current("mine").digest != found.versions.current("default").digest
    assert set(found.examples.counts()) == {"mine", other.facts["name"]}
    assert found.routes.history("mine")[0].who == "admin@here"
    assert not (candidates(found) / str(proposal.id)).exists()
    with pytest.raises(WrongState):
        apply(found, proposal.id)


def test_a_second_split_leaves_the_first_its_topic(found: Store) -> None:
    """Each proposal knows the examples of all that were found with it, by the names that were made up for them."""
    one, other = splits(found.proposals.list())
    apply(found, one.id, name="mine")
    first = found.examples.counts()["mine"]
    apply(found, other.id, name="yours")
    assert found.examples.counts() == {"mine": first, "yours": found.examples.counts()["yours"]}


def test_who_shares_nothing_teaches_no_candidate(mixed: Store, settings: Settings) -> None:
    mixed.tenants.allow("default", share=False)
    traffic = read_traffic(mixed, "default", ["default"], 200, 0, torch.device("cpu"))
    assert traffic.samples == []


def test_what_is_forgotten_during_a_search_is_in_no_proposal(
    mixed: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offers(maker: OfferMaker) -> list[Offer]:
        made = whole(maker)
        mixed.forgetter.forget([mixed.samples.recent(limit=1)[0]])
        return made

    whole = OfferMaker.offers
    monkeypatch.setattr(OfferMaker, "offers", offers)
    assert splits(discover(mixed, settings, Search())) == []
    stored = splits(mixed.proposals.list())
    assert stored and {one.state for one in stored} == {ProposalState.DECLINED}
    assert [*candidates(mixed).iterdir()] == []


def test_drafts_of_splits_that_another_machine_settled_are_swept(found: Store) -> None:
    one, other = splits(found.proposals.list())
    found.proposals.set_state(one.id, ProposalState.DECLINED)
    sweep(found)
    assert [path.name for path in candidates(found).iterdir()] == [str(other.id)]


def test_drafts_that_read_hidden_states_are_left_out(mixed: Store, settings: Settings) -> None:
    with mixed.db.session() as session:
        session.execute(update(VersionRow).values(kind="eagle"))
    assert splits(discover(mixed, settings, Search())) == []


def test_a_name_that_is_taken_changes_nothing(found: Store) -> None:
    proposal = splits(found.proposals.list())[0]
    with pytest.raises(DuplicateRoute):
        apply(found, proposal.id, name="default")
    assert found.proposals.get(proposal.id).state is ProposalState.OPEN
    assert [route.name for route in found.routes.list()] == ["default"]
    assert found.examples.counts() == {}


def test_requests_that_were_forgotten_teach_nothing(found: Store) -> None:
    proposal = splits(found.proposals.list())[0]
    found.samples.purge(everything=True)
    with pytest.raises(BadInput, match="no longer kept"):
        apply(found, proposal.id)
    assert [route.name for route in found.routes.list()] == ["default"]


def test_requests_of_tenants_that_no_longer_allow_it_teach_nothing(found: Store) -> None:
    proposal = splits(found.proposals.list())[0]
    found.tenants.allow("default", learn=False)
    with pytest.raises(BadInput, match="no longer kept"):
        apply(found, proposal.id)
    assert found.examples.counts() == {}


def test_what_is_declined_stays_so_and_what_is_found_anew_takes_the_old_ones_place(
    found: Store, settings: Settings
) -> None:
    first = splits(found.proposals.list())
    assert decline(found, first[0].id).state is ProposalState.DECLINED
    again = splits(discover(found, settings, Search()))
    assert found.proposals.get(first[1].id).state is ProposalState.DECLINED
    assert {p.id for p in found.proposals.list(ProposalState.OPEN)} == {p.id for p in again}
    with pytest.raises(UnknownProposal):
        decline(found, 999)


def test_a_worker_looks_by_itself_once_enough_was_served(mixed: Store, settings: Settings) -> None:
    own = settings.model_copy(
        update={"router": settings.router.model_copy(update={"discover_requests": 10, "apply_proposals": True})}
    )
    scout, never = RouteDiscovery(mixed, own), threading.Event()
    serve(mixed, 3)
    assert scout.search_if_due(never) == []
    serve(mixed, 9)
    assert scout.search_if_due(never) == []
    serve(mixed, 1)
    assert {p.state for p in splits(scout.search_if_due(never))} == {ProposalState.APPLIED}
    assert len(mixed.routes.list()) == 3
    assert scout.search_if_due(never) == []


def serve(store: Store, requests: int) -> None:
    """So many finished requests, as a server counts them."""
    version = store.versions.current("default").id
    store.outcomes.add([outcome(request_id=new_id(), draft_version=version) for _ in range(requests)], "server")


def outcome(request_id: str, draft_version: str) -> Outcome:
    return Outcome(
        request_id=request_id, route="default", tenant="default", draft_version=draft_version, controller="fixed",
        finished_at=now(), requests=1, rounds=1, drafted=1, accepted=1, rejections=0, emitted=2, prompt_tokens=1,
        draft_ms=1.0, verify_ms=1.0,
    )  # fmt: skip


def test_one_kind_of_traffic_is_left_in_one_route(drafted: Store, settings: Settings, domains: Domains) -> None:
    keep(drafted, domains["low"][:24])
    assert discover(drafted, settings, Search()) == []


def test_drafts_that_do_not_differ_are_merged(
    drafted: Store, settings: Settings, domains: Domains, draft_folder: Path
) -> None:
    """Two drafts from the same files: each is as good on the other's traffic."""
    drafted.versions.register_root("twin", draft_folder)
    drafted.routes.add(Route("twin", "twin"))
    for route, samples in (("default", domains["low"]), ("twin", domains["low"])):
        keep(drafted, [replace(s, request_id=f"{route}-{i}") for i, s in enumerate(samples)], route)
    merges = [p for p in discover(drafted, settings, Search()) if p.kind is ProposalKind.MERGE]
    assert [set(p.facts["routes"]) for p in merges] == [{"default", "twin"}]
    apply(drafted, merges[0].id)
    assert {route.draft for route in drafted.routes.list()} == {merges[0].facts["keep"]}


def test_a_route_whose_traffic_moved_is_flagged_and_not_applied(
    drafted: Store, settings: Settings, domains: Domains
) -> None:
    keep(drafted, [*domains["low"], *domains["high"][:24]])
    found = [p for p in discover(drafted, settings, Search()) if p.kind is ProposalKind.DRIFT]
    assert [p.facts["routes"] for p in found] == [["default"]]
    with pytest.raises(BadInput, match="start `osd trainer`"):
        apply(drafted, found[0].id)
