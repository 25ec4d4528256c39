"""What stands between a command and a server: which pair, which keys and ports, and how many processes.

The pair is the one asked for, the one in the settings, or the one that ships with osd.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import osd
from osd.kernels.host import usable_cores, without_collecting
from osd.models.needs_draft import MODEL_DRAFTERS, UNIVERSAL
from osd.server.process.listen import Place, Ports, check_address, is_local, listen, reserve
from storage.distribution import needing
from storage.errors import BadSetting
from storage.settings import ServeSettings, Settings
from storage.sql.audit import act

if TYPE_CHECKING:
    from osd.models.pair import Pair
    from osd.server.http.keys import KeyRing
    from osd.server.process.api_server import ApiServer
    from osd.server.processes import Peers
    from storage.store import Store

OR_ELSE = ", or set drafters.kind to one that needs no draft model (trigram, lookup)"
SHIPPED = Path(osd.__file__).parent / "demo" / "pair"


@dataclass(frozen=True, slots=True)
class PairNames:
    """Folders or hub names of a target and a draft."""

    target: str
    draft: str
    """Empty where drafts need no model; may be a draft of the store, see :func:`draft_in_store`."""
    shipped: bool = False
    """Whether it is osd's own small pair because no other was named."""
    universal: bool = False
    """Whether the draft has a vocabulary of its own."""

    def load(self, serve: ServeSettings, *, once: bool = False) -> Pair:
        """Load both models. ``once``: the target's weights are in memory once, and its module alone is slow. Raises
        PairError."""
        with without_collecting():
            return self._load(serve, once)

    def _load(self, serve: ServeSettings, once: bool) -> Pair:
        if not self.draft:
            from osd.models.target_only import load_alone

            return load_alone(
                self.target, device=serve.device, dtype=serve.dtype, device_map=serve.device_map, once=once
            )
        if self.universal:
            from osd.models.target_only import load_with_text_draft

            return load_with_text_draft(self.target, self.draft, device=serve.device, dtype=serve.dtype, once=once)
        from osd.models.pair import load_pair

        return load_pair(
            self.target, self.draft, device=serve.device, dtype=serve.dtype, device_map=serve.device_map,
            draft_device=serve.draft_device, once=once,
        )  # fmt: skip


def choose_pair(
    serve: ServeSettings, target: str | None = None, draft: str | None = None, *, drafter: str | None = None
) -> PairNames:
    """Return the pair to serve with. ``drafter``: the drafter's name; where that needs no draft model, a target alone
    will do. None: both are needed. Raises BadSetting when one half is named without the other."""
    target, draft = target or serve.target, draft or serve.draft
    if target and draft:
        return PairNames(target, draft, universal=drafter == UNIVERSAL)
    if target and drafter is not None and drafter not in MODEL_DRAFTERS:
        return PairNames(target, "")
    if target or draft:
        given, missing = ("target", "draft") if target else ("draft", "target")
        or_else = OR_ELSE if target and drafter is not None else ""
        raise BadSetting(
            source="pair",
            key=f"serve.{missing}",
            reason=f"a {given} is named without a {missing}; give --{missing} too{or_else}",
        )
    return PairNames(str(SHIPPED / "target"), str(SHIPPED / "draft"), shipped=True, universal=drafter == UNIVERSAL)


def named_target(serve: ServeSettings) -> str:
    """Return the target, where no draft is needed. Raises BadSetting for a draft that is named without a target."""
    return serve.target or choose_pair(serve).target


def draft_in_store(names: PairNames, store: Store) -> PairNames:
    """Return the pair with the folder of number 0 in place of the name of a draft that the store has for this target.

    Folders go before names of drafts, and these before hub names. Raises WeightsDamaged, PlaceUnreachable.
    """
    with without_collecting():
        from osd.models.model_digest import model_digest

    if not names.draft or Path(names.draft).exists() or (target := model_digest(names.target)) is None:
        return names
    if (version := store.versions.find(names.draft, target)) is None:
        return names
    return replace(names, draft=str(store.versions.folder(store.versions.lineage(version.id)[-1])))


def shipped_store(settings: Settings) -> Path:
    """Return the data directory of what the shipped pair learns, beside the default one."""
    return settings.storage.data_directory() / "shipped"


