"""A session: an engine over a store, which records what it serves and takes newer versions of its drafts as they
come."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from osd.drafters.factory import make_proposer, proposer_name, require_drafter, require_drafter_kind
from osd.drafters.tree import Proposer
from osd.engine.engine import Engine
from osd.engine.stats import Beacon, load_folder
from osd.gamma import needs_head
from osd.hotswap.drafts import Swap
from osd.hotswap.heads import HeadSwap
from osd.models.device_timer import device_ids
from osd.models.model import Model
from osd.models.pair import Pair
from osd.models.target_only import has_draft
from osd.models.vocabulary import target_facts
from osd.recording.recorder import Recorder
from router.base import Router
from router.live import make_router
from router.throughput import Costs
from storage.records import DEFAULT_DRAFT, DEFAULT_ROUTE
from storage.settings import Settings
from storage.store import Store

log = logging.getLogger(__name__)


@contextmanager
def serving(
    pair: Pair, settings: Settings, store: Store, *, draft: str | None = None, router: Router | None = None,
    before: Engine | None = None,
) -> Iterator[Engine]:  # fmt: skip
    """Serve a pair within the block: yields an engine that records what it serves; at the end everything is on the
    disk.

    ``draft`` is what the pair's draft is called in the store, ``serve.draft_name`` if None: the default draft, to which
    the default route is led where ``serve.draft_name`` says so. The drafts of other routes are loaded
    from the store as they are needed. ``router`` sends requests to routes; without one it is that of the settings.
    ``before`` is the engine, which has ended, whose target moved.
    Where the pair has no draft model, no draft of the store is loaded either. Raises NeedsDraft, StoreError when the
    store's draft of that name started from other weights, HeadNotLoaded or HeadMismatch for ``gamma.specdecpp.head``,
    and what is wrong with the files that the router reads.
    """
    worker, named = f"{socket.gethostname()}:{os.getpid()}", settings.serve.draft_name
    leads = draft is None and named != DEFAULT_DRAFT
    draft = draft or named
    store.sweep()  # what a killed process left half-done
    if (target := pair.target.digest) is not None:
        for said in store.targets.arrive(
            target, pair.target.name, target_facts(pair.target, pair.tokenizer), successors=settings.serve.successors
        ):
            log.warning("%s", said, extra={"action": "target"})
    with ExitStack() as stack:
        require_drafter(pair, settings)
        swap = heads = None
        if has_draft(pair):
            pair = replace(pair, draft=in_folder(pair.draft))
            swap = stack.enter_context(closing(Swap(store, draft, pair, settings, worker)))
            if leads:
                store.routes.change(replace(store.routes.get(DEFAULT_ROUTE), draft=draft))
        if needs_head(settings.gamma):
            others: Callable[[], Iterable[str]] = partial(list, swap.serving) if swap else tuple
            heads = stack.enter_context(closing(HeadSwap(store, draft, pair, settings, worker, others)))
        recorder = stack.enter_context(closing(Recorder(store, settings, worker, pair.tokenizer, target, pair.eos_ids)))
        known: list[Engine] = []
        if router is None:
            router = stack.enter_context(closing(make_router(store, settings.router, lambda name: _costs(known, name))))
        proposer = stack.enter_context(proposer_of(pair, settings, store))
        known.append(
            Engine(
                pair, settings, router=router, recorder=recorder, swap=swap, heads=heads, proposer=proposer,
                costs=before.costs if before else None,
            )
        )  # fmt: skip
        known[0].probe()
        if before:
            known[0].planner.begin_after(before.planner)
        del before  # and its weights with it
        if swap and (alpha := swap.judged_alpha) is not None:
            known[0].planner.expect(alpha)
        models = (pair.target, pair.draft) if has_draft(pair) else (pair.target,)
        devices = device_ids(model.module for model in models)
        stack.enter_context(closing(Beacon(load_folder(store.directory), lambda: _load(known[0]), devices)))
        yield known[0]


def _load(engine: Engine) -> tuple[bool, int, int]:
    """Return the engine's load: whether it is busy, rows that decode, requests that wait."""
    return engine.busy, len(engine.rows), len(engine.admission.waiting)


def _costs(known: Sequence[Engine], draft: str) -> Costs | None:
    """Return the costs that the engine has measured of a draft; None before there is an engine."""
    return known[0].pass_costs.of(draft, known[0].settings.gamma.max) if known else None


def in_folder(model: Model) -> Model:
    """Return the model, named by its folder on this machine even if it was loaded by a hub name."""
    if Path(model.name).is_dir():
        return model
    from huggingface_hub import snapshot_download

    return replace(model, name=snapshot_download(model.name, local_files_only=True))


@contextmanager
def proposer_of(pair: Pair, settings: Settings, store: Store) -> Iterator[Proposer | None]:
    """Yield the proposer of tokens, None where drafts are the draft's alone; at the end what was learned is kept.

    Raises BadSetting, and ModelFileDamaged, OtherTokenizer and BadTable for the corpus of ``ngram.corpus``.
    """
    require_drafter_kind(settings)
    name = proposer_name(settings)
    if name == "trigram":
        from osd.drafters.ngram.table_store import TableStore
        from osd.drafters.ngram.tables import Tables, TenantPermissions

        tables = Tables(settings, TableStore(pair, settings.ngram, store), TenantPermissions(store.samples.tenants))
        try:
            yield tables
        finally:
            tables.close()
    else:
        yield None if name is None else make_proposer(name, settings)
