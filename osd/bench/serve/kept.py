"""What a run of ``osd bench serve`` keeps in its folder, turn after turn, so that it can go on where it stopped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osd.bench.harness.folder import RunFolder
from osd.bench.serve.client import Reply
from osd.bench.serve.load import Load
from osd.bench.serve.plan import ServePlan

LOG = "turns.jsonl"
DIGITS = 5
"""Digits of seconds."""


@dataclass(slots=True)
class ServeTurn:
    """Every arm's load, side by side."""

    level: int
    """Clients."""
    loads: dict[str, Load]
    """By arm, the engine alone among them where it took part."""
    published: int
    """Versions that were made current from the run's beginning on."""
    served: int
    """Those of them that an answer named."""


def folder_of(path: Path, plan: ServePlan, about: dict[str, Any]) -> RunFolder[ServeTurn]:
    """``about``: what else must be the same for the run to go on. Raises BadSetting, StoreWriteFailed."""
    return RunFolder(path, plan.facts() | about, LOG, turn_of, line_of)


def line_of(turn: ServeTurn) -> str:
    """A line of the log."""
    loads = {arm: _plain(load) for arm, load in turn.loads.items()}
    values = {"level": turn.level, "published": turn.published, "served": turn.served, "loads": loads}
    return json.dumps(values, separators=(",", ":"))


def turn_of(line: str) -> ServeTurn:
    """The other way. Raises ValueError, KeyError, TypeError or AttributeError for something else."""
    values = json.loads(line)
    loads = {arm: _load_of(load) for arm, load in values["loads"].items()}
    return ServeTurn(int(values["level"]), loads, int(values["published"]), int(values["served"]))


def _plain(load: Load) -> dict[str, Any]:
    replies = [
        [reply.tokens, reply.version, *(round(at - reply.begun, DIGITS) for at in reply.times)]
        for reply in load.replies
    ]
    return {"tokens": load.tokens, "seconds": load.seconds, "errors": load.errors, "replies": replies}


def _load_of(values: dict[str, Any]) -> Load:
    """Its answers began at 0 each: only what lies between their events is told."""
    replies = [Reply(0.0, list(times), tokens, version) for tokens, version, *times in values["replies"]]
    return Load(replies, list(values["errors"]), float(values["tokens"]), float(values["seconds"]))
