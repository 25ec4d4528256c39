"""Names, labels and descriptions of all metrics; the dashboard and the alert rules are checked against them.

Labels are bounded: routes beyond a limit share ``other``, drafts and attached engines are few, states and positions are
known. Tenants, requests and versions are never labels: they would leak, or grow for ever. The first four are vLLM's
own, verbatim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Family = CounterMetricFamily | GaugeMetricFamily
ROUTED = ("route", "draft")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. A counter's samples have ``_total`` added to its name."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    counter: bool = True

    def family(self) -> Family:
        """Return an empty family, to be filled."""
        made = CounterMetricFamily if self.counter else GaugeMetricFamily
        return made(self.name, self.help, labels=self.labels)

    @property
    def shown(self) -> str:
        """The name of its samples."""
        return f"{self.name}_total" if self.counter else self.name


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, help, labels, counter=False)


DRAFTS = Metric("vllm:spec_decode_num_drafts", "Number of spec decoding drafts.", ("model_name", "engine"))
DRAFT_TOKENS = Metric("vllm:spec_decode_num_draft_tokens", "Number of draft tokens.", ("model_name", "engine"))
ACCEPTED_TOKENS = Metric("vllm:spec_decode_num_accepted_tokens", "Number of accepted tokens.", ("model_name", "engine"))
ACCEPTED_PER_POS = Metric(
    "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens per draft position.",
    ("model_name", "engine", "position"),
)  # fmt: skip

SUMS: dict[str, Metric] = {
    "requests": Metric("osd_requests", "Finished requests.", ROUTED),
    "rounds": Metric("osd_rounds", "Rounds of drafting and verifying, those without a draft included.", ROUTED),
    "drafted": Metric("osd_drafted_tokens", "Drafted tokens.", ROUTED),
    "accepted": Metric("osd_accepted_tokens", "Drafted tokens that the target accepted.", ROUTED),
    "rejections": Metric("osd_rejections", "Rounds that ended with a drafted token refused.", ROUTED),
    "emitted": Metric("osd_emitted_tokens", "Tokens that came out.", ROUTED),
    "prompt_tokens": Metric("osd_prompt_tokens", "Tokens of prompts.", ROUTED),
    "draft_ms": Metric("osd_draft_seconds", "Requests' shares of the time spent drafting.", ROUTED),
    "verify_ms": Metric("osd_verify_seconds", "Requests' shares of the time spent verifying.", ROUTED),
}
"""Field of :class:`storage.outcomes.outcomes.AcceptanceRow` -> its metric."""

PLACE_DRAFTED = Metric("osd_place_drafted", "Rounds that drafted a token at this place.", ("position",))
PLACE_ACCEPTED = Metric("osd_place_accepted", "Rounds in which the token there was accepted.", ("position",))
PLACE_REFUSED = Metric("osd_place_refused", "Rounds that ended there, refused.", ("position",))

ATTACHED_SUMS: dict[str, Metric] = {
    "requests": Metric("osd_attached_requests", "Answers of an attached engine.", ("engine",)),
    "drafted": Metric("osd_attached_drafted_tokens", "Tokens that it drafted in them.", ("engine",)),
    "accepted": Metric("osd_attached_accepted_tokens", "Of these, those accepted.", ("engine",)),
    "rejections": Metric("osd_attached_rejections", "Its rounds that ended with a token refused.", ("engine",)),
    "emitted": Metric("osd_attached_emitted_tokens", "Tokens that came out of it.", ("engine",)),
}
"""Field of :class:`storage.outcomes.outcomes.AcceptanceRow` -> the metric by attached engine."""
ATTACHED_UP = _gauge("osd_attached_up", "1 while `osd attach` reaches an attached engine.", "engine", "draft")
ATTACHED_VERSION = _gauge("osd_attached_version_number", "Number of the version that it serves.", "engine", "draft")

RUNS = Metric("osd_training_runs", "Training runs that ended, by what came of them.", ("draft", "state"))
RUN_SECONDS = Metric("osd_training_seconds", "Time of training runs that ended, gates included.", ("draft",))
RUN_POSITIONS = Metric("osd_training_positions", "Positions trained on, once an epoch.", ("draft",))
LAST_RUN = _gauge("osd_training_last_start_timestamp_seconds", "When the newest training run began.", "draft")
VERSION = _gauge("osd_draft_version_number", "The current version's number.", "draft")
SERVERS = _gauge("osd_servers", "Servers that draft with any version of the draft.", "draft")
WAITING = _gauge("osd_replay_waiting_requests", "Kept requests that no run has taken, held-out ones aside.", "route")
KEPT_REQUESTS = _gauge("osd_replay_requests", "Kept requests.", "route")
KEPT_BYTES = _gauge("osd_replay_bytes", "Their bytes on the disk.", "route")
OLDEST = _gauge("osd_replay_waiting_age_seconds", "Age of the oldest request that waits to be trained on.", "draft")
DISK_FREE = _gauge("osd_store_free_bytes", "Free bytes where the data directory is.")
DISK_SIZE = _gauge("osd_store_size_bytes", "Size of the disk that it is on.")
UP = _gauge("osd_store_up", "1 where the store answered, 0 where it did not; then the rest is missing.")
TOOK = _gauge("osd_scrape_seconds", "How long the store took to answer.")

DROPPED = Metric(
    "osd_recorder_dropped_positions", "Positions lost: no room in the buffer, or neither in the store nor on the disk."
)
SPILLED = Metric("osd_recorder_spilled_requests", "Requests that waited on this machine's disk: the store was away.")
SPILL_BYTES = _gauge("osd_recorder_spill_bytes", "What waits there, and what was refused.")
RECORDER_SECONDS = Metric("osd_recorder_seconds", "What recording took, of the decode loop and of its own thread.")
STEPS = Metric("osd_engine_steps", "Steps of the decode loop.")
STOOD_IN = Metric("osd_engine_stood_in_requests", "Requests that the default draft served for one not in memory.")
LOSSY = _gauge("osd_engine_lossy", "1 for the lossy mode in which drafts are accepted, else 0.", "mode")
DRAFT_FAILURES = Metric(
    "osd_engine_draft_failures", "Errors that drafters raised, each at the cost of a round's draft.", ("drafter",)
)
READ = Metric("osd_engine_read_tokens", "Prompt tokens that the target computed.")
PREFIX_QUERIED = Metric("osd_prefix_cache_queried_tokens", "Prompt tokens looked for among those read before.")
PREFIX_HITS = Metric("osd_prefix_cache_hit_tokens", "Of them, those that were copied.")
VLLM_PREFIX_QUERIES = Metric(
    "vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", ("model_name", "engine")
)
VLLM_PREFIX_HITS = Metric(
    "vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", ("model_name", "engine")
)
CACHE_HELD = _gauge("osd_kv_cache_held_blocks", "Blocks of the target's cache that requests hold.")
CACHE_WAITED = Metric("osd_kv_cache_waited_steps", "Steps in which a request waited for blocks before it began.")
CACHE_SET_ASIDE = Metric("osd_kv_cache_set_aside", "Times that a request waited for blocks in the middle of its text.")
VLLM_CACHE_USAGE = _gauge(
    "vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", "model_name", "engine"
)
VLLM_CACHE_CONFIG = _gauge(
    "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "engine", "block_size", "num_gpu_blocks"
)
SWAPS = Metric("osd_engine_swaps", "Versions that were swapped in.")
SWAP_SECONDS = Metric("osd_engine_swap_pause_seconds", "Time for which decoding stood still at swaps.")

REPLICA_UP = _gauge("osd_upstream_up", "1 where a replica gets requests, 0 where it does not.", "replica", "draft")
REPLICA_RUNNING = _gauge("osd_upstream_running_requests", "Requests that a replica has not finished.", "replica")
REPLICA_ANSWERS = Metric("osd_upstream_answers", "Answers of replicas, by class of status.", ("replica", "status"))
REPLICA_FAILURES = Metric(
    "osd_upstream_failures", "Requests to replicas that brought no whole answer, by reason.", ("replica", "reason")
)
UPSTREAM_RETRIES = Metric("osd_upstream_retries", "Requests sent once more before the first byte, elsewhere or anew.")
UPSTREAM_STOOD_IN = Metric(
    "osd_upstream_stood_in_requests", "Requests that a replica with another draft answered.", ("route",)
)

VLLM: Sequence[Metric] = (DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS, ACCEPTED_PER_POS)
STORE: Sequence[Metric] = (
    *VLLM, *SUMS.values(), PLACE_DRAFTED, PLACE_ACCEPTED, PLACE_REFUSED, *ATTACHED_SUMS.values(), ATTACHED_UP,
    ATTACHED_VERSION, RUNS, RUN_SECONDS, RUN_POSITIONS, LAST_RUN, VERSION, SERVERS, WAITING,
    KEPT_REQUESTS, KEPT_BYTES, OLDEST, DISK_FREE, DISK_SIZE, UP, TOOK,
)  # fmt: skip
"""The metrics of the store's collector."""
ENGINE: Sequence[Metric] = (
    DROPPED, SPILLED, SPILL_BYTES, RECORDER_SECONDS, STEPS, STOOD_IN, LOSSY, DRAFT_FAILURES, SWAPS, SWAP_SECONDS, READ,
    PREFIX_QUERIED, PREFIX_HITS, VLLM_PREFIX_QUERIES, VLLM_PREFIX_HITS, CACHE_HELD, CACHE_WAITED, CACHE_SET_ASIDE,
    VLLM_CACHE_USAGE, VLLM_CACHE_CONFIG,
)  # fmt: skip
"""The metrics of an engine's collector."""
UPSTREAM: Sequence[Metric] = (
    REPLICA_UP, REPLICA_RUNNING, REPLICA_ANSWERS, REPLICA_FAILURES, UPSTREAM_RETRIES, UPSTREAM_STOOD_IN,
)  # fmt: skip
"""The metrics of the collector of a front's replicas."""


class FamilySet:
    """The families of one scrape, each once, in the order of the list."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.families = {metric.name: metric.family() for metric in metrics}

    def add(self, metric: Metric, value: float, *labels: object) -> None:
        """Add a sample."""
        self.families[metric.name].add_metric([str(label) for label in labels], float(value))
