"""A stand-in for SGLang's server as its source of 0.5.23 has it: routes, bodies, what they refuse, and in which order.

Of srt/entrypoints/http_server.py (routes, statuses), srt/managers/scheduler_components/weight_updater.py (the session),
srt/managers/io_struct.py (fields), srt/utils/common.py (what its unpickler allows), srt/utils/auth.py (keys).
"""

from __future__ import annotations

import base64
import io
import pickle
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from safetensors.torch import load_file

ALLOWED = {("torch._utils", "_rebuild_tensor_v2"), ("collections", "OrderedDict")}


class SafeUnpickler(pickle.Unpickler):
    """Allows tensors that bring their own storage, a part of what SGLang's allows."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda data: torch.load(io.BytesIO(data), weights_only=True)
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        raise RuntimeError(f"Blocked unsafe global ({module}.{name}) during pickle deserialization")


class FakeSglang:
    """The server's state: the target's and the draft's tensors, the session, the label."""

    def __init__(self, target: Path, draft: Path, tp: int = 1) -> None:
        self.target_path, self.draft_path, self.tp = target, draft, tp
        self.info: dict[str, Any] = {}
        """What /server_info says otherwise."""
        self.key: str | None = None
        self.fails: str | None = None
        """A tensor's name at which loading fails, once."""
        self.calls: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Start again with the draft of the command line."""
        self.target = load_file(self.target_path / "model.safetensors")
        self.draft = load_file(self.draft_path / "model.safetensors")
        self.label, self.session, self.paused = "default", None, False
        self.unpaused: list[str] = []
        """Updates that came while requests were running."""

    def app(self) -> FastAPI:
        """Make the server."""
        app = FastAPI()

        @app.middleware("http")
        async def keys(http: Request, call_next: Any) -> Any:
            self.calls.append(http.url.path)
            if self.key and http.headers.get("authorization") != f"Bearer {self.key}":
                return JSONResponse({"error": "Unauthorized"}, 401)
            return await call_next(http)

        @app.get("/server_info")
        def server_info() -> dict[str, Any]:
            return {
                "model_path": str(self.target_path), "speculative_algorithm": "STANDALONE",
                "speculative_draft_model_path": str(self.draft_path), "speculative_num_steps": 3,
                "speculative_num_draft_tokens": 4, "speculative_eagle_topk": 1, "tp_size": self.tp, "dp_size": 1,
                "max_running_requests": 16, "version": "0.5.23", **self.info,
            }  # fmt: skip

        @app.get("/model_info")
        def model_info() -> dict[str, Any]:
            return {"model_path": str(self.target_path), "weight_version": self.label}

        @app.post("/{route}")
        async def control(route: str, http: Request) -> Response:
            return self.control(route, await http.json())

        return app

    def control(self, route: str, body: dict[str, Any]) -> Response:
        """Answer a control route."""
        known = {
            "pause_generation": self.pause, "continue_generation": self.go_on, "begin_weight_update": self.begin,
            "update_weights_from_tensor": self.update, "end_weight_update": self.end,
            "update_weight_version": self.name, "weights_checker": self.check,
        }  # fmt: skip
        if route not in known:
            return JSONResponse({"detail": "Not Found"}, 404)
        refused, more = known[route](body)
        said = {"success": not refused, "message": refused or "Success", **more}
        return JSONResponse(said, 400 if refused else 200)

    def pause(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.paused = body["mode"] == "in_place"
        return "", {}

    def go_on(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.paused = False
        return "", {}

    def begin(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if self.session is not None:
            return "a weight-update session is already open; call end_weight_update() first", {}
        self.session = body["selector"]
        return "", {}

    def end(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if self.session is None:
            return "no weight-update session is open; call begin_weight_update() first", {}
        self.session = None
        return "", {}

    def update(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if self.session is None:
            return "update_weights_from_tensor must run between begin_weight_update() and end_weight_update()", {}
        if not self.paused:
            self.unpaused.append("update")
        for packed in body["serialized_named_tensors"][: self.tp]:
            for name, tensor in SafeUnpickler(io.BytesIO(base64.b64decode(packed, validate=True))).load():
                if name == self.fails:
                    self.fails = None
                    return "the weights are partially updated", {}
                for model in [self.draft] if body["selector"] == "draft" else [self.target, self.draft]:
                    model[name].copy_(tensor)
        if body["flush_cache"]:
            return (
                "Weights were updated, but the cache was not flushed because requests are still running or queued.",
                {},
            )
        return "", {}

    def name(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.label = body["new_version"]
        return "", {}

    def check(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        sums = {f"draft.{name}": f"{hash(tensor.numpy().tobytes()):016x}" for name, tensor in self.draft.items()}
        return "", {"ranks": [{"checksums": sums, "per_gpu_checksum": "0"} for _ in range(self.tp)]}
