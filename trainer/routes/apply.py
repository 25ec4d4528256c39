"""Application of a proposal: a draft that starts from the candidate, a route to it, and a topic that selects it.

Applying a split stores prompts of the traffic as examples of topics, as `osd router teach` stores an admin's: that is
what the admin who applies it asks for. A proposal that is settled loses its candidate on disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from router.classifier_models import prepare
from storage.errors import BadInput, DuplicateRoute, UnknownProposal, WrongState
from storage.insights.change import drift_advice
from storage.records import Route
from storage.routes.proposals import CANDIDATES, ProposalKind, ProposalState, RouteProposal
from storage.store import Store
from trainer.routes.topics import PromptReader


def candidates(store: Store) -> Path:
    """Return the folder in which each open split has the draft that was trained for it."""
    folder = store.directory / CANDIDATES
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sweep(store: Store) -> None:
    """Delete drafts of splits that are settled: another machine's command perhaps did that."""
    for path in candidates(store).iterdir():
        with suppress(UnknownProposal):
            if path.name.isdecimal() and store.proposals.get(int(path.name)).state is not ProposalState.OPEN:
                shutil.rmtree(path, ignore_errors=True)


def settle(
    store: Store, proposal: RouteProposal, state: ProposalState, facts: dict[str, Any] | None = None
) -> RouteProposal:
    """Mark a proposal applied or declined and delete its candidate. Raises WrongState, UnknownProposal."""
    settled = store.proposals.set_state(proposal.id, state, facts)
    action = "apply" if state is ProposalState.APPLIED else "decline"
    store.trail.note(f"router {action}", str(proposal.id), {"kind": proposal.kind.value, **(facts or {})})
    shutil.rmtree(candidates(store) / str(proposal.id), ignore_errors=True)
    return settled


def apply(store: Store, number: int, *, name: str | None = None, who: str | None = None) -> RouteProposal:
    """Apply proposal ``number``; ``name`` gives a split's route another name.

    Raises UnknownProposal, WrongState for one that is settled, BadInput where nothing is to be done or the examples
    are gone, DuplicateRoute. At most, an unused draft has been registered then.
    """
    proposal = store.proposals.get(number)
    if proposal.state is not ProposalState.OPEN:
        subject = f"Proposal {number}"
        raise WrongState(version=subject, state=proposal.state.value, action="applying it", needed="an open one")
    if proposal.kind is ProposalKind.DRIFT:
        advice = drift_advice(store, proposal)
        raise BadInput(reason=f"Proposal {number} says that traffic moved, which nothing can apply. {advice}")
    if proposal.kind is ProposalKind.SPLIT:
        return _split(store, proposal, name, who)
    return settle(store, proposal, ProposalState.APPLIED, _merge(store, proposal, who))


def apply_open(store: Store, proposals: Sequence[RouteProposal]) -> list[RouteProposal]:
    """Apply every open proposal that can be, as setting router.apply_proposals asks; drift stays open for people."""
    done = []
    for proposal in proposals:
        is_ready = proposal.kind is not ProposalKind.DRIFT
        done.append(apply(store, proposal.id, who="osd (router.apply_proposals)") if is_ready else proposal)
    return done


def decline(store: Store, number: int) -> RouteProposal:
    """Decline a proposal. Raises UnknownProposal, WrongState."""
    return settle(store, store.proposals.get(number), ProposalState.DECLINED)


def _split(store: Store, proposal: RouteProposal, name: str | None, who: str | None) -> RouteProposal:
    """Apply a split. It is settled before its draft can serve: what is forgotten from then on is found in that, and
    what was forgotten before has declined the split."""
    facts = proposal.facts
    route = name or str(facts["name"])
    if not facts["examples"]:  # an adapter's: its route is there
        root = store.versions.register_root(route, candidates(store) / str(proposal.id), target=store.targets.newest())
        old, done = store.routes.get(facts["name"]), {"route": facts["name"], "version": root.id}
        settled = settle(store, proposal, ProposalState.APPLIED, done)
        store.routes.change(replace(old, draft=route), who)
        return settled
    if any(known.name == route for known in store.routes.list()):
        raise DuplicateRoute(route=route)
    topics = {topic: _prompts(store, facts["draft"], ids) for topic, ids in facts["examples"].items()}
    if not topics.get(facts["name"]):
        reason = f"The requests that proposal {proposal.id} rests on are no longer kept; look for routes again."
        raise BadInput(reason=reason)
    topics[route] = topics.pop(facts["name"])
    folder = candidates(store) / str(proposal.id)
    root = store.versions.register_root(route, folder, target=store.targets.newest())
    taught = {text for _, text in store.examples.list()}  # those of other routes stay theirs
    redacted = store.samples.redactor.text
    pairs = [(topic, text) for topic, texts in topics.items() for text in texts
             if topic == route or redacted(text) not in taught]  # fmt: skip
    prepare(store, store.examples.preview(pairs))  # here, and not beside serving
    settled = settle(store, proposal, ProposalState.APPLIED, {"route": route, "version": root.id})
    store.routes.add(Route(route, route, {"topic": [route]}), who)
    store.examples.teach(pairs, who)
    return settled


def _merge(store: Store, proposal: RouteProposal, who: str | None) -> dict[str, Any]:
    """Point the route of the removed draft to the remaining one; both routes stay, with their own statistics."""
    keep = str(proposal.facts["keep"])
    moved = []
    for name in proposal.facts["routes"]:
        route = store.routes.get(name)
        if route.draft != keep:
            store.routes.change(Route(name, keep, route.matches, route.candidates), who)
            moved.append(name)
    return {"moved": moved}


def _prompts(store: Store, draft: str, request_ids: Sequence[str]) -> list[str]:
    """Return the prompts of stored requests as text, without purged ones. Raises BadInput without a tokenizer."""
    from osd.models.vocabulary import load_tokenizer  # takes seconds, and only a split reads prompts

    tokenizer = load_tokenizer(store.versions.folder(store.versions.current(draft, store.targets.newest())))
    if tokenizer is None:
        raise BadInput(reason=f"The draft {draft} has no tokenizer, so prompts cannot be read as text.")
    store.samples.redactor.load(lambda: tokenizer)
    reader = PromptReader(tokenizer)
    found = store.samples.read(request_ids)
    allowed = store.tenants.learnable({samples.tenant for samples in found})  # by now
    texts = (reader.text(s.tokens[: s.prompt_len].tolist()) for s in found if s.tenant in allowed)
    return [text for text in texts if text]
