"""The HTTP service to which engines hand over their answers."""

from __future__ import annotations

import gzip
import hmac
import logging
import zlib
from collections.abc import Callable
from io import BytesIO

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError

from osd.attached.intake import Intake, UnknownSender
from osd.attached.samples import HarvestBatch
from storage.errors import OsdError

log = logging.getLogger(__name__)


class TooLarge(Exception):
    """A batch is larger than it may be."""


def make_collector(intake: Intake, token: str, most: int) -> FastAPI:
    """Make the service. ``most``: bytes of an unpacked batch at most."""
    app = FastAPI(title="osd attach", docs_url=None, redoc_url=None, openapi_url=None)

    known = Depends(_token_check(token))

    @app.post("/v1/osd/harvest", dependencies=[known])
    async def harvest(http: Request) -> Response:
        """Take a batch. Once it answers 200, the batch is in the store."""
        try:
            batch = HarvestBatch.model_validate_json(unpack(await _body(http, most), most))
        except TooLarge:
            return _say(413, f"a batch may have {most >> 20} MiB, unpacked (attach.max_batch_mb)")
        except (ValidationError, OSError, EOFError, zlib.error) as error:
            return _say(422, f"it is no batch of answers ({str(error).splitlines()[0]})")
        try:
            await run_in_threadpool(intake.take_batch, batch)
        except UnknownSender as error:
            return _say(503, str(error))
        except OsdError as error:
            log.error("a batch was not taken: %s", error, extra={"action": "harvest_failed"})
            return _say(503, str(error))
        return JSONResponse({"batch": batch.batch})

    @app.get("/v1/osd/serving/{engine:path}", dependencies=[known])
    def serving(engine: str) -> dict[str, str | bool | None]:
        """Say which draft an engine drafts with now, for `osd attach --proxy` before it, null while it is not known;
        and whether texts alone are learned from, so that no log-probabilities need be asked for."""
        return {"sha256": intake.serves(engine), "texts_alone": intake.texts_alone}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(intake.counts.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _token_check(token: str) -> Callable[[Request], None]:
    def check(http: Request) -> None:
        given = http.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), token.encode()):
            raise HTTPException(401, "the token is not the one of attach.token")

    return check


async def _body(http: Request, most: int) -> bytes:
    """Read the body, and stop where it is too large."""
    body = b""
    async for piece in http.stream():
        body += piece
        if len(body) > most:
            raise TooLarge
    return body


def unpack(body: bytes, most: int) -> bytes:
    """Unpack gzip up to ``most`` bytes. Raises TooLarge, and what gzip raises for what is none."""
    with gzip.GzipFile(fileobj=BytesIO(body)) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise TooLarge
    return found


def _say(status: int, reason: str) -> Response:
    return JSONResponse({"detail": reason}, status)