def with_own_store(names: PairNames, settings: Settings) -> Settings:
    """Return the settings with a store of its own for the shipped pair, unless they name a store: a toy never claims
    the one that a pair of the user's own will have."""
    kept = settings.storage
    named = kept.url or kept.directory or kept.samples or kept.weights
    if not names.shipped or named:
        return settings
    return settings.changed(storage={"directory": shipped_store(settings)})


def tell_shipped(settings: Settings) -> str:
    """Say that no pair was named, and where the shipped one's store is."""
    where = settings.storage.data_directory()
    return (
        f"No pair is named; serving with the small one that ships with osd. Its store is {where}; `osd use --shipped` "
        "lets other commands in this folder find it."
    )


def tell_log() -> None:
    """Write our own sentences to stderr, and what others warn of."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("osd").setLevel(logging.INFO)


def leave_a_core(settings: Settings, processes: int = 1) -> Settings:
    """Leave one core for HTTP and recording, the others shared out among the processes, where nobody has said how many
    torch threads each may have: threads that wait for one that has no core are slower than one thread less."""
    if settings.serve.threads or "OMP_NUM_THREADS" in os.environ:
        return settings
    threads = max(1, (usable_cores() - 1) // processes)
    return settings.changed(serve={"threads": threads})


def serve_pair(names: PairNames, settings: Settings, store: Store, ring: KeyRing, place: Place) -> int:
    """Load the pair and serve it here, HTTP in another process; return the exit status."""
    run, fork = server_parts()
    act("server")
    store.db.close()  # what is open must not be carried through a fork; the next question opens it anew
    api = fork(names.target, settings, lambda: again(settings, ring), place.ports.accepting)
    from osd.engine.moving_target import MovingTarget

    with MovingTarget(names.load(settings.serve, once=True), settings, store) as session:  # nobody else holds the pair
        return run(session, store, ring, api, place)


def serve_several(names: PairNames, settings: Settings, ring: KeyRing, place: Place) -> int:
    """Serve the pair by several servers behind the port (``fleet.processes``); return the exit status."""
    server_parts()  # imported once, for all that are forked
    from osd.server.processes import Supervisor
    from storage.store import open_store

    count = settings.fleet.processes
    settings = leave_a_core(settings, count)

    def work(peers: Peers, replaces: str | None) -> int:
        with open_store(settings) as store:
            keys = key_ring(store, settings, required=ring.required)
            return serve_pair(names, settings, store, keys, Place(place.ports, lambda: None, peers, replaces))

    return Supervisor(work, count, place.ready).run()


def server_parts() -> tuple[Callable[..., int], Callable[..., ApiServer]]:
    """Import what serves, and what starts the API server process. Raises BadSetting where they are not
    installed."""
    with needing("serve", "osd serve"), without_collecting():
        from osd.server.process.api_server import fork
        from osd.server.process.engine_server import serve
    return serve, fork


def key_ring(store: Store, settings: Settings, *, required: bool) -> KeyRing:
    """Return the store's keys. Raises StoreError."""
    from osd.server.http.keys import KeyRing

    local = is_local(settings.server.host) and is_local(settings.server.admin_host)
    return KeyRing(store.keys, settings.server.keys_poll_seconds, required=required, local_only=local and required)


def again(settings: Settings, ring: KeyRing) -> KeyRing:
    """Return the same keys over a connection of its own. Raises StoreError."""
    from storage.store import open_store

    return key_ring(open_store(settings), settings, required=ring.required)


def ports_of(stack: ExitStack, settings: Settings, *, guarded: bool) -> Ports:
    """Bind both addresses, until the stack is closed. Raises BadSetting."""
    server = settings.server
    for host, key in ((server.host, "server.host"), (server.admin_host, "server.admin_host")):
        check_address(host, key, guarded=guarded, or_else=", or give --no-keys to let everybody in")
    shared = settings.fleet.processes > 1
    api = stack.enter_context((reserve if shared else listen)(server.host, server.port, "server.port"))
    admin = stack.enter_context(listen(server.admin_host, server.admin_port, "server.admin_port"))
    return Ports(api, admin, shared)
