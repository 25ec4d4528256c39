"""One call: whose it is, which route it takes, and what of it is passed on to a replica.

What of a replica can be reached through the proxy is listed here, and nothing else: its own administration (vLLM's
/v1/osd, /collective_rpc, /pause, /v1/load_lora_adapter, /server_info, …) is not, so that neither it nor what later
releases add is open to whoever may ask for text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request as HttpRequest

from osd.attached.forwarder import MADE_ANEW
from osd.server.errors import ApiError
from osd.server.http.keys import Caller
from osd.server.http.protocol import OsdFields, osd_fields
from osd.server.upstream.host import UpstreamHost
from osd.server.upstream.replicas import Replica
from router.base import Decision
from storage.records import Request

READ_TEXT = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
"""Routes that generate: their prompt is routed by, and they may stream."""
OTHERS = (
    "/v1/chat/completions/batch", "/v1/messages/count_tokens", "/v1/embeddings", "/v2/embed", "/pooling", "/classify",
    "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/generative_scoring", "/inference/v1/generate",
    "/tokenize", "/detokenize",
)  # fmt: skip
"""What vLLM offers beyond: any replica answers."""
SCOPES = dict.fromkeys(("/v1/", *(path for path in OTHERS if not path.startswith("/v1/"))), "infer") | {
    "/metrics": "metrics"
}
"""Beginnings of paths, and the scope that a key needs for them."""
COUNTED = ("/v1/chat/completions", "/v1/completions")
"""Routes whose streams give their usage where `stream_options` ask for it."""
LONG_TEXT = 16_384
"""Characters of a prompt beyond which its route is found on a thread, so that nobody waits for it."""
OURS = MADE_ANEW | {
    "expect", "authorization", "x-api-key", "cookie", "forwarded", "x-real-ip", "x-osd-token", "x-osd-route",
    "x-osd-learn", "x-request-id",
}  # fmt: skip
"""Headers of clients that are not passed on: of the connection, secrets, and those that the proxy says itself."""
FOREIGN = ("proxy-", "x-forwarded-")
REPLICAS_LACK = ("gamma", "metrics")
"""osd's fields that only an `osd serve` knows."""


