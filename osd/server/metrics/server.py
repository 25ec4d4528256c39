"""What a server measures of its answers, and one log line for each. Nothing of a prompt is in either."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
        self._latencies = {
            "first": self._latency("time_to_first_token", "From a request to its first token.", SECONDS),
            "each": self._latency(
                "request_time_per_output_token", "Mean time between a request's tokens after the first.", TOKEN_SECONDS
            ),
            "whole": self._latency("e2e_request_latency", "From a request to its last token.", SECONDS),
        }
        self.running = Gauge("osd_requests_running", "Requests in the engine.", registry=self.registry)
        self.waiting = Gauge("osd_requests_waiting", "Requests in line.", registry=self.registry)

    def _latency(self, name: str, help: str, buckets: Sequence[float]) -> Histogram:
        """Make a histogram under vLLM's name and with its labels."""
        labels = ["model_name", "engine"]
        return Histogram(f"vllm:{name}_seconds", help, labels, registry=self.registry, buckets=buckets)

    def timed(self, **seconds: float) -> None:
        """Note how long a request took to its first token (``first``), to its last one (``whole``), and for each token
        between them (``each``)."""
        for name, value in seconds.items():
            self._latencies[name].labels(self._model, 0).observe(value)

    def answered(self, scope: Mapping[str, Any], status: int, ms: float, state: Mapping[str, Any]) -> None:
        """Count an answered request, or one whose client went away before (status 0)."""
        path = getattr(scope.get("route"), "path", UNKNOWN_PATH)  # the pattern, so that labels are few
        self.requests.labels(path, status).inc()
        tenant = caller.tenant if (caller := state.get("caller")) else "-"
        log.info(
            "%s %s %s in %.0f ms", scope["method"], path, status or "gone", ms,
            extra={"action": "answered", "status": status, "tenant": tenant, "request_id": state.get("id")},
        )  # fmt: skip
