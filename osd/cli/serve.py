"""`osd serve`: the engine behind OpenAI's HTTP API."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from osd.cli.context import CommandContext
from osd.cli.options import DraftName, Name, PairOptions, Port
from osd.cli.out import note
from osd.server.process.listen import Place, url
from osd.server.start import (
    choose_pair,
    draft_in_store,
    key_ring,
    leave_a_core,
    ports_of,
    serve_pair,
    serve_several,
    tell_log,
    tell_shipped,
    with_own_store,
)
from osd.server.upstream.addresses import check_replicas
from osd.server.upstream.start import upstream_parts
from storage.errors import BadSetting
from storage.settings import Settings

if TYPE_CHECKING:
    from osd.server.upstream.replicas import Replica


@dataclass(frozen=True)
class ListenOptions:
    """Where it listens, and who is let in."""

    PANEL = "Listening"
    host: Annotated[str, typer.Option(metavar="ADDRESS")] | None = None
    """Address. Default: server.host, this machine only."""
    port: Port | None = None
    """0 takes a free one. Default: server.port."""
    admin_port: Port | None = None
    """Port of the admin routes. Default: server.admin_port."""
    no_keys: bool = False
    """Let everybody in who reaches the address."""
    processes: Annotated[int, typer.Option(metavar="N", min=1, max=256)] | None = None
    """Processes behind the port, each with an engine of its own. Default: fleet.processes."""


@dataclass(frozen=True)
class ReplicaOptions:
    """The replicas that decode instead."""

    PANEL = "Replicas"
    upstream: Annotated[list[str], typer.Option(metavar="[DRAFT=]URL")] | None = None
    """Pass requests on to a server that decodes (vLLM, osd, …) instead of decoding here: URL, DRAFT=URL for one with
    another draft than the default one, or `engines` for those of `osd engines`. Repeat it for several. Default:
    upstream.replicas."""


@dataclass(frozen=True)
class ServedAs:
    """The names in the API and in the store, and whether anything is learned."""

    model_name: Name | None = None
    """The name that clients ask for. Default: server.model, else the target's folder."""
    draft_name: DraftName | None = None
    learn: Annotated[bool, typer.Option("--learn/--no-learn")] | None = None
    """Whether requests may be kept. Default: server.learn."""


def serve(
    here: CommandContext,
    listening: ListenOptions,
    pair: PairOptions,
    served: ServedAs,
    replicas: ReplicaOptions,
) -> None:
    """Serve the pair, or replicas that serve it, over HTTP as OpenAI's API, until SIGTERM or Ctrl-C.

    POST /v1/chat/completions and /v1/completions, GET /v1/models, /metrics and more: docs/server.md. Requests that run
    when it is told to stop are finished first; a second Ctrl-C does not wait. Without API keys (`osd keys create`) it
    listens on this machine only. With several processes, one that dies is started anew.

    With --upstream this is a proxy over replicas that hold different drafts of one target, such as vLLM servers: keys,
    tenants, limits, routes and the dashboard are as over an engine, and no model is loaded here (docs/upstream.md).

    Example: `osd serve --port 8000`

    Example: `osd serve --upstream http://gpu1:8000 --upstream sql=http://gpu2:8000`
    """
    settings = here.changed(
        server={
            "host": listening.host, "port": listening.port, "admin_port": listening.admin_port,
            "model": served.model_name, "learn": served.learn,
        },
        drafters={"kind": pair.drafter},
        serve={"draft_name": served.draft_name},
        upstream={"replicas": tuple(replicas.upstream) if replicas.upstream else None},
        fleet={"processes": listening.processes},
    )  # fmt: skip
    tell_log()
    run = _serve_replicas if settings.upstream.replicas else _serve_pair
    raise typer.Exit(run(here, settings, pair, no_keys=listening.no_keys))


def _serve_pair(here: CommandContext, settings: Settings, pair: PairOptions, *, no_keys: bool) -> int:
    """Serve the pair; return the exit status. Raises OsdError."""
    names = choose_pair(settings.serve, pair.target, pair.draft, drafter=settings.drafters.kind)
    settings = here.settings = with_own_store(names, settings)
    if names.shipped:
        note(tell_shipped(settings))
    with ExitStack() as stack:
        store = stack.enter_context(here.store())
        names = draft_in_store(names, store)
        ring = key_ring(store, settings, required=not no_keys)
        ports = ports_of(stack, settings, guarded=no_keys or ring.needed)
        where = f"{url(ports.api)}/v1, admin routes at {url(ports.admin)}/admin"
        place = Place(ports, partial(note, f"Serving {where}. Ctrl-C stops it."))
        if settings.fleet.processes == 1:
            return serve_pair(names, leave_a_core(settings), store, ring, place)
        store.close()
        return serve_several(names, settings, ring, place)


def _serve_replicas(here: CommandContext, settings: Settings, pair: PairOptions, *, no_keys: bool) -> int:
    """Serve as the proxy over replicas; return the exit status. Raises BadSetting."""
    if pair.target or pair.draft or pair.drafter:
        reason = "with --upstream the replicas decode, with their own pair; leave out --target, --draft and --drafter"
        raise BadSetting(source="option", key="--upstream", reason=reason)
    check_replicas(settings.upstream.replicas)
    serve_one, serve_several = upstream_parts()
    with ExitStack() as stack:
        store = stack.enter_context(here.store())
        ring = key_ring(store, settings, required=not no_keys)
        ports = ports_of(stack, settings, guarded=no_keys or ring.needed)

        def ready(replicas: Sequence[Replica] = ()) -> None:
            for replica in replicas:
                trouble = replica.misfit or replica.trouble
                note(trouble or f"{replica.at.url} serves {replica.model}, draft {replica.at.draft}.")
            note(f"Serving {url(ports.api)}/v1, admin routes at {url(ports.admin)}/admin. Ctrl-C stops it.")

        if settings.fleet.processes == 1:
            return serve_one(settings, store, ring, ports, ready)
        store.close()
        return serve_several(settings, ring, ports, ready)
