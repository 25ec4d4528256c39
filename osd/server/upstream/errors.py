"""Why a call got no answer from a replica."""

from __future__ import annotations

import aiohttp

from osd.server.errors import SERVER, ApiError


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
    def of(cls, error: Exception, url: str) -> RequestFailed:
        """Say what a failure of the connection means."""
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return cls("unreachable", f"{url} does not answer. Is it running, and reached by that URL?")
        if isinstance(error, aiohttp.ClientConnectionError | OSError):
            return cls("disconnected", f"{url} ended the connection before it answered. Its own log may say why.")
        trouble = f"{url} answers what is not HTTP, or breaks off ({type(error).__name__})"
        return cls("garbage", f"{trouble}. Is it a server with OpenAI's API?")
