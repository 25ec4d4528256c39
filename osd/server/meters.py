"""The server's own Prometheus metrics, and one log line a request. Neither contains anything of a prompt."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

log = logging.getLogger(__name__)

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
UNKNOWN_PATH = "other"


def _latency(name: str, help: str, buckets: Sequence[float], registry: CollectorRegistry) -> Histogram:
    """Make a histogram under vLLM's name and with its labels."""
    return Histogram(f"vllm:{name}_seconds", help, ["model_name", "engine"], registry=registry, buckets=buckets)


class Meters:
    """Counters and histograms in one registry."""

    def __init__(self, registry: CollectorRegistry, model: str = "") -> None:
        """``model``: the label of what bears vLLM's names."""
        self.registry, self.model = registry, model
        self.requests = Counter("osd_http_requests", "Answers.", ["path", "status"], registry=registry)
        self.tokens = Counter("osd_api_tokens", "Tokens of finished calls.", ["kind"], registry=registry)
        self._first = _latency("time_to_first_token", "From a request to its first token.", SECONDS, registry)
        self._each = _latency(
            "request_time_per_output_token", "Mean time between a request's tokens after the first.", TOKEN_SECONDS,
            registry,
        )  # fmt: skip
        self._whole = _latency("e2e_request_latency", "From a request to its last token.", SECONDS, registry)
        self.running = Gauge("osd_requests_running", "Requests in the engine.", registry=registry)
        self.waiting = Gauge("osd_requests_waiting", "Requests in line.", registry=registry)

    @property
    def first(self) -> Histogram:
        """Seconds to a request's first token."""
        return self._first.labels(self.model, 0)

    @property
    def each(self) -> Histogram:
        """Seconds a token after that."""
        return self._each.labels(self.model, 0)

    @property
    def whole(self) -> Histogram:
        """Seconds to its last token."""
        return self._whole.labels(self.model, 0)

    def answered(self, scope: Mapping[str, Any], status: int, ms: float, state: Mapping[str, Any]) -> None:
        """Count an answered request, or one whose client went away before (status 0)."""
        path = getattr(scope.get("route"), "path", UNKNOWN_PATH)  # the pattern, so that labels are few
        self.requests.labels(path, status).inc()
        tenant = caller.tenant if (caller := state.get("caller")) else "-"
        log.info(
            "%s %s %s in %.0f ms", scope["method"], path, status or "gone", ms,
            extra={"action": "answered", "status": status, "tenant": tenant, "request_id": state.get("id")},
        )  # fmt: skip
