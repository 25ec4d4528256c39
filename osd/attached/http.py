"""An engine that is reached over HTTP: what its clients share."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from osd.attached.base import EngineError, EngineUnreachable, EngineUnsuited
from storage.errors import BadInput

PATIENCE = 30.0
"""Seconds until an engine must have answered; loading a large draft takes some."""


class HttpEngine:
    """An engine at a URL."""

    def __init__(self, url: str, headers: dict[str, str], api_key: str | None) -> None:
        """``headers`` go with every request, ``api_key`` as a bearer token. Raises BadInput."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput(reason=f"{url!r} is no URL of an engine; give one as http://HOST:PORT.")
        self.url = url.rstrip("/")
        self._name = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        self._headers = {**headers, "Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    @property
    def name(self) -> str:
        """Return the host and port by which it is reached."""
        return self._name

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        try:
            return json.loads(self._fetch(method, path, body))
        except ValueError:
            reason = f"what it says at {path} is no JSON; is something else at this URL?"
            raise EngineUnsuited(engine=self.name, reason=reason) from None

    def _fetch(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error.code, error.read(4096).decode(errors="replace"), path) from None
        except (OSError, ValueError, HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            raise EngineUnreachable(engine=self.name, reason=reason) from None

    def _refusal(self, status: int, said: str, path: str) -> EngineError:
        """Return the error that an HTTP error means."""
        return EngineUnreachable(engine=self.name, reason=f"it says {status}: {detail(said)}")


def detail(said: str) -> str:
    """Return the sentence in an error's body: FastAPI's, OpenAI's, SGLang's, or the body itself."""
    try:
        found = json.loads(said)
        sentence = found.get("detail") or found.get("message") or found.get("error", {}).get("message") or said
        return sentence if isinstance(sentence, str) else json.dumps(sentence)
    except (ValueError, AttributeError):
        return said[:200] or "without a reason"
