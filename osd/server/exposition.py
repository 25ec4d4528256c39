"""GET /metrics: the store's numbers, the engine's and the server's own."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from osd.metrics.engine import EngineCollector
from osd.metrics.store import StoreCollector
from osd.server.service import Service

metrics = APIRouter()


@metrics.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def show_metrics(http: Request) -> Response:
    """For Prometheus: vLLM's four counters of speculative decoding under their names, and osd_* beside them."""
    service: Service = http.app.state.service
    service.meters.running.set(service.thread.running)
    service.meters.waiting.set(service.thread.waiting)
    text = await run_in_threadpool(generate_latest, http.app.state.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def fill(registry: CollectorRegistry, service: Service) -> None:
    """Put the store's and the engine's collectors beside the server's own meters."""
    registry.register(StoreCollector(service.store, service.model))
    registry.register(EngineCollector(service.engine, service.model))
