"""Passing calls on: a replica is chosen, another one takes over before the first byte, streams pass as they come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send
from yarl import URL

from osd.attached.forwarder import HOP_BY_HOP, while_client_waits
from osd.server.errors import SERVER, ApiError, DeadlineExceeded, Draining
from osd.server.upstream.call import UpstreamCall, can_be_header, read_call
from osd.server.upstream.host import UpstreamHost
from osd.server.upstream.replicas import Replica
from osd.server.upstream.tally import StreamTally, UsageCounts, counts_in, parsed

log = logging.getLogger(__name__)

TRIES = 4
"""Requests to replicas that one call may become."""
ELSEWHERE = (502, 503, 504)
"""Statuses with which a replica says that another one may do better."""
BYTES = "application/octet-stream"
"""What embeddings may be answered as; every other answer is JSON."""
KEPT_BACK = HOP_BY_HOP | {
    "content-length", "server", "date", "set-cookie", "x-request-id", "www-authenticate", "location",
}  # fmt: skip
"""Headers of replicas that clients do not get: of the connection, and those that the proxy says itself."""


class NoReplica(ApiError):
    """No replica takes requests now; try again later."""

    status, type, code = 503, SERVER, "no_replica"


class ReplicaFailed(ApiError):
    """The replica that was asked did not finish its answer; try again."""

    status, type, code = 502, SERVER, "replica_failed"


class RequestFailed(Exception):
    """One request to one replica brought no answer. Another one may be asked: the client has got nothing yet."""

    def __init__(self, reason: str, trouble: str) -> None:
        """``reason`` is a word for counters, ``trouble`` a sentence for people."""
        super().__init__(trouble)
        self.reason, self.trouble = reason, trouble

    @classmethod
    def from_error(cls, error: Exception, url: str) -> RequestFailed:
        """Say what a failure of the connection means."""
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return cls("unreachable", f"{url} does not answer. Is it running, and reached by that URL?")
        if isinstance(error, aiohttp.ClientConnectionError | OSError):
            return cls("disconnected", f"{url} ended the connection before it answered. Its own log may say why.")
        trouble = f"{url} answers what is not HTTP, or breaks off ({type(error).__name__})"
        return cls("garbage", f"{trouble}. Is it a server with OpenAI's API?")


class Opened(NamedTuple):
    """An answer of a replica whose first bytes are there."""

    replica: Replica
    response: aiohttp.ClientResponse
    first: bytes
    """The first bytes of a stream; the whole of another answer."""
    said: Any
    """What another answer says in JSON."""
    stands_in: bool
    """Whether the replica has another draft than those of the route."""

    @property
    def streams(self) -> bool:
        """Whether it is a stream of events."""
        return _streams(self.response)


class Forward:
    """The ASGI application of one path."""

    def __init__(self, host: UpstreamHost, path: str) -> None:
        self.host, self.path = host, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call."""
        scope["route"] = self  # what the counters call it
        if not self.host.ready:
            raise Draining(retry_after=5)
        http = HttpRequest(scope, receive)
        call = await read_call(self.host, http, self.path)
        answer = Answering(self.host, call, send)
        self.host.calls += 1
        try:
            await answer.respond_in_time(receive)
        except ApiError as error:
            if not answer.started:
                raise
            await answer.end_with(error)
        finally:
            self.host.calls -= 1
            answer.account()


