"""Analyses recent traffic and proposes routes: split mixed ones, merge equal ones, report those that drifted.

    newest samples → clusters → gain of each → SPLIT
    pairs of routes with drafts of their own → do they still differ? → MERGE
    a route's newest requests against those before → DRIFT

Proposals are stored without any text: an admin applies or declines them (:mod:`trainer.routes.apply`), or a setting
applies them automatically. The candidate that was trained for a split is kept, so that the new draft starts from it.
A worker searches every so many served requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch

from osd.models.vocabulary import load_tokenizer
from osd.models.weights import write_full
from router.clusters import Clusters
from storage.errors import OsdError
from storage.insights.recent import judged_by_route
from storage.insights.statistics import difference, rate
from storage.records import RequestSamples, Route
from storage.routes.proposals import ProposalKind, ProposalState, RouteProposal
from storage.settings import GateSettings, Settings
from storage.store import Store
from storage.versions.feature_kinds import FEATURE_KINDS
from trainer.devices import training_device
from trainer.distil.checkpoints import new_folder
from trainer.distil.step import NotFinite
from trainer.lease import RunStopped, Stop, until_stopped
from trainer.routes.apply import apply_open, candidates, settle, sweep
from trainer.routes.compare import compare_routes, find_drift
from trainer.routes.offers import Offer, OfferMaker, Say, Traffic, read_traffic

log = logging.getLogger("osd.trainer")

EXAMPLES = 64
"""Requests of a cluster from which a new route's topic is learned."""


@dataclass(frozen=True, slots=True)
class Search:
    """The parameters of a search."""

    routes: Sequence[str] | None = None
    """Routes to analyse; None means all."""
    requests: int = 800
    """Number of newest requests of each draft's routes."""
    seed: int = 0
    say: Say = field(default=lambda done, of: None)
    between: Callable[[], None] = field(default=lambda: None)
    """Called often; may raise to end the search, which then proposes nothing more."""


def discover(store: Store, settings: Settings, search: Search) -> list[RouteProposal]:
    """Store and return the proposals found; older open splits and merges of the same routes are declined.

    Raises UnknownRoute, SegmentDamaged, WeightsDamaged, StoreWriteFailed, NotFinite.
    """
    device = training_device(settings.trainer)
    sweep(store)
    chosen = [store.routes.get(name) for name in search.routes] if search.routes else store.routes.list()
    found: list[RouteProposal] = []
    for draft in dict.fromkeys(route.draft for route in chosen):
        routes = [route.name for route in chosen if route.draft == draft]
        current = store.versions.find(draft, store.targets.newest())
        if current is None or current.kind in FEATURE_KINDS:
            continue  # no server has given it weights yet, so there is no traffic either; or it reads hidden states
        found += _splits(store, settings, search, draft, routes, device)
        found += propose_for_adapters(store, settings, search, draft, chosen, device)
    found += _merges(store, settings, search, chosen, device)
    found += [proposal for route in chosen for proposal in _drift(store, search, route)]
    return found


def propose_for_adapters(
    store: Store, settings: Settings, search: Search, draft: str, chosen: Sequence[Route], device: torch.device
) -> list[RouteProposal]:
    """Propose a draft of its own for each route of a LoRA adapter on which the draft is accepted less than on all other
    traffic, by more than chance, and a draft that learned from it alone more than one that learned from all."""
    routes = [route.name for route in chosen if route.draft == draft]
    adapters = [route.name for route in chosen if route.draft == draft and [*route.matches] == ["model"]]
    worse = _worse(store, draft, adapters, settings.gate.confidence, search.requests) if adapters else []
    if not worse:
        return []
    traffic = read_traffic(store, draft, routes, search.requests, search.seed, device)
    labels = np.array([1 + worse.index(one.route) if one.route in worse else 0 for one in traffic.samples])
    apart = replace(traffic, clusters=Clusters(labels, 1.0, ((),) * (1 + len(worse))))
    offers = OfferMaker(store, settings, apart, device, lambda _: [], search.say, search.between).offers()
    named = [replace(one, name=one.requests[0].route) for one in offers if one.requests[0].route in worse]
    for one in (better := [one for one in named if one.better]):
        _withdraw(store, ProposalKind.SPLIT, [one.name])
    return list(filter(None, (_propose(store, apart, [one.name], one, {}) for one in better)))


def _worse(store: Store, draft: str, adapters: Sequence[str], confidence: float, requests: int) -> list[str]:
    """Return the routes on which a draft is accepted less than on what none of these takes, all proven together."""
    line = store.versions.current(draft, store.targets.newest()).draft
    judged = judged_by_route(store.db, line, requests)
    base = rate([bucket for route, buckets in judged.items() if route not in adapters for bucket in buckets])
    level = 1 - 2 * (1 - confidence) / len(adapters)  # two-sided: the upper end alone counts
    spans = {name: difference(base, rate(judged.get(name, ())), level) for name in adapters}
    return [name for name, span in spans.items() if span and span.high < 0]


def _splits(
    store: Store, settings: Settings, search: Search, draft: str, routes: Sequence[str], device: torch.device
) -> list[RouteProposal]:
    tokenizer = load_tokenizer(store.versions.folder(store.versions.current(draft, store.targets.newest())))
    if tokenizer is None:
        return []  # a route is selected by the text of its prompts
    traffic = read_traffic(store, draft, routes, search.requests, search.seed, device)

    def words(tokens: Sequence[int]) -> list[str]:
        return [str(tokenizer.decode([token])).strip() for token in tokens]

    offers = OfferMaker(store, settings, traffic, device, words, search.say, search.between).offers()
    if not any(offer.better for offer in offers):
        return []
    _withdraw(store, ProposalKind.SPLIT, routes)
    group = {offer.name: _typical(offer) for offer in offers}
    better = (offer for offer in offers if offer.better)
    return list(filter(None, (_propose(store, traffic, routes, offer, group) for offer in better)))


