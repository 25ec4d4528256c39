"""What the plugin relies on in vLLM, by what for; and what of that a vLLM lacks, by its source.

No version is asked: a vLLM that has all of it is worked with, and of another one it is said what is missing.
"""

from __future__ import annotations

import ast
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

LIVE_GAMMA, REST, PUBLISH, HARVEST = "live draft lengths", "a draft that rests", "publishing", "harvesting"
STATES = "hidden states"


class Need(NamedTuple):
    """Names that a module has to have."""

    module: str
    """A path below vLLM's folder."""
    name: str
    """A class, a function or Class.method."""
    names: tuple[str, ...] = ()
    """Parameters of a function, or fields, methods and attributes that a class names in its source."""


SCHEDULER, RUNNER = "v1/core/sched/scheduler.py", "v1/worker/gpu_model_runner.py"
RELOAD, PROTOCOLS = "model_executor/model_loader/reload/layerwise.py", "entrypoints/openai"
CONNECTOR = "distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py"
HANDED = ("_lock_fds", "_req_copy_events", "_req_futures", "_executor", "_kv_cache", "_block_size", "_is_tp_rank_zero")
STEP = ("scheduled_spec_decode_tokens", "num_scheduled_tokens", "num_spec_tokens_to_schedule", "finished_req_ids")
ASKED = ("request_id", "cache_salt", "block_hashes", "update_block_hashes", "resumable")
NEEDS: dict[str, tuple[Need, ...]] = {
    LIVE_GAMMA: (
        Need(SCHEDULER, "Scheduler", ("dynamic_sd_lookup", "num_spec_tokens", "scheduler_config", "vllm_config")),
        Need(SCHEDULER, "Scheduler.schedule"), Need(SCHEDULER, "Scheduler.add_request", ("request",)),
        Need(SCHEDULER, "Scheduler.update_from_output", ("scheduler_output", "model_runner_output")),
        Need("v1/request.py", "Request", ASKED),
        Need("v1/core/sched/async_scheduler.py", "AsyncScheduler", ("num_spec_tokens_to_schedule",)),
        Need("v1/core/sched/output.py", "SchedulerOutput", STEP),
        Need("v1/outputs.py", "ModelRunnerOutput", ("req_id_to_index", "sampled_token_ids")),
    ),
    REST: (
        Need("v1/spec_decode/llm_base_proposer.py", "SpecDecodeBaseProposer.propose", ("next_token_ids",)),
        Need(RUNNER, "GPUModelRunner.propose_draft_token_ids", ("scheduler_output",)),
        Need("v1/engine/core.py", "EngineCore.post_step", ("model_executed", "take_draft_token_ids")),
    ),
    PUBLISH: (
        Need("config/parallel.py", "ParallelConfig", ("worker_extension_cls",)),
        Need(RUNNER, "GPUModelRunner", ("get_draft_model", "get_model", "drafter")),
        Need("v1/worker/gpu_worker.py", "Worker.get_draft_model"),
        Need("v1/engine/async_llm.py", "AsyncLLM.collective_rpc", ("method", "args")),
        Need(RELOAD, "initialize_layerwise_reload", ("model",)), Need(RELOAD, "finalize_layerwise_reload"),
        Need("config/vllm.py", "set_current_vllm_config", ("vllm_config",)),
        Need("config/speculative.py", "SpeculativeConfig", ("method", "model", "draft_model_config")),
    ),
    HARVEST: (
        Need("plugins/endpoint_plugins/interface.py", "EndpointPlugin", ("name", "required_tasks")),
        Need("plugins/endpoint_plugins/interface.py", "EndpointPlugin.attach_router", ("app",)),
        Need("plugins/endpoint_plugins/interface.py", "EndpointPlugin.init_state", ("engine_client", "state", "args")),
        Need("v1/metrics/stats.py", "RequestSpecDecodeMetrics", ("per_step_accepted", "per_step_drafted")),
        *(
            Need(f"{PROTOCOLS}/{kind}/protocol.py", request, ("return_token_ids", "cache_salt"))
            for kind, request in (("completion", "CompletionRequest"), ("chat_completion", "ChatCompletionRequest"))
        ),
    ),
    STATES: (
        Need(CONNECTOR, "PendingSave", ("req_id", "filename", "token_ids", "block_ids")),
        Need(CONNECTOR, "ExampleHiddenStatesConnector", (*HANDED, "_kv_transfer_config", "_vllm_config")),
        Need(CONNECTOR, "ExampleHiddenStatesConnector._submit_async_write", ("pending",)),
        Need(CONNECTOR, "ExampleHiddenStatesConnector._on_write_done", ("req_id", "future")),
        Need(CONNECTOR, "extract_from_kv_cache", ("kv_cache", "slot_mapping", "num_tokens")),
    ),
}  # fmt: skip


VARIES = ("eagle", "eagle3", "mtp", "dflash", "draft_model", "ngram")
"""vLLM's methods that propose as many tokens as a step asks for."""


def fixed_lengths(config: Any) -> str | None:
    """Return why a vLLM's draft lengths have to stay as they are, by its configuration; None where they may change."""
    method, parallel = getattr(config.speculative_config, "method", None), config.parallel_config
    if parallel.data_parallel_size > 1:
        return "data parallel engines step together, so vLLM refuses other draft lengths than those of its start"
    if method == "medusa" and "osd_vllm" not in str(parallel.worker_extension_cls):
        return "medusa heads propose all or nothing unless --worker-extension-cls osd_vllm.worker.OsdWorker cuts it"
    if method not in (*VARIES, "medusa", None):
        return f"vLLM's '{method}' proposes no other number of tokens than that of its start"
    return None


def lacking(use: str, root: Path | None = None) -> str | None:
    """Return the first of what is needed for this ``use`` that a vLLM has not; None where it has all. ``root``: its
    package's folder, this process's where it is None."""
    return next((missing for need in NEEDS[use] if (missing := _missing(need, root or _installed()))), None)


@cache
def _missing(need: Need, root: Path) -> str | None:
    found: ast.AST | None = _parsed(root / need.module)
    for part in need.name.split("."):
        body = getattr(found, "body", ())
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = next((each for each in body if isinstance(each, kinds) and each.name == part), None)
    if found is None:
        return f"{need.module} has no {need.name}"
    known = {getattr(each, kind, None) for each in ast.walk(found) for kind in ("id", "attr", "arg", "name")}
    absent = [name for name in need.names if name not in known]
    return f"{need.name} has no {absent[0]}" if absent else None


@lru_cache(maxsize=1)  # such a tree takes megabytes
def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text("utf-8"))
    except OSError:
        return ast.Module([], [])


def _installed() -> Path:
    import vllm

    return Path(vllm.__file__).parent