class Answering:
    """The answering of one call."""

    def __init__(self, host: UpstreamHost, call: UpstreamCall, send: Send) -> None:
        self.host, self.call, self._send = host, call, send
        self.tally = StreamTally(hides_usage=call.hides_usage)
        self.started = False
        """Whether the client has got its first bytes."""
        self._at = time.perf_counter()
        self._first: float | None = None
        self._counts: UsageCounts | None = None

    async def respond_in_time(self, receive: Receive) -> None:
        """Respond while the client waits, its key holds and the server runs, until the deadline. Raises ApiError."""
        every = min(1.0, self.host.settings.server.keys_poll_seconds)
        try:
            async with asyncio.timeout(self.call.seconds):
                await while_client_waits(self.respond(), receive, self._require_going_on, every)
        except TimeoutError:
            raise DeadlineExceeded() from None

    def _require_going_on(self) -> None:
        """Raise ApiError where its key was revoked, or the server stops."""
        if why := self.host.ended or self.host.ring.check(self.call.caller):
            raise why

    async def respond(self) -> None:
        """Find a replica that answers, and pass its answer on. Raises ApiError."""
        async with self._open() as opened:
            if opened.streams:
                await self._stream(opened)
            else:
                await self._whole(opened)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Opened]:
        """Ask replicas until one has sent its first bytes. Raises ApiError where none does."""
        pool, tried, again = self.host.pool, set[Replica](), set[Replica]()
        failed: ApiError = NoReplica(retry_after=self.host.retry_after)
        for number in range(TRIES):
            choice = pool.choose(self.call.drafts, tried)
            if choice is None:
                break
            pool.retries += number > 0
            replica = choice.replica
            replica.running += 1
            try:
                async with self._ask(replica) as (response, first, said):
                    if response.status in ELSEWHERE and pool.choose(self.call.drafts, {*tried, replica}):
                        tried.add(replica)
                        continue
                    if choice.stands_in and self.call.decision:
                        pool.stood_in[self.call.decision.name] += 1
                    yield Opened(replica, response, first, said, choice.stands_in)
                    return
            except RequestFailed as error:
                replica.has_failed(error.reason, error.trouble)
                log.warning("%s", error.trouble, extra={"action": "replica_failed", "request_id": self.call.id})
                if error.reason != "disconnected" or replica in again:
                    tried.add(replica)
                again.add(replica)  # a kept connection may have ended as it was taken up: it is asked once more
                failed = failed if error.reason == "unreachable" else ReplicaFailed()
            finally:
                replica.running -= 1
        raise failed

    @asynccontextmanager
    async def _ask(self, replica: Replica) -> AsyncIterator[tuple[aiohttp.ClientResponse, bytes, Any]]:
        """Send the request to a replica; yield its response with its first bytes, and what they say if they are its
        whole. Raises RequestFailed for what fails until then."""
        call, url = self.call, replica.at.url
        where = URL(f"{url}{call.path}?{call.query}" if call.query else url + call.path, encoded=True)
        headers = call.headers_for(self.host.settings.upstream.tenant_header, self.host.headers)
        body = call.body_for(replica) or None
        response: aiohttp.ClientResponse | None = None
        try:
            try:
                response = await self.host.client.request(
                    "POST", where, data=body, headers=headers, allow_redirects=False
                )
                first = await _first_bytes(response)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise RequestFailed.from_error(error, url) from None
            said = None if _streams(response) else parsed(first)
            _require_usable(response, first, said, url)
            replica.answered(response.status, whole=not _streams(response))
            yield response, first, said
        finally:
            if response is not None:
                response.close() if not response.content.at_eof() else response.release()

    async def _whole(self, opened: Opened) -> None:
        body = opened.first
        self._counts = counts_in(opened.said) if opened.response.status == 200 else None
        await self._start(opened, [("content-length", str(len(body)))])
        await self._send({"type": "http.response.body", "body": body})

    async def _stream(self, opened: Opened) -> None:
        """Pass a stream on chunk by chunk. Raises ReplicaFailed where it breaks off, or ends before it says so."""
        replica, content, chunk, how = opened.replica, opened.response.content, opened.first, "its end is missing"
        self._first = time.perf_counter() - self._at
        await self._start(opened, [])
        while chunk:
            if passed := self.tally.push(chunk):
                await self._send({"type": "http.response.body", "body": passed, "more_body": True})
            try:
                chunk = await content.readany()
            except (aiohttp.ClientError, OSError) as error:
                chunk, how = b"", type(error).__name__
        if not self.tally.ended:
            trouble = f"{replica.at.url} broke off a stream ({how}). Its own log may say why."
            replica.has_failed("broken", trouble)
            log.warning("%s", trouble, extra={"action": "replica_failed", "request_id": self.call.id})
            raise ReplicaFailed()
        replica.failures = 0
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, opened: Opened, more: list[tuple[str, str]]) -> None:
        theirs = [
            (name.lower(), value) for name, value in opened.response.headers.items()
            if name.lower() not in KEPT_BACK and not name.lower().startswith("access-control-")
        ]  # fmt: skip
        if self.call.decision and can_be_header(self.call.decision.name):
            theirs = [(name, value) for name, value in theirs if name != "x-osd-route"]
            more = [*more, ("x-osd-route", self.call.decision.name)]
            if opened.stands_in and can_be_header(opened.replica.at.draft):
                more.append(("x-osd-stand-in", opened.replica.at.draft))
        headers = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in theirs + more]
        self.started = True
        await self._send({"type": "http.response.start", "status": opened.response.status, "headers": headers})

    async def end_with(self, error: ApiError) -> None:
        """End a stream with an event that says why; what has begun has its status already."""
        gap = "" if self.tally.whole else "\n\n"
        await self._send({"type": "http.response.body", "body": (gap + error.event()).encode()})

    def account(self) -> None:
        """Charge what the call used, however it ended. A stream that was broken off is charged for its events, and for
        its prompt by a quarter of its bytes."""
        meters, counts = self.host.meters, self._counts or (self.tally.counts() if self._first is not None else None)
        if counts is not None:
            meters.tokens.labels("prompt").inc(counts.prompt)
            meters.tokens.labels("output").inc(counts.output)
        elif self._first is not None:
            counts = UsageCounts(len(self.call.body) // 4, self.tally.events)
        if counts is not None:
            self.call.caller.charge(counts.prompt + counts.output)
        if self._first is not None:
            meters.timed(first=self._first)


def _streams(response: aiohttp.ClientResponse) -> bool:
    return response.content_type == "text/event-stream" and response.status == 200


async def _first_bytes(response: aiohttp.ClientResponse) -> bytes:
    """Return the first bytes of a stream, the whole of another answer."""
    if _streams(response):
        return await response.content.readany()
    return await response.read()


def _require_usable(response: aiohttp.ClientResponse, first: bytes, said: Any, url: str) -> None:
    """Raise RequestFailed for an answer that no client should get: about the proxy's own key, a way elsewhere, nothing,
    or a success that is no whole JSON."""
    if response.status in (401, 403):
        raise RequestFailed(
            "refused", f"{url} refuses the proxy's API key, or wants one: name it with upstream.api_key."
        )
    if 300 <= response.status < 400:
        raise RequestFailed(
            "garbage", f"{url} sends requests elsewhere ({response.status}). Give the URL that answers."
        )
    lacks = not first if _streams(response) or response.content_type == BYTES else not isinstance(said, dict | list)
    if response.status < 300 and lacks:
        raise RequestFailed(
            "broken", f"{url} answers {response.status} with what is no whole answer. Its own log may say why."
        )
