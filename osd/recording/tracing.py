"""OpenTelemetry traces, off unless ``trace.endpoint`` is set: request → sample → training run → version → request.

    osd.request        a finished request; linked to the versions that drafted for it
      osd.sample       its samples came into the store
    osd.training_run   linked to the requests that it claimed
    osd.version        what the run published; linked to the run

No context passes from process to process: a span's ids follow from the id that is stored anyway (of the request, the
run, the version), so any process that knows that id can link to its span. Spans are made when all is over, on the
recorder's thread and in the trainer; decoding makes none. They carry ids, names and counts, and no text. A request has
OpenTelemetry's GenAI attributes beside osd's own, and vLLM's of latencies.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from storage.distribution import install_extra
from storage.errors import BadSetting
from storage.records import RequestSamples, TrainingRun, now
from storage.settings import TraceSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link, SpanContext

    from osd.sequence import Completion

LINKS = 128
"""Most links of a span: OpenTelemetry's own limit."""
SECONDS = 5
"""Timeout for an endpoint that does not answer."""


class Tracing:
    """Makes and sends spans. Thread-safe."""

    def __init__(self, service: str, exporter: SpanExporter, share: float = 1.0, model: str = "") -> None:
        """Set up the exporter. ``share`` of requests, chosen by their ids, are traced; runs and versions all are.
        ``model``: the name under which the target is served."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._ids, self._share, self._model = _given_ids(), share, model
        resource = Resource.create({"service.name": service})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("osd")
        self._lock = threading.Lock()

    def request(self, done: Completion) -> None:
        """Trace a finished request."""
        if not self._chosen(done.request.id):
            return
        versions = sorted({each.draft_version for each in done.rounds})
        facts = {
            "osd.request_id": done.request.id, "osd.route": done.route, "osd.finish_reason": done.finish_reason,
            "osd.tokens": len(done.tokens), "osd.rounds": len(done.rounds), "osd.draft_versions": versions,
        }  # fmt: skip
        links = _links("version", versions)
        end = now()
        facts |= gen_ai_attributes(done, self._model)
        self._span("osd.request", ("request", done.request.id), end - done.seconds, end, facts, links)

    def samples(self, batch: Iterable[RequestSamples], segment: str | None) -> None:
        """Trace requests whose samples are in the store."""
        for each in batch:
            if self._chosen(each.request_id):
                facts = {"osd.request_id": each.request_id, "osd.positions": len(each), "osd.segment": segment or ""}
                at, under = now(), context_of("request", each.request_id)
                self._span("osd.sample", ("sample", each.request_id), at, at, facts, under=under)

    def run(self, run: TrainingRun) -> None:
        """Trace a training run that ended, and the version that it published."""
        end = run.finished_at or now()
        facts: dict[str, Any] = {
            "osd.run_id": run.id, "osd.draft": run.draft, "osd.state": run.state.value, "osd.parent": run.parent,
            "osd.requests": len(run.request_ids), "osd.version": run.version or "",
        }  # fmt: skip
        links = _links("request", [each for each in run.request_ids if self._chosen(each)])
        self._span("osd.training_run", ("run", run.id), run.started_at, end, facts, links)
        if run.version:
            evidence = run.result.get("evidence", {})
            facts = {"osd.version": run.version, "osd.run_id": run.id, "osd.state": run.state.value}
            facts |= {f"osd.gate.{name}": float(evidence[name]) for name in ("before", "after") if evidence.get(name)}
            self._span("osd.version", ("version", run.version), end, end, facts, _links("run", [run.id]))
        self._provider.force_flush(1000 * SECONDS)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _chosen(self, request_id: str) -> bool:
        return _trace_id("request", request_id) % 2**32 < self._share * 2**32

    def _span(
        self,
        name: str,
        of: tuple[str, str],
        begin: float,
        end: float,
        facts: Mapping[str, Any],
        links: Sequence[Link] = (),
        under: SpanContext | None = None,
    ) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, set_span_in_context

        context = Context() if under is None else set_span_in_context(NonRecordingSpan(under), Context())
        with self._lock:
            self._ids.trace, self._ids.span = _trace_id(*of), _span_id(*of)
            span = self._tracer.start_span(name, context, attributes=facts, links=links, start_time=int(1e9 * begin))
        span.end(int(1e9 * max(begin, end)))


def gen_ai_attributes(done: Completion, model: str) -> dict[str, Any]:
    """Return a finished request's attributes by OpenTelemetry's conventions for generative AI; times in seconds."""
    asked, first = done.request, done.first_seconds
    found = {
        "gen_ai.operation.name": asked.operation, "gen_ai.provider.name": "osd",
        "gen_ai.request.model": model, "gen_ai.response.model": model,
        "gen_ai.request.max_tokens": asked.max_new_tokens, "gen_ai.request.temperature": asked.sampling.temperature,
        "gen_ai.request.top_p": asked.sampling.top_p, "gen_ai.request.top_k": asked.sampling.top_k,
        "gen_ai.response.id": asked.id, "gen_ai.response.finish_reasons": [done.finish_reason],
        "gen_ai.usage.input_tokens": len(done.prompt), "gen_ai.usage.output_tokens": len(done.tokens),
        "gen_ai.response.time_to_first_chunk": first, "gen_ai.latency.time_to_first_token": first,
        "gen_ai.latency.e2e": done.seconds,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def make_tracing(settings: TraceSettings, service: str, model: str = "") -> Tracing | None:
    """Return the tracing that ``[trace]`` asks for, or None. Raises BadSetting where the library is not installed."""
    if settings.endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        reason = f"traces need OpenTelemetry, {install_extra('otel')}"
        raise BadSetting(source="settings", key="trace.endpoint", reason=reason) from None
    return Tracing(service, OTLPSpanExporter(settings.endpoint, timeout=SECONDS), settings.share, model)


def context_of(kind: str, name: str) -> SpanContext:
    """Return the context of the span of a request, run or version, known by its id alone."""
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(_trace_id(kind, name), _span_id(kind, name), is_remote=True, trace_flags=TraceFlags(1))


def _links(kind: str, names: Sequence[str]) -> list[Link]:
    from opentelemetry.trace import Link

    key = {"request": "osd.request_id", "run": "osd.run_id", "version": "osd.version"}[kind]
    return [Link(context_of(kind, name), {key: name}) for name in names[:LINKS]]


def _trace_id(kind: str, name: str) -> int:
    """Return the trace's id: 128 bits, not 0."""
    return int.from_bytes(hashlib.sha256(f"osd trace {kind} {name}".encode()).digest()[:16], "big") or 1


def _span_id(kind: str, name: str) -> int:
    """Return the span's id: 64 bits, not 0."""
    return int.from_bytes(hashlib.sha256(f"osd span {kind} {name}".encode()).digest()[:8], "big") or 1


def _given_ids() -> Any:
    """Return an id generator whose ids are set from outside, just before each span begins."""
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Given(IdGenerator):
        trace = span = 1

        def generate_trace_id(self) -> int:
            return self.trace

        def generate_span_id(self) -> int:
            return self.span

    return Given()
