"""What a server measures of its answers, and one log line for each. Nothing of a prompt is in either."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

log = logging.getLogger(__name__)

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
UNKNOWN_PATH = "other"


class Meters:
    """Counters and histograms in one registry, of which each process of a server has its own."""

    def __init__(self, model: str = "") -> None:
        """``model``: the label of what bears vLLM's names."""
        self.registry, self._model = CollectorRegistry(), model
        self.requests = Counter("osd_http_requests", "Answers.", ["path", "status"], registry=self.registry)
        self.tokens = Counter("osd_api_tokens", "Tokens of finished calls.", ["kind"], registry=self.registry)
        first, whole = "From a request to its first token.", "From a request to its last token."
        each = "Mean time between a request's tokens after the first."
        self._latencies = {
            "first": self._latency(first, SECONDS, "vllm:time_to_first_token", "sglang:time_to_first_token"),
            "each": self._latency(each, TOKEN_SECONDS, "vllm:request_time_per_output_token"),
            "whole": self._latency(whole, SECONDS, "vllm:e2e_request_latency", "sglang:e2e_request_latency"),
        }
        self._running = self._gauges("Requests in the engine.", "osd_requests_running", "sglang:num_running_reqs")
        self._waiting = self._gauges("Requests in line.", "osd_requests_waiting", "sglang:num_queue_reqs")

    def _latency(self, help: str, buckets: Sequence[float], *names: str) -> list[Histogram]:
        """Make a histogram under each of these engines' names, with vLLM's labels."""
        labels = ["model_name", "engine"]
        return [Histogram(f"{name}_seconds", help, labels, registry=self.registry, buckets=buckets) for name in names]

    def _gauges(self, help: str, own: str, sglang: str) -> list[Gauge]:
        """Make a gauge under our name, and one under SGLang's and with its label."""
        named = Gauge(sglang, help, ["model_name"], registry=self.registry).labels(self._model)
        return [Gauge(own, help, registry=self.registry), named]

    def show_load(self, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Ask these, at each scrape, how many requests are in the engine and in line."""
        for gauge in self._running:
            gauge.set_function(running)
        for gauge in self._waiting:
            gauge.set_function(waiting)

    def timed(self, **seconds: float) -> None:
        """Note how long a request took to its first token (``first``), to its last one (``whole``), and for each token
        between them (``each``)."""
        for name, value in seconds.items():
            for histogram in self._latencies[name]:
                histogram.labels(self._model, 0).observe(value)

    def answered(self, scope: Mapping[str, Any], status: int, ms: float, state: Mapping[str, Any]) -> None:
        """Count an answered request, or one whose client went away before (status 0)."""
        path = getattr(scope.get("route"), "path", UNKNOWN_PATH)  # the pattern, so that labels are few
        self.requests.labels(path, status).inc()
        tenant = caller.tenant if (caller := state.get("caller")) else "-"
        log.info(
            "%s %s %s in %.0f ms", scope["method"], path, status or "gone", ms,
            extra={"action": "answered", "status": status, "tenant": tenant, "request_id": state.get("id")},
        )  # fmt: skip
