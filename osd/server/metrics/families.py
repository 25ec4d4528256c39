"""Names, labels and descriptions of all metrics; the dashboard and the alert rules are checked against them.

Labels are bounded: routes beyond a limit share ``other``, drafts and attached engines are few, states and positions are
known. Tenants, requests and versions are never labels: they would leak, or grow for ever. The first four are vLLM's
own, verbatim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

Family = CounterMetricFamily | GaugeMetricFamily
ROUTED = ("route", "draft")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. A counter's samples have ``_total`` added to its name."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    counter: bool = True

    @property
    def shown(self) -> str:
        """The name of its samples."""
        return f"{self.name}_total" if self.counter else self.name


class MetricGroup(list[Metric]):
    """The metrics of one collector, in the order in which they are shown."""

    def counter(self, name: str, help: str, *labels: str) -> Metric:
        """Add a counter."""
        self.append(Metric(name, help, labels))
        return self[-1]

    def gauge(self, name: str, help: str, *labels: str) -> Metric:
        """Add a gauge."""
        self.append(Metric(name, help, labels, counter=False))
        return self[-1]


class FamilySet:
    """The families of one scrape, each once, in the order of the group."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._families: dict[str, Family] = {}
        for metric in metrics:
            made = CounterMetricFamily if metric.counter else GaugeMetricFamily
            self._families[metric.name] = made(metric.name, metric.help, labels=metric.labels)

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())

    def add(self, metric: Metric, value: float, *labels: object) -> None:
        """Add a sample."""
        self._families[metric.name].add_metric([str(label) for label in labels], float(value))


class GroupCollector(Collector):
    """A collector of a group's metrics. A scrape changes nothing."""

    group: MetricGroup

    def describe(self) -> Iterable[Family]:
        """Return the families without samples, so that registering asks nobody."""
        return FamilySet(self.group)

    def collect(self) -> Iterable[Family]:
        """Return all families."""
        families = FamilySet(self.group)
        self.fill(families)
        return families

    def fill(self, families: FamilySet) -> None:
        """Add the samples."""
        raise NotImplementedError


STORE, ENGINE, UPSTREAM = MetricGroup(), MetricGroup(), MetricGroup()
"""The metrics of the store, of an engine, and of a proxy's replicas."""

counter, gauge = STORE.counter, STORE.gauge

DRAFTS = counter("vllm:spec_decode_num_drafts", "Number of spec decoding drafts.", "model_name", "engine")
DRAFT_TOKENS = counter("vllm:spec_decode_num_draft_tokens", "Number of draft tokens.", "model_name", "engine")
ACCEPTED_TOKENS = counter("vllm:spec_decode_num_accepted_tokens", "Number of accepted tokens.", "model_name", "engine")
ACCEPTED_PER_POS = counter(
    "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens per draft position.",
    "model_name", "engine", "position",
)  # fmt: skip

SUMS: dict[str, Metric] = {
    "requests": counter("osd_requests", "Finished requests.", *ROUTED),
    "rounds": counter("osd_rounds", "Rounds of drafting and verifying, those without a draft included.", *ROUTED),
    "drafted": counter("osd_drafted_tokens", "Drafted tokens.", *ROUTED),
    "accepted": counter("osd_accepted_tokens", "Drafted tokens that the target accepted.", *ROUTED),
    "rejections": counter("osd_rejections", "Rounds that ended with a drafted token refused.", *ROUTED),
    "emitted": counter("osd_emitted_tokens", "Tokens that came out.", *ROUTED),
    "prompt_tokens": counter("osd_prompt_tokens", "Tokens of prompts.", *ROUTED),
    "draft_ms": counter("osd_draft_seconds", "Requests' shares of the time spent drafting.", *ROUTED),
    "verify_ms": counter("osd_verify_seconds", "Requests' shares of the time spent verifying.", *ROUTED),
}
"""Field of :class:`storage.outcomes.outcomes.AcceptanceRow` -> its metric."""

SGLANG_SUMS: dict[str, Metric] = {
    "requests": counter("sglang:num_requests", "Number of requests processed.", "model_name"),
    "prompt_tokens": counter("sglang:prompt_tokens", "Number of prefill tokens processed.", "model_name"),
    "emitted": counter("sglang:generation_tokens", "Number of generation tokens processed.", "model_name"),
}
"""Field of :class:`storage.outcomes.outcomes.AcceptanceRow` -> what SGLang calls its sum."""
SGLANG_LENGTH = gauge("sglang:spec_accept_length", "Tokens a round of the last minute, the target's own.", "model_name")
SGLANG_RATE = gauge("sglang:spec_accept_rate", "Accepted ÷ drafted tokens of the last minute.", "model_name")

PLACE_DRAFTED = counter("osd_place_drafted", "Rounds that drafted a token at this place.", "position")
PLACE_ACCEPTED = counter("osd_place_accepted", "Rounds in which the token there was accepted.", "position")
PLACE_REFUSED = counter("osd_place_refused", "Rounds that ended there, refused.", "position")

