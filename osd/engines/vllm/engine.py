"""A running vLLM with osd's plugin, over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from osd.engines.base import EngineFacts, EngineRefused, EngineUnreachable, EngineUnsuited, RankVersion, Schedule
from osd.models.model_digest import digest_of
from storage.errors import BadInput

PATIENCE = 30.0
"""Seconds until an engine must have answered; loading a large draft takes some."""
COUNTERS = "vllm:spec_decode_num_"
SINGLE = "draft_model"
"""The method whose drafts osd trains today."""


class VllmEngine:
    """A vLLM at a URL."""

    def __init__(self, url: str, token: str, api_key: str | None = None) -> None:
        """``token`` is the plugin's (OSD_VLLM_TOKEN), ``api_key`` vLLM's own, where it has one. Raises BadInput."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput(reason=f"{url!r} is no URL of an engine; give one as http://HOST:PORT.")
        self.url, self._token, self._api_key = url.rstrip("/"), token, api_key
        self._name = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"

    @property
    def name(self) -> str:
        """Return the host and port by which it is reached."""
        return self._name

    def probe(self) -> EngineFacts:
        """Return what it is. Raises EngineUnreachable, and EngineUnsuited with what to do about it."""
        found = self._ask("GET", "/v1/osd/info")
        if found["speculation"] is None:
            raise EngineUnsuited(
                engine=self.name, reason="it runs without speculation; start it with --speculative-config"
            )
        if found["speculation"]["method"] != SINGLE:
            reason = f"it drafts by {found['speculation']['method']!r}, and osd trains drafts of the method {SINGLE!r}"
            raise EngineUnsuited(engine=self.name, reason=reason)
        if found["logprobs_mode"] != "raw_logprobs":
            reason = f"its log-probabilities are {found['logprobs_mode']}; start it with --logprobs-mode raw_logprobs"
            raise EngineUnsuited(engine=self.name, reason=reason)
        if not found["target"]["files"]:
            reason = f"the files of {found['target']['name']} are not on its machine, so the target cannot be told"
            raise EngineUnsuited(engine=self.name, reason=reason)
        return _facts(found)

    def served(self) -> Sequence[RankVersion]:
        """Return what each rank drafts with."""
        return [_rank(worker) for worker in self._ask("GET", "/v1/osd/version")]

    def publish(self, folder: Path, sha256: str, version: str) -> Sequence[RankVersion]:
        """Load a folder as the draft on every rank, or on none."""
        body = {"folder": str(folder.resolve()), "sha256": sha256, "version": version}
        return [_rank(worker) for worker in self._ask("POST", "/v1/osd/publish", body)["workers"]]

    def set_gamma(self, schedule: Schedule) -> None:
        """Change draft lengths while it runs."""
        self._ask("PUT", "/v1/osd/gamma", {"schedule": [list(part) for part in schedule]})

    def counters(self) -> Mapping[str, float]:
        """Return its counters of speculation."""
        text = self._fetch("GET", "/metrics").decode()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples if family.name.startswith(COUNTERS) else ():
                if sample.name.endswith("_total"):
                    place = f":{sample.labels['position']}" if "position" in sample.labels else ""
                    name = sample.name.removesuffix("_total") + place
                    found[name] = found.get(name, 0.0) + sample.value
        return found

    def complete(self, tokens: Sequence[int], most: int) -> Mapping[str, Any]:
        """Return the answer to a greedy completion of token ids, with the acceptance of each step."""
        body = {"prompt": list(tokens), "max_tokens": most, "temperature": 0, "return_token_ids": True}
        found: Mapping[str, Any] = self._ask("POST", "/v1/completions", body)
        return found

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        try:
            return json.loads(self._fetch(method, path, body))
        except ValueError:
            raise EngineUnreachable(engine=self.name, reason=f"what it says at {path} is no JSON") from None

    def _fetch(self, method: str, path: str, body: Any = None) -> bytes:
        headers = {"X-OSD-Token": self._token, "Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise self._refusal(error, path) from None
        except (OSError, ValueError) as error:
            raise EngineUnreachable(engine=self.name, reason=str(getattr(error, "reason", error))) from None

    def _refusal(self, error: urllib.error.HTTPError, path: str) -> Exception:
        said = error.read(4096).decode(errors="replace")
        if error.code == 404 and path.startswith("/v1/osd/"):
            reason = "it has no osd plugin; install osd-llm-vllm beside vLLM and start it with VLLM_PLUGINS=osd"
            return EngineUnsuited(engine=self.name, reason=reason)
        if error.code == 401:
            reason = _detail(said) if "X-OSD-Token" in said else "it wants its API key (attach.api_key)"
            return EngineUnsuited(engine=self.name, reason=reason)
        if error.code in (403, 409):
            return EngineUnsuited(engine=self.name, reason=_detail(said))
        if error.code == 422:
            return EngineRefused(engine=self.name, reason=_detail(said))
        return EngineUnreachable(engine=self.name, reason=f"it says {error.code}: {_detail(said)}")


def _detail(said: str) -> str:
    """Return the sentence in an error's body: FastAPI's, OpenAI's, or the body itself."""
    try:
        found = json.loads(said)
        detail = found.get("detail") or found.get("error", {}).get("message") or said
        return detail if isinstance(detail, str) else json.dumps(detail)
    except (ValueError, AttributeError):
        return said[:200] or "without a reason"


def _rank(worker: Mapping[str, Any]) -> RankVersion:
    return RankVersion(worker["rank"], worker["process"], worker["version"], worker["sha256"])


def _facts(found: Mapping[str, Any]) -> EngineFacts:
    speculation, target = found["speculation"], found["target"]
    return EngineFacts(
        found["engine"], "vllm", found["vllm"], target["name"], digest_of(target["files"]), speculation["method"],
        speculation["draft"], speculation["num_speculative_tokens"], speculation["draft_sample_method"] == "greedy",
        found["top_k"], found["max_num_seqs"], found["live_gamma"], tuple(map(_rank, found["workers"])),
        found["harvest"],
    )  # fmt: skip