@dataclass(slots=True)
class UpstreamCall:
    """A call that a replica is to answer."""

    path: str
    query: str
    body: bytes
    headers: list[tuple[str, str]]
    """The client's, those that are passed on."""
    caller: Caller
    id: str
    asked: dict[str, Any] | None = None
    """The body, where it is one that generates."""
    fields: OsdFields = field(default_factory=OsdFields)
    decision: Decision | None = None
    """Its route; None where any replica will do."""
    learn: bool = True
    """Whether it may be kept for learning."""
    seconds: float | None = None
    """Seconds until its deadline."""
    hides_usage: bool = False
    """Whether the usage of its stream is asked for by the proxy alone, for the key's limit."""

    @property
    def drafts(self) -> Sequence[str] | None:
        """The drafts that suit it; None where all do."""
        return self.decision.route.drafts if self.decision else None

    def body_for(self, replica: Replica) -> bytes:
        """Return the body that a replica gets: the client's own bytes, unless something of it is the proxy's to say.
        Raises ApiError for what this replica does not know."""
        if self.asked is None:
            return self.body
        changed = dict(self.asked)
        if not replica.own and "osd" in changed:
            if lacks := next((name for name in REPLICAS_LACK if getattr(self.fields, name) is not None), None):
                reason = f"osd.{lacks}: the replicas here are not osd's and do not know it; leave it out"
                raise ApiError(reason=reason, param=f"osd.{lacks}", code="unsupported_parameter")
            del changed["osd"]
        if replica.own and not self.learn and "osd" in changed:
            changed["osd"] = {**(changed["osd"] or {}), "learn": False}
        if self.hides_usage:
            changed["stream_options"] = {**(changed.get("stream_options") or {}), "include_usage": True}
        return self.body if changed == self.asked else json.dumps(changed).encode()

    def headers_for(self, tenant_header: str, own: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the headers that a replica gets. ``own``: the proxy's, its API key perhaps. What says the tenant and
        the route is the proxy's word, never the client's."""
        passed = [(name, value) for name, value in self.headers if name != tenant_header.lower()]
        said = {tenant_header: self.caller.tenant, "X-Request-Id": self.id, **own}
        if self.decision:
            said["X-OSD-Route"] = self.decision.name
        if not self.learn:
            said["X-OSD-Learn"] = "false"
        if self.fields.language and not any(name == "x-osd-language" for name, _ in passed):
            said["X-OSD-Language"] = self.fields.language
        return passed + [(name, value) for name, value in said.items() if can_be_header(value)]


def can_be_header(value: str) -> bool:
    """Return whether a header can say it."""
    return value.isascii() and value.isprintable()


async def read_call(host: UpstreamHost, http: HttpRequest, path: str) -> UpstreamCall:
    """Read a call and find its route. Raises ApiError, UnknownRoute."""
    caller: Caller = http.state.caller
    headers = [
        (name, value) for name, value in ((n.lower(), v) for n, v in http.headers.items())
        if name not in OURS and not name.startswith(FOREIGN)
    ]  # fmt: skip
    call = UpstreamCall(path, http.url.query, await http.body(), headers, caller, http.state.id)
    if path in READ_TEXT:
        call.asked = _object(call.body)
    call.fields = osd_fields(_own_fields(call.asked or {}), http.headers)
    call.seconds = _seconds(host.settings.server.deadline_ms, call.fields.deadline_ms)
    call.learn = host.may_learn(caller.tenant) and call.fields.learn is not False
    if call.asked is None:
        return call
    call.hides_usage = "tokens" in caller.buckets and path in COUNTED and _hides_usage(call.asked)
    request = Request(
        (), route=call.fields.route, tenant=caller.tenant, model=str(call.asked.get("model") or ""),
        language=call.fields.language, text=prompt_text(call.asked),
    )  # fmt: skip
    long = len(request.text or "") > LONG_TEXT
    call.decision = await asyncio.to_thread(host.router.route, request) if long else host.router.route(request)
    return call


def _object(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(reason=f"The body is not JSON: {error}.", code="invalid_json") from None
    if not isinstance(asked, dict):
        raise ApiError(reason="body: give a JSON object", code="invalid_value")
    return asked


def _own_fields(asked: Mapping[str, Any]) -> OsdFields:
    try:
        return OsdFields.model_validate(asked.get("osd") or {})
    except ValidationError as error:
        problem = error.errors()[0]
        param = ".".join(["osd", *map(str, problem["loc"])])
        raise ApiError(reason=f"{param}: {problem['msg']}", param=param, code="invalid_value") from None


def _seconds(ours: int | None, theirs: int | None) -> float | None:
    given = [ms for ms in (ours, theirs) if ms is not None]
    return min(given) / 1000 if given else None


def _hides_usage(asked: Mapping[str, Any]) -> bool:
    """Return whether a body asks for a stream without its usage."""
    options = asked.get("stream_options")
    has_usage = isinstance(options, dict) and options.get("include_usage")
    return bool(asked.get("stream")) and not has_usage and (options is None or isinstance(options, dict))


def prompt_text(asked: Mapping[str, Any]) -> str | None:
    """Return what a prompt is routed by: the newest message of the user, or the prompt, or the first of several; None
    where there is no text (token ids)."""
    messages = asked.get("messages", asked.get("input"))
    if isinstance(messages, list):
        parts = [one for one in messages if isinstance(one, dict)]
        said = [one for one in parts if one.get("role") == "user"] or parts[-1:]
        return _text(said[-1].get("content")) if said else None
    prompt = asked.get("prompt", messages)
    if isinstance(prompt, list) and prompt:
        prompt = prompt[0]
    return prompt if isinstance(prompt, str) else None


def _text(content: Any) -> str | None:
    if isinstance(content, list):
        found = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        return "".join(found) or None
    return content if isinstance(content, str) else None
