"""What the routes stand on: the engine and its thread, the store, the keys, the counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from osd.engine import Engine
from osd.fleet.seat import Seat
from osd.server.engine_thread import EngineThread
from osd.server.meters import Meters
from osd.server.ring import KeyRing
from osd.server.token_text import TokenText
from storage.errors import PairError
from storage.records import now
from storage.settings import Settings
from storage.store import Store


@dataclass(slots=True)
class Service:
    """Everything that one server process shares among its requests."""

    engine: Engine
    settings: Settings
    store: Store
    thread: EngineThread
    ring: KeyRing
    meters: Meters
    chat_template: str | None
    seat: Seat | None = None
    """Its place among the processes behind the port; None where it is alone."""
    tokenizer: Any = field(init=False)
    token_text: TokenText = field(init=False)
    model: str = field(init=False)
    """The name that clients ask for."""
    started: float = field(default_factory=now)
    ready: bool = True
    """False while it drains."""

    def __post_init__(self) -> None:
        self.tokenizer = self.engine.pair.tokenizer
        if self.tokenizer is None:
            raise PairError(reason="The target's folder has no tokenizer, and a server is asked in text. Add one.")
        self.token_text = TokenText(self.tokenizer)
        self.model = self.settings.server.model or PurePath(self.engine.pair.target.name).name
