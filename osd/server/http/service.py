"""The state behind the API's routes: facts about the model, the engine's client, keys, counters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from osd.chat_template import ChatTemplate
from osd.engine.detokenizer import Detokenizer
from osd.server.core.client import EngineClient
from osd.server.http.answer_parts import TokenText
from osd.server.http.keys import KeyRing
from osd.server.http.tool_calls import detect
from osd.server.metrics.server import Meters
from storage.records import now
from storage.settings import Settings


class Facts(NamedTuple):
    """Facts about the served model."""

    model: str
    """The name that clients ask for."""
    limit: int
    """Maximum tokens of a prompt and its answer."""
    vocab_size: int
    eos_ids: tuple[int, ...]
    gamma_max: int
    chat_template: str | None
    """The chat template that replaces the tokenizer's own; None keeps that."""
    temperature: float
    """The temperature of requests that do not say."""
    max_new_tokens: int | None
    """New tokens of a request at most; None: as many as there is room for."""
    stops: tuple[str, ...]
    """Strings that end every text."""
    apart: bool = False
    """Whether answers do not go on from their prompts, as an encoder-decoder's."""


@dataclass(slots=True)
class Service:
    """The state that the API's requests share."""

    facts: Facts
    settings: Settings
    client: EngineClient
    ring: KeyRing
    meters: Meters
    tokenizer: Any
    measure: Callable[[], Awaitable[bytes]]
    """Produces the body of GET /metrics."""
    model: str = field(init=False)
    """The name that clients ask for."""
    limit: int = field(init=False)
    """Tokens of a row."""
    vocab_size: int = field(init=False)
    detokenizer: Detokenizer = field(init=False)
    token_text: TokenText = field(init=False)
    template: ChatTemplate = field(init=False)
    tool_call_parser: str | None = field(init=False)
    """The form in which the model writes calls; None: it is not known."""
    started: float = field(default_factory=now)
    ready: bool = True
    """False while it drains."""

    def turn(self, ready: bool) -> None:
        """Take requests, or refuse them from now on."""
        self.ready = ready

    def __post_init__(self) -> None:
        self.model, self.limit, self.vocab_size = self.facts.model, self.facts.limit, self.facts.vocab_size
        self.detokenizer = Detokenizer(self.tokenizer, apart=self.facts.apart)
        self.token_text = TokenText(self.detokenizer)
        self.template = ChatTemplate(self.tokenizer, self.facts.chat_template)
        wanted = self.settings.server
        self.tool_call_parser = wanted.tool_call_parser or detect(self.template, self.tokenizer.all_special_tokens)
