"""A stand-in for vLLM's API server around osd's real plugin: vLLM's JSON, its RPC to workers, and greedy decoding.

It speaks as vLLM 0.32 was seen to speak (which fields are there, which are null, what chunks of a stream hold), and
decodes by two small models of transformers: the target's own text, and what each step's draft had right of it. What
comes of it can so be compared with what was really drafted.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import types
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy, deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from transformers import AutoConfig

from osd.models.weights import read_weights

TOKEN = "a token of a test, long enough"
PLUGIN_FOLDER = Path(__file__).parents[2] / "osd" / "attached" / "vllm" / "plugin"
"""The folder that holds the plugin's package as its wheel does."""


def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the plugin be imported as ``osd_vllm``, anew: its options and its sender are those of a process."""
    for name in [name for name in sys.modules if name.split(".")[0] == "osd_vllm"]:
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(PLUGIN_FOLDER))


@cache
def module_in(folder: Path) -> Any:
    """A folder's model; read once, so whoever changes it takes a copy."""
    return read_weights(folder, "auto").eval().requires_grad_(False)


class FakeEngine:
    """The engine client: one rank, whose worker is the plugin's real one over a model of transformers."""

    def __init__(self, target: Path, draft: Path, gamma: int) -> None:
        self.target: Any = copy(module_in(target))
        self.gamma, self.weight_version = gamma, ""
        self.adapters: dict[str, Any] = {}
        """LoRA adapters by name."""
        self.processed = False
        """Whether log-probabilities are those after penalties."""
        self.tokenizer: Any = None
        self.refused: dict[tuple[int, ...], list[int]] = {}
        """Prompt → the tokens that were really refused, of its newest answer."""
        self._speculation = Namespace(
            method="draft_model", model=str(draft), num_speculative_tokens=gamma, draft_sample_method="greedy"
        )
        self.vllm_config = Namespace(
            speculative_config=self._speculation,
            model_config=Namespace(logprobs_mode="raw_logprobs", hf_config=self.target.config),
            observability_config=Namespace(per_request_spec_decode_metrics="detailed"),
            scheduler_config=Namespace(max_num_seqs=16),
            parallel_config=Namespace(data_parallel_size=1, worker_extension_cls="osd_vllm.worker.OsdWorker"),
        )
        self.restart(draft)

    def restart(self, draft: Path | None) -> None:
        """Start the worker again, with the draft of the command line; with none: without speculation."""
        worker = importlib.import_module("osd_vllm.worker")
        self.draft: Any = deepcopy(module_in(draft)) if draft else None
        self.vllm_config.speculative_config = self._speculation if draft else None
        config = draft and Namespace(model=str(draft), hf_config=AutoConfig.from_pretrained(draft))
        speculative = draft and Namespace(draft_model_config=config)
        engine = self

        class Worker(worker.OsdWorker):  # type: ignore[misc, name-defined]
            rank = 0
            vllm_config = Namespace(speculative_config=speculative)
            model_runner = types.SimpleNamespace(get_model=lambda: engine.target, get_draft_model=lambda: engine.draft)

            def _osd_put(self, tensors: dict[str, torch.Tensor]) -> int:
                engine.draft.load_state_dict(tensors, strict=False)
                return len(tensors)

        self.worker = Worker()
        self.process = worker.PROCESS

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        """Call a method of every worker."""
        return [getattr(self.worker, method)(*args)]

    async def update_weight_version(self, version: str) -> None:
        """Note a version."""
        self.weight_version = version

    def decode(
        self, prompt: list[int], most: int, penalty: float = 1.0
    ) -> tuple[list[int], list[list[tuple[int, float]]], Any, Any]:
        """Return the greedy tokens, all log-probabilities at each, and what each step accepted and drafted: lists, or
        None without speculation."""
        tokens, tops = list(prompt), []
        for _ in range(most):
            logits = self.target(torch.tensor([tokens])).logits[0, -1]
            warped, seen = logits.clone(), logits[sorted({*tokens})]
            warped[sorted({*tokens})] = torch.where(seen > 0, seen / penalty, seen * penalty)
            logprobs = (warped if self.processed else logits).log_softmax(-1)
            tops.append([(int(i), float(logprobs[i])) for i in logprobs.argsort(descending=True)])
            tokens.append(int(warped.argmax()))
        if self.draft is None:
            return tokens[len(prompt) :], tops, None, None
        guesses = self.draft(torch.tensor([tokens])).logits[0].argmax(-1).tolist()
        accepted, drafted, refused, place = [], [], [], len(prompt) + 1
        while place < len(tokens):
            kept = 0
            while (
                kept < self.gamma and place + kept < len(tokens) and guesses[place + kept - 1] == tokens[place + kept]
            ):
                kept += 1
            if kept < self.gamma and place + kept < len(tokens):
                refused.append(guesses[place + kept - 1])
            accepted.append(kept)
            drafted.append(self.gamma)
            place += kept + 1
        self.refused[tuple(prompt)] = refused
        return tokens[len(prompt) :], tops, accepted, drafted


def make_app(engine: FakeEngine, *, harvests: bool = True, scheduler: str | None = None) -> FastAPI:
    """Make the API server, with the plugin's routes, its middleware where it ``harvests``, and --scheduler-cls."""
    ours = importlib.import_module("osd_vllm.routes").OsdRoutes()
    args = Namespace(model=engine.target.name_or_path, revision=None, max_logprobs=20, port=1, scheduler_cls=scheduler)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await ours.init_state(engine, app.state, args)
        app.state.openai_serving_models = Namespace(lora_requests=engine.adapters)
        yield
        app.state.osd_watch.cancel()

    app = FastAPI(lifespan=lifespan)
    ours.attach_router(app)
    add_openai(app, engine)
    if harvests:
        app.add_middleware(importlib.import_module("osd_vllm.harvest").Harvest)
    return app


