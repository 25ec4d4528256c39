"""GET /metrics: the store's numbers, the engine's or the replicas', and the server's own.

Two processes of a server measure, the one that decodes and the one that answers HTTP; what both count is summed. Behind
a shared port there are several servers, and any may be scraped. It asks the others for their numbers and shows
each under a label of its own, ``worker="0"``: to Prometheus, sums that lost a process would look like counter resets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.responses import Response

from osd.server.admin_host import AdminHost
from osd.server.metrics.server import registry as registry_of
from osd.server.metrics.store import StoreCollector

metrics = APIRouter()
Ask = Callable[[], Awaitable[bytes | None]]


@metrics.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def show_metrics(http: Request) -> Response:
    """Return Prometheus metrics: vLLM's four counters of speculative decoding under their names, and osd_* beside
    them."""
    text: bytes = await http.app.state.service.measure()
    return Response(text, media_type=CONTENT_TYPE_LATEST)


class Exposition:
    """The metrics of a server, in the process that answers the admin port."""

    def __init__(self, host: AdminHost, own: Collector, beside: Ask | None = None) -> None:
        """Expose a host's metrics; ``own`` has those of what serves in this process, ``beside`` asks the process that
        answers HTTP, if that is another one, for its own."""
        self._host, self._beside = host, beside
        self._store = CollectorRegistry()
        self._store.register(StoreCollector(host.store, host.model))
        host.meters.registry.register(own)

    async def own(self, front: bytes | None = None) -> bytes:
        """Return both processes' metrics; HTTP's (``front``) are requested unless given."""
        if front is None and self._beside:
            front = await self._beside()
        mine = await asyncio.to_thread(self._mine)
        return mine if front is None else await asyncio.to_thread(added, [mine, front])

    async def whole(self, front: bytes | None = None) -> bytes:
        """Return both processes' metrics with what the store counts, and those of the other servers behind the port."""
        own, peers = await self.own(front), self._host.peers
        if peers is not None:
            others = await peers.metrics()
            own = await asyncio.to_thread(labelled, {peers.number: own, **others})
        return await asyncio.to_thread(generate_latest, self._store) + own

    def _mine(self) -> bytes:
        host = self._host
        host.meters.running.set(host.thread.running)
        host.meters.waiting.set(host.thread.waiting)
        return generate_latest(host.meters.registry)


def labelled(texts: Mapping[int, bytes]) -> bytes:
    """Merge the metrics of several servers, each sample labelled with the number of its server."""
    return generate_latest(registry_of([_Together([(text, {"worker": str(n)}) for n, text in sorted(texts.items())])]))


def added(texts: Sequence[bytes]) -> bytes:
    """Sum the metrics of one server's processes, over counters and gauges of the same name and labels."""
    return generate_latest(registry_of([_Together([(text, {}) for text in texts])]))


class _Together:
    def __init__(self, texts: Sequence[tuple[bytes, Mapping[str, str]]]) -> None:
        """Parse expositions, each with the labels to add to its samples."""
        self._texts = texts

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        sums: dict[str, dict[tuple[str, frozenset[tuple[str, str]]], Sample]] = {}
        for text, more in self._texts:
            for family in text_string_to_metric_families(text.decode()):
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                known = sums.setdefault(family.name, {})
                for sample in family.samples:
                    key = sample.name, frozenset(sample.labels.items() | more.items())
                    one = Sample(sample.name, {**sample.labels, **more}, sample.value)
                    known[key] = _sum(known[key], one) if key in known else one
        for name, family in families.items():
            family.samples = list(sums[name].values())
        return families.values()


def _sum(one: Sample, other: Sample) -> Sample:
    """Add two samples; a counter was created when the earlier of them was."""
    began = one.name.endswith("_created")
    return one._replace(value=min(one.value, other.value) if began else one.value + other.value)
