"""`osd attach`: attends to the attached engines."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import typer

from osd.cli.context import surroundings
from osd.cli.engines import connect
from osd.cli.out import note
from osd.server.process.listen import listen, url
from osd.server.start import tell_log
from storage.errors import BadSetting
from storage.settings import AttachSettings


def attach(ctx: typer.Context) -> None:
    """Take what attached engines answer into the store, and publish newer drafts to them, until Ctrl-C.

    Engines are added with `osd engines add`, also while it runs; `osd worker` trains beside it. An engine that was
    started again gets the current version anew. When this stops, engines serve on with what they have, and keep
    their answers for it as far as OSD_VLLM_SPOOL allows.
    """
    import uvicorn

    from osd.engines.attach import Attachment
    from osd.engines.collector import make_collector
    from osd.engines.intake import Intake
    from storage.files.secrets import read_secret

    here = surroundings(ctx)
    settings, mine = here.settings, here.settings.attach
    require_private(mine)
    token = read_secret(mine.token, "attach.token", "the token that vLLM was started with").strip()
    tell_log()
    with ExitStack() as stack:
        store = stack.enter_context(here.store())
        bound = stack.enter_context(listen(mine.host, mine.port, "attach.port"))
        attachment = Attachment(store, settings, partial(connect, settings))
        stack.callback(attachment.close)
        attachment.begin()
        app = make_collector(Intake(store, settings, attachment.replicas), token, mine.max_batch_mb << 20)
        files = {"ssl_certfile": mine.certificate, "ssl_keyfile": mine.private_key} if mine.certificate else {}
        note(f"Taking answers at {url(bound)}, from {len(store.engines.list())} engines. Ctrl-C stops it.")
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", **files))  # type: ignore[arg-type]
        server.run(sockets=[bound])


def require_private(settings: AttachSettings) -> None:
    """Raise BadSetting for an address on which prompts would cross a network in the clear."""
    from osd.server.process.listen import is_local

    if not is_local(settings.host) and settings.certificate is None:
        reason = (
            f"{settings.host} can be reached from other machines, and answers hold prompts; give attach.certificate too"
        )
        raise BadSetting(source="attach", key="attach.host", reason=reason)