def add_openai(app: FastAPI, engine: FakeEngine) -> None:
    """Add the routes of OpenAI's API."""

    @app.post("/v1/completions")
    async def complete(http: Request) -> Response:
        return _answer(engine, await http.json(), chat=False)

    @app.post("/v1/chat/completions")
    async def chat(http: Request) -> Response:
        return _answer(engine, await http.json(), chat=True)


def text_of(token: int) -> str:
    """A token as text."""
    return f" t{token}"


def _answer(engine: FakeEngine, body: dict[str, Any], *, chat: bool) -> Response:
    if body.get("max_tokens", 8) < 1:
        return JSONResponse({"error": {"message": "max_tokens must be at least 1"}}, 400)
    prompt = [3, 4, *(ord(letter) % 90 + 2 for letter in json.dumps(body["messages"])[-8:])] if chat else body["prompt"]
    penalty = body.get("repetition_penalty", 1.0)
    parts = [engine.decode(prompt, body.get("max_tokens", 8), penalty) for _ in range(body.get("n") or 1)]
    if body.get("stream"):
        return StreamingResponse(_stream(prompt, parts, body, chat), media_type="text/event-stream")
    choices = []
    for index, (tokens, tops, *_) in enumerate(parts):
        said: dict[str, Any] = (
            {"message": {"role": "assistant", "content": _text(tokens)}} if chat else {"text": _text(tokens)}
        )
        own = {"prompt_token_ids": prompt if body.get("return_token_ids") else None} if not chat else {}
        choices.append({
            "index": index, **said, "logprobs": _logprobs(tokens, tops, body, chat), "finish_reason": "length",
            "stop_reason": None, "token_ids": tokens if body.get("return_token_ids") else None, **own,
        })  # fmt: skip
    top = {"prompt_token_ids": prompt if body.get("return_token_ids") else None} if chat else {}
    return JSONResponse({
        "id": "cmpl-1", "object": "x", "created": 1, "model": "m", "choices": choices, "system_fingerprint": "fp",
        "usage": _usage(prompt, parts), **top, "metrics": _metrics(parts),
    })  # fmt: skip


async def _stream(prompt: list[int], parts: list[Any], body: dict[str, Any], chat: bool) -> AsyncIterator[bytes]:
    asks_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    frame = {"id": "cmpl-1", "object": "x.chunk", "created": 1, "model": "m"}
    ids = body.get("return_token_ids")
    if chat:
        for index in range(len(parts)):
            first = {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            yield _event({**frame, "choices": [first], "prompt_token_ids": prompt if ids else None})
    for index, (tokens, tops, *_) in enumerate(parts):
        for place in range(0, len(tokens), 2):
            some, last = tokens[place : place + 2], place + 2 >= len(tokens)
            said: dict[str, Any] = {"delta": {"content": _text(some)}} if chat else {"text": _text(some)}
            if chat and body.get("tools") and not last:  # a parser holds the text back
                if not (ids or body.get("logprobs")):
                    continue
                said = {"delta": {}}
            own = {} if chat else {"prompt_token_ids": prompt if ids and place == 0 else None}
            part = {
                "index": index, **said, "logprobs": _logprobs(some, tops[place : place + 2], body, chat),
                "finish_reason": "length" if last else None, **own, "token_ids": some if ids else None,
            }  # fmt: skip
            stamp = {"system_fingerprint": "fp"} if last and not asks_usage else {}
            yield _event({**frame, "choices": [part], **stamp})
            await asyncio.sleep(0)
    if asks_usage:
        spec = _metrics(parts)
        yield _event(
            {**frame, "choices": [], "usage": _usage(prompt, parts), "system_fingerprint": "fp"}
            | ({"metrics": spec} if spec else {})
        )
    yield b"data: [DONE]\n\n"


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _text(tokens: list[int]) -> str:
    return "".join(map(text_of, tokens))


def _usage(prompt: list[int], parts: list[Any]) -> dict[str, int]:
    output = sum(len(tokens) for tokens, *_ in parts)
    return {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + output, "completion_tokens": output}


def _metrics(parts: list[Any]) -> dict[str, Any] | None:
    if len(parts) > 1:
        return None
    _, _, accepted, drafted = parts[0]
    if drafted is None:
        return None
    return {
        "speculative_decoding": {
            "num_spec_steps": len(accepted),
            "per_step_accepted": accepted,
            "per_step_drafted": drafted,
        }
    }


def _logprobs(tokens: list[int], tops: list[Any], body: dict[str, Any], chat: bool) -> Any:
    k = (body.get("top_logprobs") or 0) if chat else body.get("logprobs")
    if (chat and not body.get("logprobs")) or (not chat and k is None):
        return None
    name = (lambda token: f"token_id:{token}") if body.get("return_tokens_as_token_ids") else text_of
    if chat:
        return {"content": [
            {"token": name(token), "logprob": dict(top)[token],
             "top_logprobs": [{"token": name(i), "logprob": value} for i, value in top[:k]]}
            for token, top in zip(tokens, tops, strict=True)
        ]}  # fmt: skip
    pairs = list(zip(tokens, tops, strict=True))
    return {
        "tokens": [name(token) for token in tokens], "token_logprobs": [dict(top)[token] for token, top in pairs],
        "top_logprobs": [{name(token): dict(top)[token], **{name(i): v for i, v in top[:k]}} for token, top in pairs],
    }  # fmt: skip
