"""The text of GET /metrics: registries, an exporter of its own port, and the texts of several processes as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from storage.errors import BadSetting


def registry(collectors: Sequence[Collector]) -> CollectorRegistry:
    """Create a registry of these collectors and nothing else."""
    made = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        made.register(collector)
    return made


@contextmanager
def exporting(collectors: Sequence[Collector], host: str, port: int) -> Iterator[int]:
    """Serve until the context ends; yield the port (``port`` 0 takes a free one). Raises BadSetting."""
    try:
        server, thread = start_http_server(port, host, registry(collectors))
    except (OSError, OverflowError) as error:
        reason = f"cannot listen on {host}:{port} ({error}); give another --port or --host"
        raise BadSetting(source="option", key="--port", reason=reason) from error
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def labelled(texts: Mapping[int, bytes]) -> bytes:
    """Merge the metrics of several servers, each sample labelled with the number of its server: to Prometheus, sums
    that lost a process would look like counter resets."""
    return _merged([(text, {"worker": str(number)}) for number, text in sorted(texts.items())])


def added(texts: Sequence[bytes]) -> bytes:
    """Sum the metrics of one server's processes, over counters and gauges of the same name and labels."""
    return _merged([(text, {}) for text in texts])


def _merged(texts: Sequence[tuple[bytes, Mapping[str, str]]]) -> bytes:
    return generate_latest(registry([_ParsedTexts(texts)]))


class _ParsedTexts:
    """A collector of texts that were exposed, each with the labels to add to its samples."""

    def __init__(self, texts: Sequence[tuple[bytes, Mapping[str, str]]]) -> None:
        self._texts = texts

    def collect(self) -> Iterable[Metric]:
        """Return the families of all texts, samples of the same name and labels summed."""
        families: dict[str, Metric] = {}
        values: dict[str, dict[tuple[str, frozenset[tuple[str, str]]], float]] = {}
        for text, labels in self._texts:
            for family in text_string_to_metric_families(text.decode()):
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                known = values.setdefault(family.name, {})
                for sample in family.samples:
                    key = sample.name, frozenset({**sample.labels, **labels}.items())
                    known[key] = _sum(sample.name, known[key], sample.value) if key in known else sample.value
        for family in families.values():
            for (name, pairs), value in values[family.name].items():
                family.add_sample(name, dict(pairs), value)
        return families.values()


def _sum(name: str, one: float, other: float) -> float:
    """Add two values; a counter was created when the earlier of them was."""
    return min(one, other) if name.endswith("_created") else one + other
