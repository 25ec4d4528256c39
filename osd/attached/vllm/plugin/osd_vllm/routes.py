"""osd's routes in vLLM's API server: what drafts here, publishing, draft lengths.

They are under /v1, which ``--api-key`` guards, and want a token of their own beside.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import socket
import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import State

from . import __version__
from .needs import HARVEST, LIVE_GAMMA, fixed_lengths, lacking
from .options import absolute, draft_file, gain_file, options, write_whole
from .sender import sender
from .weights import placeholders, target_digests

Facts = dict[str, Any]
LOOK, SHARE = 0.5, 0.002
"""Seconds between two looks at the target's weights, and share of a worker's time that they may take."""
log, started = logging.getLogger("osd.vllm"), logging.getLogger("vllm.osd")  # vLLM shows information of its own alone


def _require_token(x_osd_token: Annotated[str, Header()] = "") -> None:
    if not hmac.compare_digest(x_osd_token.encode(), options().token.encode()):
        raise HTTPException(401, "X-OSD-Token is not the token in OSD_VLLM_TOKEN of this vLLM")


routes = APIRouter(prefix="/v1/osd", dependencies=[Depends(_require_token)])


class PublishBody(BaseModel):
    """A version to load."""

    model_config = ConfigDict(extra="forbid")

    folder: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    version: str = Field(min_length=1, max_length=200)


class GammaBody(BaseModel):
    """Draft lengths: (first, last, length) by running requests, as num_speculative_tokens_per_batch_size; null for
    those that are measured to be worth while."""

    model_config = ConfigDict(extra="forbid")

    schedule: Annotated[list[tuple[int, int, int]], Field(min_length=1)] | None


class OsdRoutes:
    """vLLM's endpoint plugin."""

    name = "osd"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes."""
        options()  # what is wrong with them is said before any weights are read
        app.include_router(routes)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Note the engine, and ask for no more log-probabilities than it gives."""
        state.osd_engine, state.osd_args, state.osd_turn = engine_client, args, asyncio.Lock()
        sender().engine = options().engine or f"{socket.gethostname()}:{args.port}"
        where = Path(__file__).parent
        started.info("osd_vllm %s from %s: this vLLM is the engine %s", __version__, where, sender().engine)
        state.osd_target = asyncio.create_task(asyncio.to_thread(target_digests, args.model, args.revision))
        most = args.max_logprobs
        if 0 <= most < sender().k:
            log.warning("osd asks for %d log-probabilities, as --max-logprobs says, not %d", most, sender().k)
            sender().k = most
        if sender().k and (tokenizer := getattr(engine_client, "tokenizer", None)) is not None:
            remember_tokens(tokenizer)
        state.osd_watch = asyncio.create_task(_watch(engine_client))


async def _watch(engine: Any) -> None:
    """Keep what the sender knows fresh."""
    await asyncio.gather(_follow_workers(engine), _heed_collector())


async def _follow_workers(engine: Any) -> None:
    """Follow what the workers say, once they do. Until then they are asked ever more seldom: vLLM logs a traceback of a
    call that they do not know."""
    pause = 2.0
    while not await _look_at_version(engine):
        await asyncio.sleep(pause)
        pause = min(2 * pause, 300.0)
    await asyncio.gather(_follow_version(engine), _follow_target(engine))


async def _follow_version(engine: Any) -> None:
    """Keep what the sender knows of the version fresh: another API server of this vLLM may have published."""
    while True:
        await asyncio.sleep(2.0)
        await _look_at_version(engine)


async def _look_at_version(engine: Any) -> bool:
    try:
        await _served(engine)
    except Exception as error:
        sender().serving = None
        log.warning("the workers do not say what drafts: %s", error)
        return False
    return True


async def _follow_target(engine: Any) -> None:
    """Keep what the sender knows of the target's weights fresh: whoever trains it may replace them in place. Looks at
    many weights take long, and are rare; where vLLM was told to replace them, one follows at once."""
    while True:
        changes, again = await _changes(engine), time.monotonic() + await _look_at_target(engine) / SHARE
        await asyncio.sleep(LOOK)
        while time.monotonic() < again and await _changes(engine) == changes:
            await asyncio.sleep(LOOK)


async def _changes(engine: Any) -> list[int] | None:
    with suppress(Exception):  # _follow_version says why the workers say nothing
        return [worker["changes"] for worker in await _ask_each(engine, "osd_target_changes")]
    return None


