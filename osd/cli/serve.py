"""`osd serve`: the engine behind OpenAI's HTTP API."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from osd.cli.context import CommandContext, surroundings
from osd.cli.options import DrafterOption, DraftNameOption, DraftOption, TargetOption
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
from storage.settings import Settings, load_settings

if TYPE_CHECKING:
    from osd.server.upstream.replica import UpstreamReplica

LISTENING = "Listening"
HostOption = Annotated[
    str | None,
    typer.Option(
        help="Address. Default: server.host, this machine only.", metavar="ADDRESS", rich_help_panel=LISTENING
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        help="0 takes a free one. Default: server.port.", metavar="N", min=0, max=65535, rich_help_panel=LISTENING
    ),
]
AdminPortOption = Annotated[
    int | None,
    typer.Option(
        help="Port of the admin routes. Default: server.admin_port.", metavar="N", min=0, max=65535,
        rich_help_panel=LISTENING,
    ),
]  # fmt: skip


def serve(
    ctx: typer.Context,
    host: HostOption = None,
    port: PortOption = None,
    admin_port: AdminPortOption = None,
    no_keys: Annotated[
        bool, typer.Option("--no-keys", help="Let everybody in who reaches the address.", rich_help_panel=LISTENING)
    ] = False,
    target: TargetOption = None,
    draft: DraftOption = None,
    drafter: DrafterOption = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            help="Processes behind the port, each with an engine of its own. Default: fleet.processes.",
            metavar="N",
            min=1,
            max=256,
            rich_help_panel=LISTENING,
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", hidden=True, min=1, max=256)] = None,
    model_name: Annotated[
        str | None,
        typer.Option(
            help="The name that clients ask for. Default: server.model, else the target's folder.", metavar="NAME"
        ),
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            help="Pass requests on to a server that decodes (vLLM, osd, …) instead of decoding here: URL, DRAFT=URL "
            "for one with another draft than the default one, or `engines` for those of `osd engines`. Repeat it for "
            "several. Default: upstream.replicas.",
            metavar="[DRAFT=]URL",
            rich_help_panel="Replicas",
        ),
    ] = None,
    draft_name: DraftNameOption = None,
    learn: Annotated[
        bool | None, typer.Option("--learn/--no-learn", help="Whether requests may be kept. Default: server.learn.")
    ] = None,
) -> None:
    """Serve the pair, or replicas that serve it, over HTTP as OpenAI's API, until SIGTERM or Ctrl-C.

    POST /v1/chat/completions and /v1/completions, GET /v1/models, /metrics and more: docs/server.md. Requests that run
    when it is told to stop are finished first; a second Ctrl-C does not wait. Without API keys (`osd keys create`) it
    listens on this machine only. With several processes, one that dies is started anew.

    With --upstream this is the front of replicas that hold different drafts of one target, such as vLLM servers: keys,
    tenants, limits, routes and the dashboard are as over an engine, and no model is loaded here (docs/upstream.md).

    Example: `osd serve --port 8000`

    Example: `osd serve --upstream http://gpu1:8000 --upstream sql=http://gpu2:8000`
    """
    here = surroundings(ctx)
    given = {"host": host, "port": port, "admin_port": admin_port, "model": model_name, "learn": learn}
    changes = {"server": {name: value for name, value in given.items() if value is not None}}
    if workers is not None:
        note("osd: --workers is called --processes now; the next release does not know the old name.")
        processes = processes or workers
    if drafter is not None:
        changes["drafters"] = {"kind": drafter}
    replicas = {"replicas": tuple(upstream)} if upstream else {}
    fleet = {} if processes is None else {"processes": processes}
    if draft_name is not None:
        changes["serve"] = {"draft_name": draft_name}
    settings = load_settings(here.config, **changes, upstream=replicas, fleet=fleet)
    tell_log()
    if settings.upstream.replicas:
        raise typer.Exit(_serve_replicas(here, settings, no_keys=no_keys, pair=(target, draft, drafter)))
    names = choose_pair(settings.serve, target, draft, drafter=settings.drafters.kind)
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
            status = serve_pair(names, leave_a_core(settings), store, ring, place)
        else:
            store.close()
            status = serve_several(names, settings, ring, place)
    raise typer.Exit(status)


def _serve_replicas(
    here: CommandContext, settings: Settings, *, no_keys: bool, pair: tuple[str | None, str | None, str | None]
) -> int:
    """Serve as the front of replicas; return the exit status. Raises BadSetting."""
    if any(pair):
        reason = "with --upstream the replicas decode, with their own pair; leave out --target, --draft and --drafter"
        raise BadSetting(source="option", key="--upstream", reason=reason)
    check_replicas(settings.upstream.replicas)
    serve_one, serve_several = upstream_parts()
    with ExitStack() as stack:
        store = stack.enter_context(here.store())
        ring = key_ring(store, settings, required=not no_keys)
        ports = ports_of(stack, settings, guarded=no_keys or ring.needed)

        def ready(replicas: Sequence[UpstreamReplica] = ()) -> None:
            for replica in replicas:
                trouble = replica.misfit or replica.trouble
                note(trouble or f"{replica.at.url} serves {replica.model}, draft {replica.at.draft}.")
            note(f"Serving {url(ports.api)}/v1, admin routes at {url(ports.admin)}/admin. Ctrl-C stops it.")

        if settings.fleet.processes == 1:
            return serve_one(settings, store, ring, ports, ready)
        store.close()
        return serve_several(settings, ring, ports, ready)
