"""A Hub on this machine: what huggingface_hub asks to make a repository, to commit files to it, and to fetch them."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest


@dataclass
class FakeHub:
    """Repositories in memory, one commit each."""

    url: str = ""
    token: str | None = None
    """Who does not bring it is refused."""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)

    def sha(self, repo: str) -> str:
        """Return the commit."""
        whole = hashlib.sha1()
        for name, content in sorted(self.repos[repo].items()):
            whole.update(name.encode() + content)
        return whole.hexdigest()

    def post(self, path: str, body: bytes) -> Any:
        """Answer a POST; None for what there is not."""
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = "/".join(filter(None, [asked.get("organization"), asked["name"]]))
            self.repos.setdefault(repo, {})
            self.private[repo] = bool(asked.get("private")) or asked.get("visibility") == "private"
            return {"url": f"{self.url}/{repo}", "name": repo, "id": "1"}
        *_, owner, name, what, _ = path.split("/")
        repo = f"{owner}/{name}"
        if what == "preupload":
            files = json.loads(body)["files"]
            return {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        if what == "commit":
            lines = [json.loads(line) for line in body.splitlines()]
            for line in lines:
                if line["key"] == "file":
                    self.repos[repo][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return {"commitUrl": f"{self.url}/{repo}/commit/{self.sha(repo)}", "commitOid": self.sha(repo)}
        return None

    def get(self, path: str) -> Any:
        """Answer a GET, with bytes for a file."""
        parts = path.strip("/").split("/")
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if repo not in self.repos:
            return None
        files = self.repos[repo]
        if parts[0] != "api":
            return files.get("/".join(parts[4:]))
        if parts[4:5] == ["tree"]:
            oid = lambda content: hashlib.sha1(content).hexdigest()  # noqa: E731
            return [{"type": "file", "path": n, "size": len(c), "oid": oid(c)} for n, c in files.items()]
        return {"id": repo, "sha": self.sha(repo), "siblings": [{"rfilename": name} for name in files]}


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *given: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(self.hub.post(self.path.split("?")[0], body) if self._is_told else None)

    def do_GET(self) -> None:
        self._answer(self.hub.get(self.path.split("?")[0]))

    do_HEAD = do_GET

    @property
    def _is_told(self) -> bool:
        return self.hub.token is None or self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def _answer(self, found: Any) -> None:
        content = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(401 if not self._is_told else 404 if found is None else 200)
        self.send_header("Content-Length", str(len(content)))
        if found is None and self._is_told:
            self.send_header("X-Error-Code", "RepoNotFound")
        if isinstance(found, bytes):
            repo = "/".join(self.path.strip("/").split("/")[:2])
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", self.hub.sha(repo))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def use_hub(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub ask this Hub, with a cache of its own."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A Hub for as long as the block runs."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