async def _look_at_target(engine: Any) -> float:
    """Tell the sender the state of the target's weights; return the seconds that this took of a worker's time."""
    asked, state, took = time.time(), None, 0.0
    with suppress(Exception):
        workers = await _ask_each(engine, "osd_target_state")
        state = hashlib.sha256(" ".join(sorted(str(worker["state"]) for worker in workers)).encode()).hexdigest()
        took = max(worker["seconds"] for worker in workers)
    if (path := options().gamma) and state and sender().target not in (None, state):
        write_whole(draft_file(path), state)  # what the draft had right of the old weights counts little
    sender().saw_target(state, asked)
    return took


async def _heed_collector() -> None:
    """Keep fresh what the collector wants: it may be started later, or again with other settings."""
    while options().collector:
        with suppress(Exception):  # it is away, or says something else
            await asyncio.to_thread(sender().ask_collector)
        await asyncio.sleep(2.0)


async def _ask_each(engine: Any, method: str, *args: str) -> list[Facts]:
    """Call a method of every worker, those of each data parallel engine: vLLM's own call returns the first engine's."""
    ask_all = getattr(getattr(engine, "engine_core", None), "call_utility_all_async", None)
    if ask_all is None:
        return list(await engine.collective_rpc(method, args=args))
    by_engine = await ask_all("collective_rpc", method, None, args, None)
    return [
        {**facts, "rank": number * len(workers) + rank}
        for number, workers in enumerate(by_engine) for rank, facts in enumerate(workers)
    ]  # fmt: skip


async def _served(engine: Any) -> list[Facts]:
    workers = await _ask_each(engine, "osd_draft_info")
    known = {worker["sha256"] for worker in workers}
    sender().serving = known.pop() if len(known) == 1 else None
    return workers


async def _workers(engine: Any) -> list[Facts]:
    """Return what drafts on each rank. Raises 409 where the workers cannot say."""
    try:
        return await _served(engine)
    except Exception as error:
        reason = f"its workers do not say what drafts ({_sentence(error)}); start vLLM with"
        raise HTTPException(409, f"{reason} --worker-extension-cls osd_vllm.worker.OsdWorker") from None


def _no_live_gamma(state: State) -> str | None:
    """Return why draft lengths cannot be changed while this vLLM runs; None where they can."""
    if options().gamma is None or "osd_vllm" not in str(state.osd_args.scheduler_cls):
        return "start vLLM with OSD_VLLM_GAMMA and --scheduler-cls osd_vllm.scheduler.OsdScheduler"
    if reason := fixed_lengths(state.osd_engine.vllm_config):
        return reason
    if missing := lacking(LIVE_GAMMA):
        return f"draft lengths cannot be changed live with vLLM {_vllm_version()} ({missing})"
    return None


def _method(speculative: Any) -> str:
    """Return how it drafts: vLLM's own name, but for models that draft all tokens in one pass."""
    if not getattr(speculative, "parallel_drafting", False):
        return str(speculative.method)
    return {"eagle3": "peagle", "draft_model": "pard"}.get(speculative.method, str(speculative.method))


@routes.get("/info")
async def info(http: Request) -> Facts:
    """Say what this vLLM is, which target it serves, and what drafts."""
    state = http.app.state
    args, config = state.osd_args, state.osd_engine.vllm_config
    if sender().first_target is None:
        await _look_at_target(state.osd_engine)
    speculative = config.speculative_config
    draft = getattr(speculative, "model", None)
    return {
        "engine": sender().engine, "plugin": __version__, "vllm": _vllm_version(), "process": os.getpid(),
        "target": {"name": absolute(args.model), "revision": args.revision, "files": await state.osd_target,
                   "state": sender().target, "first_state": sender().first_target,
                   "placeholders": placeholders(config.model_config.hf_config.to_dict())},
        "speculation": None if speculative is None else {
            "method": _method(speculative), "draft": draft and absolute(draft),
            "num_speculative_tokens": speculative.num_speculative_tokens,
            "draft_sample_method": getattr(speculative, "draft_sample_method", "greedy"),
            "quantised_head": bool(getattr(speculative, "draft_lm_head_quantization", None)),
            "rejection": getattr(speculative, "rejection_sample_method", "standard"),
        },
        "logprobs_mode": config.model_config.logprobs_mode, "max_logprobs": args.max_logprobs, "top_k": sender().k,
        "spec_decode_metrics": getattr(config.observability_config, "per_request_spec_decode_metrics", None),
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "live_gamma": _no_live_gamma(state) is None, "harvests": sender().harvests, "lacks": lacking(HARVEST),
        "workers": await _workers(state.osd_engine), "harvest": dict(sender().counts),
    }  # fmt: skip


