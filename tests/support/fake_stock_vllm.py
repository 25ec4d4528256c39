"""A stand-in for vLLM's API server without any plugin, which a command can start again with another draft."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from tests.support.fake_vllm import FakeEngine, add_openai

HOOK = """
import json, os, sys, urllib.request
told = json.dumps({"folder": sys.argv[1], "version": os.environ["OSD_VERSION"], "engine": os.environ["OSD_ENGINE"]})
urllib.request.urlopen(urllib.request.Request(os.environ["OSD_URL"] + "/test/restart", told.encode()))
"""
"""What a restart hook does to it."""


class FakeStock:
    """The server's state."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine, self.started = engine, time.time()
        self.restarts: list[dict[str, Any]] = []
        self.up = True
        self.asked: list[dict[str, Any]] = []
        """Bodies that came."""

    def restart(self, draft: Path) -> None:
        """Start again with a draft."""
        self.engine.restart(draft)
        self.started = time.time()

    def app(self) -> FastAPI:
        """Make the server."""
        app = FastAPI()
        add_openai(app, self.engine)

        @app.middleware("http")
        async def look(http: Request, call_next: Any) -> Any:
            if not self.up:
                return JSONResponse({"detail": "not up"}, 503)
            if http.method == "POST" and http.url.path.startswith("/v1/"):
                self.asked.append(await http.json())
            return await call_next(http)

        @app.get("/health")
        def health() -> Response:
            return Response()

        @app.get("/version")
        def version() -> dict[str, str]:
            return {"version": "0.32.0"}

        @app.get("/v1/models")
        def models() -> dict[str, Any]:
            return {"data": [{"id": "target", "object": "model", "root": str(self.engine.target.name_or_path)}]}

        @app.get("/metrics")
        def metrics() -> Response:
            return PlainTextResponse(
                f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {self.started!r}\n"
                "# TYPE vllm:spec_decode_num_drafts_total counter\n"
                'vllm:spec_decode_num_drafts_total{engine="0",model_name="target"} 0.0\n'
            )

        @app.post("/test/restart")
        async def restart(http: Request) -> dict[str, str]:
            said = await http.json()
            self.restarts.append(said)
            self.restart(Path(said["folder"]))
            return {}

        return app