ATTACHED_SUMS: dict[str, Metric] = {
    "requests": counter("osd_attached_requests", "Answers of an attached engine.", "engine"),
    "drafted": counter("osd_attached_drafted_tokens", "Tokens that it drafted in them.", "engine"),
    "accepted": counter("osd_attached_accepted_tokens", "Of these, those accepted.", "engine"),
    "rejections": counter("osd_attached_rejections", "Its rounds that ended with a token refused.", "engine"),
    "emitted": counter("osd_attached_emitted_tokens", "Tokens that came out of it.", "engine"),
}
"""Field of :class:`storage.outcomes.outcomes.AcceptanceRow` -> the metric by attached engine."""
ATTACHED_UP = gauge("osd_attached_up", "1 while `osd attach` reaches an attached engine.", "engine", "draft")
ATTACHED_VERSION = gauge("osd_attached_version_number", "Number of the version that it serves.", "engine", "draft")
ATTACHED_GAIN = gauge(
    "osd_attached_gain", "Its tokens a second ÷ those without a draft, as it measures them.", "engine"
)
ATTACHED_DRAFTING = gauge("osd_attached_drafting", "1 while it drafts at any batch size.", "engine")
ATTACHED_DROPPED = counter(
    "osd_attached_dropped_answers", "Answers that it had no place for while osd took none.", "engine"
)

RUNS = counter("osd_training_runs", "Training runs that ended, by what came of them.", "draft", "state")
RUN_SECONDS = counter("osd_training_seconds", "Time of training runs that ended, gates included.", "draft")
RUN_POSITIONS = counter("osd_training_positions", "Positions trained on, once an epoch.", "draft")
LAST_RUN = gauge("osd_training_last_start_timestamp_seconds", "When the newest training run began.", "draft")
VERSION = gauge("osd_draft_version_number", "The current version's number.", "draft")
SERVERS = gauge("osd_servers", "Servers that draft with any version of the draft.", "draft")
WAITING = gauge("osd_replay_waiting_requests", "Kept requests that no run has taken, held-out ones aside.", "route")
KEPT_REQUESTS = gauge("osd_replay_requests", "Kept requests.", "route")
KEPT_BYTES = gauge("osd_replay_bytes", "Their bytes on the disk.", "route")
OLDEST = gauge("osd_replay_waiting_age_seconds", "Age of the oldest request that waits to be trained on.", "draft")
DISK_FREE = gauge("osd_store_free_bytes", "Free bytes where the data directory is.")
DISK_SIZE = gauge("osd_store_size_bytes", "Size of the disk that it is on.")
UP = gauge("osd_store_up", "1 where the store answered, 0 where it did not; then the rest is missing.")
TOOK = gauge("osd_scrape_seconds", "How long the store took to answer.")

counter, gauge = ENGINE.counter, ENGINE.gauge

DROPPED = counter(
    "osd_recorder_dropped_positions", "Positions lost: no room in the buffer, or neither in the store nor on the disk."
)
SPILLED = counter("osd_recorder_spilled_requests", "Requests that waited on this machine's disk: the store was away.")
SPILL_BYTES = gauge("osd_recorder_spill_bytes", "What waits there, and what was refused.")
RECORDER_SECONDS = counter("osd_recorder_seconds", "What recording took, of the decode loop and of its own thread.")
STEPS = counter("osd_engine_steps", "Steps of the decode loop.")
STOOD_IN = counter("osd_engine_stood_in_requests", "Requests that the default draft served for one not in memory.")
LOSSY = gauge("osd_engine_lossy", "1 for the lossy mode in which drafts are accepted, else 0.", "mode")
DRAFT_FAILURES = counter(
    "osd_engine_draft_failures", "Errors that drafters raised, each at the cost of a round's draft.", "drafter"
)
READ = counter("osd_engine_read_tokens", "Prompt tokens that the target computed.")
PREFIX_QUERIED = counter("osd_prefix_cache_queried_tokens", "Prompt tokens looked for among those read before.")
PREFIX_HITS = counter("osd_prefix_cache_hit_tokens", "Of them, those that were copied.")
VLLM_PREFIX_QUERIES = counter(
    "vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", "model_name", "engine"
)
VLLM_PREFIX_HITS = counter(
    "vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", "model_name", "engine"
)
CACHE_HELD = gauge("osd_kv_cache_held_blocks", "Blocks of the target's cache that requests hold.")
CACHE_WAITED = counter("osd_kv_cache_waited_steps", "Steps in which a request waited for blocks before it began.")
CACHE_SET_ASIDE = counter("osd_kv_cache_set_aside", "Times that a request waited for blocks in the middle of its text.")
VLLM_CACHE_USAGE = gauge(
    "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", "model_name", "engine"
)
VLLM_CACHE_CONFIG = gauge(
    "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "engine", "block_size", "num_gpu_blocks"
)
SGLANG_USAGE = gauge("sglang:token_usage", "Share of the KV cache that is in use.", "model_name")
SGLANG_HITS = gauge("sglang:cache_hit_rate", "Prompt tokens copied ÷ looked for.", "model_name")
SWAPS = counter("osd_engine_swaps", "Versions that were swapped in.")
SWAP_SECONDS = counter("osd_engine_swap_pause_seconds", "Time for which decoding stood still at swaps.")

counter, gauge = UPSTREAM.counter, UPSTREAM.gauge

REPLICA_UP = gauge("osd_upstream_up", "1 where a replica gets requests, 0 where it does not.", "replica", "draft")
REPLICA_RUNNING = gauge("osd_upstream_running_requests", "Requests that a replica has not finished.", "replica")
REPLICA_ANSWERS = counter("osd_upstream_answers", "Answers of replicas, by class of status.", "replica", "status")
REPLICA_FAILURES = counter(
    "osd_upstream_failures", "Requests to replicas that brought no whole answer, by reason.", "replica", "reason"
)
UPSTREAM_RETRIES = counter("osd_upstream_retries", "Requests sent once more before the first byte, elsewhere or anew.")
UPSTREAM_STOOD_IN = counter(
    "osd_upstream_stood_in_requests", "Requests that a replica with another draft answered.", "route"
)
