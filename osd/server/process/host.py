"""The state behind the admin port's routes: the engine and its thread, the store, the keys, the counters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from osd.engine.engine import Engine
from osd.server.http.chat import read_template
from osd.server.http.ring import KeyRing
from osd.server.meters import Meters
from osd.server.process.engine_thread import EngineThread
from osd.server.process.service import Facts
from osd.server.workers.peers import Peers
from storage.errors import PairError
from storage.records import now
from storage.settings import Settings
from storage.store import Store


@dataclass(slots=True)
class Host:
    """The state of the process that decodes. Raises BadSetting and PairError."""

    engine: Engine
    settings: Settings
    store: Store
    thread: EngineThread
    ring: KeyRing
    meters: Meters
    peers: Peers | None = None
    """The other processes behind the port; None where it is alone."""
    measure: Callable[[], Awaitable[bytes]] = field(init=False)
    """Produces the body of GET /metrics."""
    tokenizer: Any = field(init=False)
    facts: Facts = field(init=False)
    started: float = field(default_factory=now)
    ready: bool = True
    """False while it drains."""

    def __post_init__(self) -> None:
        pair, server, own = self.engine.pair, self.settings.server, self.engine.admission.generation
        self.tokenizer = pair.tokenizer
        if self.tokenizer is None:
            raise PairError(reason="The target's folder has no tokenizer, and a server is asked in text. Add one.")
        self.facts = Facts(
            server.model or PurePath(pair.target.name).name, self.engine.limit, pair.vocab_size,
            tuple(sorted(pair.eos_ids)), self.engine.settings.gamma.max,
            read_template(server.chat_template, self.tokenizer), own.temperature, own.max_new_tokens, own.stops,
            bool(pair.target.start),
        )  # fmt: skip

    @property
    def model(self) -> str:
        """The name that clients ask for."""
        return self.facts.model
