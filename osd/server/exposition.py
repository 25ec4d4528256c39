"""GET /metrics: the store's numbers, the engine's and the server's own.

Behind a shared port any process may be asked. It asks the others for what they have measured and shows each under a
label of its own, ``worker="0"``: sums that lost a process would look to Prometheus like counters that began anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from osd.metrics.engine import EngineCollector
from osd.metrics.server import registry as registry_of
from osd.metrics.store import StoreCollector
from osd.server.service import Service

metrics = APIRouter()


@metrics.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def show_metrics(http: Request) -> Response:
    """For Prometheus: vLLM's four counters of speculative decoding under their names, and osd_* beside them."""
    service: Service = http.app.state.service
    if service.seat is None:
        text = await run_in_threadpool(own_metrics, service)
    else:
        others = await service.seat.measured()
        own = await run_in_threadpool(own_metrics, service)
        text = await run_in_threadpool(together, {service.seat.number: own, **others})
    store = await run_in_threadpool(generate_latest, http.app.state.registry)
    return Response(store + text, media_type=CONTENT_TYPE_LATEST)


def fill(registry: CollectorRegistry, service: Service) -> None:
    """The store's numbers, which are those of all servers, go into the registry of the application; the engine's beside
    the server's own meters."""
    registry.register(StoreCollector(service.store, service.model))
    service.meters.registry.register(EngineCollector(service.engine, service.model))


def own_metrics(service: Service) -> bytes:
    """What this process has measured."""
    service.meters.running.set(service.thread.running)
    service.meters.waiting.set(service.thread.waiting)
    return generate_latest(service.meters.registry)


def together(texts: Mapping[int, bytes]) -> bytes:
    """What several processes have measured, each sample with the number of its process."""
    return generate_latest(registry_of([_Together(texts)]))


class _Together:
    def __init__(self, texts: Mapping[int, bytes]) -> None:
        self._texts = texts

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for number, text in sorted(self._texts.items()):
            for family in text_string_to_metric_families(text.decode()):
                kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    kept.add_sample(sample.name, {**sample.labels, "worker": str(number)}, sample.value)
        return families.values()
