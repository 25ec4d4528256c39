"""One chain of spans from a request to the version that was trained on it, linked by the ids that are stored anyway."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from osd.engine.engine import Engine
from osd.recording.recorder import Recorder
from osd.recording.tracing import Tracing, context_of, make_tracing
from storage.errors import BadSetting
from storage.records import Request, RunState
from storage.settings import Settings, TraceSettings, load_settings
from storage.store import Store, open_store
from tests.support.models import prompts, random_pair
from tests.trainer.conftest import Traffic
from trainer.worker.schedule import TrainingSchedule

sdk = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every span that osd makes in this process."""
    spans = sdk.InMemorySpanExporter()
    monkeypatch.setattr(
        "osd.recording.recorder.make_tracing", lambda _, *names: Tracing(names[0], spans, 1.0, names[1])
    )
    monkeypatch.setattr("trainer.worker.schedule.make_tracing", lambda _, service: Tracing(service, spans))
    return spans


def ids(context: Any) -> tuple[int, int]:
    return context.trace_id, context.span_id


def test_from_request_to_version_and_on(
    exporter: Any, drafted: Store, settings: Settings, traffic: Traffic, never: threading.Event, tmp_path: Path
) -> None:
    sent = traffic(12)
    (run,) = TrainingSchedule(drafted, settings, never).take_turn()
    assert run.state is RunState.PUBLISHED and run.version
    spans = {span.name: span for span in exporter.get_finished_spans()}
    trained, version = spans["osd.training_run"], spans["osd.version"]
    assert trained.attributes["osd.run_id"] == run.id and version.attributes["osd.version"] == run.version
    assert {link.attributes["osd.request_id"] for link in trained.links} == set(run.request_ids)
    assert [ids(link.context) for link in trained.links] == [ids(context_of("request", i)) for i in run.request_ids]
    assert [ids(link.context) for link in version.links] == [ids(trained.context)]
    assert {s.request_id for s in sent} >= set(run.request_ids)


def test_a_request_its_samples_and_the_versions_that_drafted(exporter: Any, tmp_path: Path) -> None:
    settings = load_settings(
        storage={"directory": tmp_path, "holdout": 0.0},
        serve={"max_batch": 2, "max_length": 96},
        server={"model": "small"},
    )
    request = Request(prompts(1)[0], max_new_tokens=9, text="what nobody else should read", operation="chat")
    with open_store(settings) as store:
        recorder = Recorder(store, settings, "test")
        (done,) = Engine(random_pair("llama"), settings, recorder=recorder).run([request])
        recorder.close()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    asked, sample = spans["osd.request"], spans["osd.sample"]
    assert ids(asked.context) == ids(context_of("request", request.id)) and asked.parent is None
    assert ids(sample.parent) == ids(asked.context) and sample.context.trace_id == asked.context.trace_id
    (by,) = {each.draft_version for each in done.rounds}
    assert [ids(link.context) for link in asked.links] == [ids(context_of("version", by))]
    told = {name: value for name, value in asked.attributes.items() if name.startswith("gen_ai.")}
    first = told.pop("gen_ai.response.time_to_first_chunk")
    assert 0 < first == told.pop("gen_ai.latency.time_to_first_token") < told.pop("gen_ai.latency.e2e") == done.seconds
    assert told == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "osd", "gen_ai.request.model": "small",
        "gen_ai.response.model": "small", "gen_ai.request.max_tokens": 9, "gen_ai.request.temperature": 0.0,
        "gen_ai.response.id": request.id, "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": len(request.prompt_tokens), "gen_ai.usage.output_tokens": 9,
    }  # fmt: skip
    assert asked.end_time >= asked.start_time and sample.attributes["osd.positions"] == 9
    assert "nobody else" not in " ".join(span.to_json() for span in spans.values())


class Receiver:
    """An OTLP/HTTP endpoint in this process."""

    def __init__(self) -> None:
        bodies = self.bodies = []  # type: list[bytes]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                bodies.append(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1/traces"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    it = Receiver()
    yield it
    it.server.shutdown()
    it.server.server_close()


def test_spans_arrive_over_http(receiver: Receiver, tmp_path: Path) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    settings = load_settings(storage={"directory": tmp_path}, trace={"endpoint": receiver.url})
    request = Request(prompts(1)[0], max_new_tokens=5)
    with open_store(settings) as store:
        recorder = Recorder(store, settings, "test")
        list(Engine(random_pair("llama"), settings, recorder=recorder).run([request]))
        recorder.close()
    found = [
        (each.resource.attributes, span)
        for body in receiver.bodies
        for each in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in each.scope_spans
        for span in scope.spans
    ]
    assert sorted(span.name for _, span in found) == ["osd.request", "osd.sample"]
    assert {span.trace_id for _, span in found} == {context_of("request", request.id).trace_id.to_bytes(16, "big")}


def test_an_endpoint_that_is_away_stops_nothing(tmp_path: Path) -> None:
    settings = load_settings(storage={"directory": tmp_path}, trace={"endpoint": "http://127.0.0.1:1/v1/traces"})
    with open_store(settings) as store:
        recorder = Recorder(store, settings, "test")
        done = list(Engine(random_pair("llama"), settings, recorder=recorder).run([Request(prompts(1)[0], 5)]))
        recorder.close()
        assert len(done) == len(store.samples.recent(limit=9)) == 1


def test_off_means_that_nothing_is_loaded_and_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_tracing(TraceSettings(), "osd-server") is None
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(BadSetting, match=r"pip install '\.\[otel\]'"):
        make_tracing(TraceSettings(endpoint="http://127.0.0.1:4318/v1/traces"), "osd-server")


def test_a_share_of_requests_is_chosen_by_their_ids() -> None:
    spans = sdk.InMemorySpanExporter()
    tracing = Tracing("osd-server", spans, 0.3)
    chosen = [tracing._chosen(f"request {n}") for n in range(2000)]
    assert 500 < sum(chosen) < 700 and chosen == [tracing._chosen(f"request {n}") for n in range(2000)]
    tracing.close()
