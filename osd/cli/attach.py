"""`osd attach`: attends to the attached engines, or stands before one of them."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from osd.cli.context import CommandContext
from osd.cli.options import Port
from osd.cli.out import note
from osd.server.process.listen import listen, url
from osd.server.start import tell_log
from storage.distribution import needing
from storage.errors import BadInput, BadSetting, CannotServeRagged
from storage.settings import AttachSettings, Settings

if TYPE_CHECKING:
    from osd.attached.passes import Scorer


@dataclass(frozen=True)
class ProxyOptions:
    """The proxy before a vLLM."""

    proxy: Annotated[str, typer.Option(metavar="URL")] | None = None
    """Stand before the vLLM at this URL, which has no plugin, instead."""
    port: Port = 8003
    """Where the proxy listens; 0 takes a free one."""
    host: Annotated[str, typer.Option(metavar="ADDRESS")] = "127.0.0.1"
    """Its address. 0.0.0.0 lets other machines in, as vLLM itself would."""


def attach(here: CommandContext, options: ProxyOptions) -> None:
    """Take what attached engines answer into the store, and publish newer drafts to them, until Ctrl-C.

    Engines are added with `osd engines add`, also while it runs; `osd trainer` trains beside it. An engine that was
    started again gets the current version anew. The dashboard is at attach.admin_port. When this stops, engines serve
    on with what they have, and keep their answers for it as far as OSD_VLLM_SPOOL allows.

    With --proxy it is the way to a vLLM without osd's plugin: clients ask the proxy, vLLM answers, and what it answered
    goes to the `osd attach` that runs beside. It is told the plugin's variables (OSD_VLLM_…, docs/vllm.md).

    Example: `osd attach --proxy http://127.0.0.1:8000 --port 8003`
    """
    settings = here.settings
    if options.proxy is not None:
        stand_before(settings, options.proxy, options.host, options.port)
        return
    from osd.attached.attach import Attachment, connect
    from osd.attached.intake import Intake
    from storage.files.cipher import read_secret

    with needing("serve", "osd attach"):
        import uvicorn

        from osd.attached.collector import make_collector
        from osd.server.upstream.attached import dashboard

    mine = settings.attach
    require_private(mine)
    token = read_secret(mine.token, "attach.token", "the token that vLLM was started with").strip()
    tell_log()
    with ExitStack() as stack:
        store = stack.enter_context(here.store())
        bound = stack.enter_context(listen(mine.host, mine.port, "attach.port"))
        page = stack.enter_context(dashboard(store, settings))
        attachment = stack.enter_context(closing(Attachment(store, settings, connect)))
        attachment.start()
        intake = stack.enter_context(closing(Intake(store, settings, attachment.followers, scorer=_scorer(settings))))
        app = make_collector(intake, token, mine.max_batch_mb << 20)
        files = {"ssl_certfile": mine.certificate, "ssl_keyfile": mine.private_key} if mine.certificate else {}
        shown = f" Dashboard: {page}/dashboard." if page else ""
        note(f"Taking answers at {url(bound)}, from {len(store.engines.list())} engines.{shown} Ctrl-C stops it.")
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", **files))  # type: ignore[arg-type]
        server.run(sockets=[bound])


def _scorer(settings: Settings) -> Scorer | None:
    """Load the target that reads answers which come without distributions; None where the settings name none, or
    texts are enough. Raises ModelNotLoaded, BadSetting."""
    if settings.attach.target is None or settings.learn.teacher != "recorded":
        return None
    from osd.attached.passes import PlainScorer, Scorer
    from osd.models.features.target import FeatureTarget
    from osd.models.model_digest import model_digest
    from osd.models.pair import choose_device, load_model, load_reader

    name, bounds = settings.attach.target, (settings.storage.top_k, settings.serve.max_length)
    how = name, choose_device(settings.attach.device), settings.serve.dtype
    try:
        return Scorer(load_model(*how), *bounds)
    except CannotServeRagged:
        return PlainScorer(FeatureTarget(load_reader(*how), name, model_digest(name)), *bounds)


def stand_before(settings: Settings, upstream: str, host: str, port: int) -> None:
    """Run the proxy until it is stopped. Raises BadInput, BadSetting."""
    from osd.attached.base import host_and_port

    with needing("serve", "osd attach --proxy"):
        from osd.attached.proxy import HarvestProxy, run
    from osd.attached.vllm.plugin.osd_vllm.options import BadOption, Options

    if urlsplit(upstream).path.strip("/"):
        raise BadInput(reason=f"--proxy {upstream}: give the server's root, as http://HOST:PORT.")
    os.environ.setdefault("OSD_VLLM_ENGINE", host_and_port(upstream))
    os.environ.setdefault("OSD_VLLM_COLLECTOR", f"http://{settings.attach.host}:{settings.attach.port}")
    try:
        options = Options.read()
    except BadOption as error:
        raise BadInput(reason=str(error)) from None
    tell_log()
    with listen(host, port, "--port") as bound:
        note(f"Passing {url(bound)} on to {upstream} as {options.engine}. Ctrl-C stops it.")
        run(HarvestProxy(upstream, options), bound)


def require_private(settings: AttachSettings) -> None:
    """Raise BadSetting for an address on which prompts would cross a network in the clear."""
    from osd.server.process.listen import is_local

    if not is_local(settings.host) and settings.certificate is None:
        reason = (
            f"{settings.host} can be reached from other machines, and answers hold prompts; give attach.certificate too"
        )
        raise BadSetting(source="attach", key="attach.host", reason=reason)
