"""What the parent tells a process that it starts, as JSON on the command line. No secret is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Order:
    """What `osd serve` was asked for; the environment and the working directory are inherited."""

    config: Path | None
    changes: Mapping[str, Mapping[str, Any]]
    """Section -> {key: value} of the settings that options gave."""
    target: str | None
    draft: str | None
    required: bool
    """Whether keys are needed where there are any."""


@dataclass(frozen=True, slots=True)
class Posting:
    """One process's part."""

    seat: int
    seats: int
    folder: str
    """What the processes share."""
    api: int
    """The listening sockets, by file descriptor."""
    admin: int
    replaces: str | None
    """The worker whose place it takes."""


def packed(order: Order, posting: Posting) -> str:
    """Both as text."""
    said = asdict(order) | {"config": str(order.config.absolute()) if order.config else None}
    return json.dumps({"order": said, "posting": asdict(posting)})


def unpacked(text: str) -> tuple[Order, Posting]:
    """What :func:`packed` made."""
    said = json.loads(text)
    order = said["order"]
    config = Path(order["config"]) if order["config"] else None
    return Order(**{**order, "config": config}), Posting(**said["posting"])
