"""What osd asks of a serving engine: to say what it is, to take a draft version and tell which one it drafts with; and
what its clients share, which reach it over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from storage.errors import BadInput, OsdError

T = TypeVar("T")
PATIENCE, WORK_PATIENCE = 30.0, 300.0
"""Seconds until an engine must have said something (GET); until it must have done what takes it a while on a busy
machine: completed a text, loaded a draft."""
PROXIED, SGLANG = "vllm-proxied", "sglang"
"""Kinds of engines, beside vllm."""


class EngineError(OsdError):
    """{engine}: {reason}"""


class EngineUnreachable(EngineError):
    """{engine} does not answer ({reason}). Is it running, and reached from this machine by that URL?"""


class EngineUnsuited(EngineError):
    """{engine} is not set up for this: {reason}"""


class EngineRefused(EngineError):
    """{engine} refused: {reason}"""


@dataclass(frozen=True, slots=True)
class RankVersion:
    """What one rank of an engine drafts with."""

    rank: int
    process: str
    """The identity of its process: another one means that it was started again, with the draft of its command line."""
    version: str | None
    """The version that was published to it; None while it has the draft of its command line."""
    sha256: str | None
    """Digest of its draft's weights; None where it has no draft."""
    folder: str | None = None
    """The folder that they were read from; None where it does not say."""
    target: str | None = None
    """State of the target's weights; None where it does not say."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a probe found."""

    name: str
    """Its name in the store, which it gives itself: OSD_VLLM_ENGINE, or its host and port."""
    kind: str
    """vllm, vllm-proxied (without the plugin, behind `osd attach --proxy`) or sglang."""
    version: str
    target: str
    """The target's folder or hub name, as the engine knows it."""
    digest: str
    """The target's digest, as :mod:`osd.models.model_digest` has it."""
    method: str
    """How it drafts: draft_model, eagle, …; empty where it runs without speculation."""
    draft: str
    """The draft of its command line, a folder or hub name."""
    gamma: int
    """num_speculative_tokens; 0 without speculation."""
    greedy_drafts: bool
    """Whether drafts are the draft's likeliest tokens, so that a refused token can be recovered."""
    top_k: int
    """How many of the target's likeliest tokens it hands over at each position."""
    max_num_seqs: int | None
    """Requests that it decodes together at most; None where it does not say."""
    live_gamma: bool
    """Whether draft lengths can be changed while it runs."""
    ranks: tuple[RankVersion, ...]
    harvest: Mapping[str, int]
    """Answers ``taken``, ``sent``, ``spooled``, ``dropped``, ``skipped``, ``failed`` since it was started."""
    plugin: str | None = None
    """Version of osd's plugin; None where it has none."""
    files: str | None = None
    """Digest of the target that it was started with, where its weights may be replaced in place."""
    first_state: str | None = None
    """State of the target's weights at its start, likewise."""
    placeholders: tuple[int, ...] = ()
    """Ids that stand for images, videos and sound in what the target reads."""

    def target_of(self, state: str | None) -> str:
        """Return the digest of the target in a state of its weights: that of its files, until they were replaced."""
        if self.files is None or state in (None, self.first_state):
            return self.files or self.digest
        return sha256(f"{self.files} {state}".encode()).hexdigest()

    @property
    def speculates(self) -> bool:
        """Whether it was started with a draft; one that was not is learned from all the same."""
        return bool(self.method)

    @property
    def serves(self) -> str | None:
        """Digest of the draft that all ranks have; None where they differ."""
        digests = {rank.sha256 for rank in self.ranks}
        return digests.pop() if len(digests) == 1 else None


@dataclass(frozen=True, slots=True)
class BatchGain:
    """What drafting gains in batches of about one size."""

    rows: int
    """Requests at most."""
    length: int
    """Tokens that are drafted."""
    best: int
    """The length that the rest is about: ``length``, or where nothing is drafted the one that would gain most."""
    gain: float
    """Tokens a second ÷ those without a draft."""
    error: float
    """Its standard error."""
    turns: int
    """Comparisons that its cost was found by."""
    break_even: float | None
    """Accepted ÷ drafted tokens from which it pays; None while its cost is not known."""
    awake: float = 1.0
    """Seconds of a step that drafts nothing ÷ those of one in which the draft rests; 1 while that is not known."""