@routes.get("/version")
async def served(http: Request) -> list[Facts]:
    """Say which version each rank drafts with: version, digest, process."""
    workers = await _workers(http.app.state.osd_engine)
    names = ("rank", "process", "version", "sha256", "folder")
    return [{**{name: worker[name] for name in names}, "target": sender().target} for worker in workers]


@routes.post("/publish")
async def publish(http: Request, body: PublishBody) -> Facts:
    """Load a folder as the draft on every rank, or on none. vLLM's weight version is the target's, and stays: a client
    may ask for that of each token (``return_weight_versions``)."""
    state = http.app.state
    folder = _allowed(body.folder, state.osd_engine.vllm_config.speculative_config)
    async with state.osd_turn:
        engine = state.osd_engine
        checked = await _ask_each(engine, "osd_draft_check", str(folder), body.sha256)
        if refused := next((rank for rank in checked if rank["refused"]), None):
            await _ask_each(engine, "osd_draft_release")
            raise HTTPException(409 if refused["unseen"] else 422, refused["refused"])
        try:
            loaded = await _ask_each(engine, "osd_draft_load", body.sha256, body.version)
        except Exception as error:
            raise HTTPException(422, _sentence(error)) from None
        if path := options().gamma:
            write_whole(draft_file(path), body.version)
        await _served(engine)
    return {"workers": [{**worker, "target": sender().target} for worker in loaded]}


@routes.put("/gamma")
async def gamma(http: Request, body: GammaBody) -> Facts:
    """Set draft lengths, where vLLM runs with osd's scheduler class."""
    if reason := _no_live_gamma(http.app.state):
        raise HTTPException(409, reason)
    path: Any = options().gamma
    if body.schedule is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, json.dumps(body.schedule))
    return {"schedule": body.schedule}


@routes.get("/gain")
async def gain(http: Request) -> Facts | None:
    """Say what drafting gains, as the scheduler class has measured it; null where it measures nothing (yet)."""
    if _no_live_gamma(http.app.state):
        return None
    path: Any = options().gamma
    try:
        told: Facts = json.loads(gain_file(path).read_text())
    except (OSError, ValueError):
        return None
    if told.get("harvesting") is not None:
        told["harvesting"] += sender().busy()
    return told | {"host": socket.gethostname(), "cores": os.cpu_count()}


def _allowed(given: str, speculative: Any) -> Path:
    """Return a folder that may be loaded from. Raises 403 for one outside OSD_VLLM_FOLDERS that is not the draft of
    vLLM's start, 409 for none."""
    folder, first = Path(given).resolve(), getattr(speculative, "model", None)
    own = first is not None and folder == Path(first).resolve()
    if not own and not any(folder.is_relative_to(each) for each in options().folders):
        reason = f"{given} is below none of OSD_VLLM_FOLDERS of this vLLM; add the folder of osd's versions to it"
        raise HTTPException(403, f"{reason} and start vLLM again")
    if not folder.is_dir():
        raise HTTPException(409, f"this vLLM sees no folder {given}")
    return folder


def _sentence(error: Exception) -> str:
    """Return the last line of an error that crossed processes: what the worker said."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _vllm_version() -> str:
    import vllm

    return str(vllm.__version__)


def remember_tokens(tokenizer: Any) -> None:
    """Let a tokenizer decode a single token once and remember its text; everything else it does as before.

    vLLM turns the likeliest tokens of each position into text one by one, in the process that answers clients, also
    where it is then asked to name them by their ids: an eighth of a millisecond for each token of an answer. The text
    of a single token depends on nothing but its id.
    """
    decode, known = tokenizer.decode, dict[int, str]()

    def remembered(*args: Any, **kwargs: Any) -> Any:
        ids = args[0] if len(args) == 1 and not kwargs else None
        if not (isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], int)):
            return decode(*args, **kwargs)
        if (text := known.get(ids[0])) is None:
            text = known[ids[0]] = decode(ids)
        return text

    tokenizer.decode = remembered