def _typical(offer: Offer) -> Sequence[RequestSamples]:
    """Return the newest requests of an offer's cluster."""
    return offer.requests[-EXAMPLES:]


def _tenants(some: Sequence[RequestSamples]) -> list[str]:
    return sorted({samples.tenant for samples in some})


def _propose(
    store: Store, traffic: Traffic, routes: Sequence[str], offer: Offer, group: Mapping[str, Sequence[RequestSamples]]
) -> RouteProposal | None:
    """Enter a split with the draft that was trained for it; None, with nothing left, where requests were forgotten that
    may be in that draft."""
    facts: dict[str, Any] = {
        "name": offer.name, "draft": traffic.version.draft, "version": traffic.version.id, "routes": list(routes),
        "words": list(offer.words), "requests": len(offer.requests), "share": round(offer.share, 4),
        "separation": round(traffic.clusters.separation, 4), "evidence": offer.evidence,
        "examples": {topic: [s.request_id for s in some] for topic, some in group.items()},
        "example_tenants": {topic: _tenants(some) for topic, some in group.items()},
        "members": [s.request_id for s in offer.requests], "tenants": _tenants(offer.requests),
    }  # fmt: skip
    proposal = store.proposals.add(ProposalKind.SPLIT, facts)
    parent = store.versions.folder(traffic.version)
    with new_folder(candidates(store) / str(proposal.id)) as aside:
        write_full(offer.candidate, aside, parent)
    if store.forgetter.news(0).line == traffic.forgotten:
        return proposal
    settle(store, proposal, ProposalState.DECLINED, {"reason": "requests were forgotten meanwhile"})
    return None


def _withdraw(store: Store, kind: ProposalKind, routes: Sequence[str]) -> None:
    """Decline earlier open proposals for the same routes."""
    for proposal in store.proposals.list(ProposalState.OPEN):
        if proposal.kind is kind and set(proposal.facts.get("routes", ())) == set(routes):
            settle(store, proposal, ProposalState.DECLINED, {"reason": "newer proposals took its place"})


def _merges(
    store: Store, settings: Settings, search: Search, routes: Sequence[Route], device: torch.device
) -> list[RouteProposal]:
    found = []
    for one, other in combinations(routes, 2):
        if one.draft == other.draft:
            continue
        drafts = {route.name: route.draft for route in (one, other)}
        judges = {name: _judges(store, name, settings.gate) for name in drafts}
        same = compare_routes(store, settings.gate, drafts, judges, device, search.between)
        if same is not None and same.same:
            _withdraw(store, ProposalKind.MERGE, list(drafts))
            found.append(
                store.proposals.add(ProposalKind.MERGE, {"routes": list(drafts), "drafts": drafts, **same.facts})
            )
    return found


def _judges(store: Store, route: str, gate: GateSettings) -> list[RequestSamples]:
    """Return held-out requests; where there are too few, the newest others too.

    The route's own draft was trained on those, which biases against a merge.
    """
    recent = partial(store.samples.recent, routes=[route], target=store.targets.newest())
    held = recent(limit=gate.requests, holdout=True)
    lacking = max(0, gate.min_requests - len(held))
    others = recent(limit=lacking, holdout=False) if lacking else []
    return store.samples.read(held + others)


def _drift(store: Store, search: Search, route: Route) -> list[RouteProposal]:
    ids = store.samples.recent(limit=search.requests, routes=[route.name], target=store.targets.newest())
    some = store.samples.read(ids[::-1])
    drift = find_drift([s.tokens.tolist() for s in some], search.seed)
    if drift is None or not drift.moved:
        return []
    _withdraw(store, ProposalKind.DRIFT, [route.name])
    times = {"oldest": some[0].created_at, "moved_at": some[-drift.new].created_at}
    return [store.proposals.add(ProposalKind.DRIFT, {"routes": [route.name], **times, **asdict(drift)})]


log = logging.getLogger("osd.trainer")


class RouteDiscovery:
    """A periodic search. It remembers, in this process alone, the number of requests at its last search."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._looked_at: int | None = None

    def search_if_due(self, stop: Stop) -> list[RouteProposal]:
        """Search if it is due and return the proposals; empty otherwise, or on an error, which is logged."""
        every = self._settings.router.discover_requests
        if not every:
            return []
        served = sum(row.requests for row in self._store.outcomes.acceptance())
        if self._looked_at is None or served - self._looked_at < every:
            self._looked_at = served if self._looked_at is None else self._looked_at
            return []
        self._looked_at = served
        return self._found(stop)

    def _found(self, stop: Stop) -> list[RouteProposal]:
        try:
            found = discover(self._store, self._settings, Search(between=until_stopped(stop)))
            if self._settings.router.apply_proposals:
                found = apply_open(self._store, found)
        except RunStopped:
            return []
        except (OsdError, NotFinite) as error:
            log.error("no look for routes: %s", error, extra={"action": "discovery_failed"})
            return []
        log.info("%d proposals of routes", len(found), extra={"action": "discovered", "proposals": len(found)})
        return found