@dataclass(frozen=True, slots=True)
class EngineGain:
    """What drafting gains on an engine, by its own measure on its traffic."""

    tokens_per_second: float | None
    gain: float | None
    """Tokens a second ÷ those without a draft, over all batches; None before anything was decoded."""
    error: float
    accepted: float | None
    """Accepted ÷ drafted tokens; None where nothing was drafted yet."""
    fixed: bool
    """Whether draft lengths are those that somebody set."""
    at: float
    batches: tuple[BatchGain, ...]
    seconds_per_token: float | None = None
    """A request's seconds per output token."""
    harvesting: float | None = None
    """Share of its time that harvesting takes; None where that is not known."""
    host: str | None = None
    """The machine that it runs on, and its ``cores``."""
    cores: int | None = None

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> EngineGain:
        """Read what an engine says, or what the store keeps of it. Raises TypeError, KeyError."""
        return cls(**{**said, "batches": tuple(BatchGain(**batch) for batch in said["batches"])})


class ServingEngine:
    """An engine at a URL that osd can probe and publish to."""

    def __init__(self, url: str, headers: dict[str, str], api_key: str | None) -> None:
        """``headers`` go with every request, ``api_key`` as a bearer token. Raises BadInput."""
        self.url, self._name = url.rstrip("/"), host_and_port(url)
        self._headers = {**headers, "Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    @property
    def name(self) -> str:
        """Return the host and port by which it is reached."""
        return self._name

    def probe(self) -> EngineFacts:
        """Return what it is. Raises EngineUnreachable, and EngineUnsuited with what to do about it."""
        raise NotImplementedError

    def served(self) -> Sequence[RankVersion]:
        """Return what each rank drafts with. Raises EngineUnreachable."""
        raise NotImplementedError

    def gain(self) -> EngineGain | None:
        """Return what drafting gains; None where it does not measure that. Raises EngineUnreachable."""
        return None

    def harvest(self) -> Mapping[str, int]:
        """Return what became of its answers, as :attr:`EngineFacts.harvest`; nothing where it does not say. Raises
        EngineUnreachable."""
        return {}

    def publish(self, folder: Path, sha256: str, version: str) -> Sequence[RankVersion]:
        """Load a folder as the draft on every rank, or on none; return what each has then. Raises EngineRefused for a
        draft that is no good, EngineUnsuited where it does not see the folder, EngineUnreachable."""
        raise NotImplementedError

    def _unsuited(self, reason: str) -> EngineUnsuited:
        """Return the error of an engine that is not set up for what is asked of it."""
        return EngineUnsuited(engine=self.name, reason=reason)

    def _read(self, path: str, read: Callable[[Any], T], said: Any) -> T:
        """Return what is read of an answer. Raises EngineUnsuited where it is none that this engine gives."""
        try:
            return read(said)
        except OsdError:
            raise
        except Exception:  # whatever it says
            reason = f"what it says at {path} is none of its answers; is something else at this URL, or another release"
            raise self._unsuited(f"{reason} of it or of its plugin?") from None

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        try:
            return json.loads(self._fetch(method, path, body))
        except (ValueError, RecursionError):
            raise self._unsuited(f"what it says at {path} is no JSON; is something else at this URL?") from None

    def _fetch(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers, method=method)
        patience = PATIENCE if method == "GET" else WORK_PATIENCE
        try:
            with urllib.request.urlopen(request, timeout=patience) as answer:
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


def host_and_port(url: str) -> str:
    """Return the host and port of a URL, by which an engine is named that has no other name. Raises BadInput."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(reason=f"{url!r} is no URL of an engine; give one as http://HOST:PORT.")
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def detail(said: str) -> str:
    """Return the sentence in an error's body: FastAPI's, OpenAI's, SGLang's, or the body itself."""
    try:
        found = json.loads(said)
        sentence = found.get("detail") or found.get("message") or found.get("error", {}).get("message") or said
        return sentence if isinstance(sentence, str) else json.dumps(sentence)
    except (ValueError, AttributeError, RecursionError):
        return said[:200] or "without a reason"
