"""`osd serve`: the engine behind OpenAI's HTTP API."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Annotated

import typer

from osd.cli.context import surroundings
from osd.cli.options import DrafterOption, DraftOption, TargetOption
from osd.cli.out import note
from osd.server.process.listen import url
from osd.server.start import choose_pair, key_ring, leave_a_core, ports_of, serve_pair, serve_workers, tell_log
from storage.settings import load_settings

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
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes behind the port, each with an engine of its own. Default: fleet.workers.",
            metavar="N",
            min=1,
            max=256,
            rich_help_panel=LISTENING,
        ),
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option(
            help="The name that clients ask for. Default: server.model, else the target's folder.", metavar="NAME"
        ),
    ] = None,
    learn: Annotated[
        bool | None, typer.Option("--learn/--no-learn", help="Whether requests may be kept. Default: server.learn.")
    ] = None,
) -> None:
    """Serve the pair over HTTP as OpenAI's API, until SIGTERM or Ctrl-C.

    POST /v1/chat/completions and /v1/completions, GET /v1/models, /metrics and more: docs/server.md. Requests that run
    when it is told to stop are finished first; a second Ctrl-C does not wait. Without API keys (`osd keys create`) it
    listens on this machine only. With several processes, one that dies is started anew.

    Example: `osd serve --port 8000`
    """
    here = surroundings(ctx)
    given = {"host": host, "port": port, "admin_port": admin_port, "model": model_name, "learn": learn}
    changes = {"server": {name: value for name, value in given.items() if value is not None}}
    if drafter is not None:
        changes["drafters"] = {"kind": drafter}
    settings = load_settings(here.config, **changes, fleet={} if workers is None else {"workers": workers})
    tell_log()
    names = choose_pair(settings.serve, target, draft, drafter=settings.drafters.kind)
    if names.shipped:
        note("No pair is named; serving with the small one that ships with osd.")
    with ExitStack() as stack:
        store = stack.enter_context(here.store())
        ring = key_ring(store, settings, required=not no_keys)
        ports = ports_of(stack, settings, guarded=no_keys or ring.needed)
        where = f"{url(ports.api)}/v1, admin routes at {url(ports.admin)}/admin"
        ready = partial(note, f"Serving {where}. Ctrl-C stops it.")
        if settings.fleet.workers == 1:
            status = serve_pair(names, leave_a_core(settings), store, ring, ports, ready)
        else:
            store.close()
            status = serve_workers(names, settings, ring, ports, ready)
    raise typer.Exit(status)


def tell_log() -> None:
    """Our own sentences on stderr, and what others warn of."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("osd").setLevel(logging.INFO)


def leave_a_core(settings: Settings, processes: int = 1) -> Settings:
    """One core for HTTP and recording, the others shared out among the processes, where nobody has said how many torch
    threads each may have: threads that wait for one that has no core are slower than one thread less."""
    if settings.serve.threads or "OMP_NUM_THREADS" in os.environ:
        return settings
    threads = max(1, (usable_cores() - 1) // processes)
    return settings.changed(serve={"threads": threads})


def serve_pair(
    names: PairNames, settings: Settings, store: Store, ring: KeyRing, ports: Ports, ready: Callable[[], None],
    **options: Any,
) -> int:  # fmt: skip
    """Load the pair and serve it here, HTTP in another process; the exit status. ``options``:
    osd.server.process.run.serve."""
    run, fork = server_parts()
    store.db.close()  # what is open must not be carried through a fork; the next question opens it anew
    front = fork(names.target, settings, lambda: again(settings, ring), ports.api, options.get("seat"))
    pair = names.load(settings.serve)
    from osd.engine.session import serving

    with serving(pair, settings, store) as engine:
        return run(engine, settings, store, ring, front, ports, ready, **options)


def server_parts() -> tuple[Callable[..., int], Callable[..., Front]]:
    """What serves, and what starts the process that answers HTTP. Raises BadSetting where they are not installed."""
    try:
        from osd.server.process.front import fork
        from osd.server.process.run import serve
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed; `pip install 'osd[serve]'` brings it"
        raise BadSetting(source="command", key="osd serve", reason=reason) from None
    return serve, fork


def key_ring(store: Store, settings: Settings, *, required: bool) -> KeyRing:
    """The store's keys. Raises StoreError."""
    from osd.server.http.ring import KeyRing

    local = is_local(settings.server.host) and is_local(settings.server.admin_host)
    return KeyRing(store.keys, settings.server.keys_poll_seconds, required=required, local_only=local and required)


def again(settings: Settings, ring: KeyRing) -> KeyRing:
    """The same keys over a connection of its own. Raises StoreError."""
    from storage.store import open_store

    return key_ring(open_store(settings), settings, required=ring.required)


def ports_of(stack: ExitStack, settings: Settings, *, guarded: bool) -> Ports:
    """Both sockets, closed with the stack. Raises BadSetting."""
    server = settings.server
    check_address(server.host, "server.host", guarded=guarded)
    check_address(server.admin_host, "server.admin_host", guarded=guarded)
    api = stack.enter_context(listen(server.host, server.port, "server.port"))
    return Ports(api, stack.enter_context(listen(server.admin_host, server.admin_port, "server.admin_port")))
