"""Runs a plan, unit by unit; what was measured stays in a file, and the same command goes on after it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from osd.bench.harness.folder import RunFolder
from osd.bench.trees.corpora import Knowledge, Report
from osd.bench.trees.decoding import Turn, decoder_of
from osd.bench.trees.methods import ALONE
from osd.bench.trees.plan import Plan, Unit
from osd.models.pair import Pair
from storage.settings import Settings

MEASURED = "measured.jsonl"
BIN = 64
"""Tokens of context that are counted together."""

Line = dict[str, Any]
"""A unit, and by method what was measured."""


@dataclass
class Figures:
    """What one method did in one unit."""

    rates: list[float] = field(default_factory=list)
    """Tokens a second, a prompt."""
    lengths: list[float] = field(default_factory=list)
    """Tokens a target pass, a prompt."""
    tokens: int = 0
    passes: int = 0
    differing: int = 0
    """Texts that are not the target's own."""
    bins: dict[int, list[int]] = field(default_factory=dict)
    """By length of context ÷ BIN: tokens, passes."""

    def add(self, turn: Turn) -> None:
        """A prompt more."""
        tokens = sum(len(text.tokens) for text in turn.texts)
        passes = sum(len(text.passes) for text in turn.texts)
        self.rates.append(round(tokens / turn.seconds, 2))
        self.lengths.append(round(tokens / passes, 4))
        self.tokens, self.passes = self.tokens + tokens, self.passes + passes
        for text in turn.texts:
            for length, brought in text.passes:
                kept = self.bins.setdefault(length // BIN, [0, 0])
                kept[0], kept[1] = kept[0] + brought, kept[1] + 1


class Runner:
    """Measures what is not in the folder yet."""

    def __init__(self, plan: Plan, pair: Pair, settings: Settings, known: Knowledge, folder: Path) -> None:
        """Raises BadSetting for a folder of another plan, StoreWriteFailed."""
        self.plan, self.pair = plan, pair
        facts = json.loads(json.dumps(plan.as_json()))
        self._folder: RunFolder[Line] = RunFolder(folder, facts, MEASURED, json.loads, json.dumps)
        self.settings = settings.changed(
            serve={"max_batch": 1}, drafters={"tree_nodes": plan.nodes},
            gamma={"max": plan.depth, "initial": plan.depth},
        )  # fmt: skip
        self.known = known
        self._parts = {1.0: known}
        self.lines = {json.dumps(line["unit"], sort_keys=True): line for line in self._folder.finished}

    def run(self, told: Report) -> list[Line]:
        """All units, those that were measured before among them. Work is counted in texts."""
        units = list(self.plan.units())
        total, done = sum(self._texts(unit) for unit in units), 0
        for unit in units:
            key = json.dumps(asdict(unit), sort_keys=True)
            if key not in self.lines:
                self.lines[key] = self._measure(unit, partial(_further, told, done, total, str(unit)))
                self._folder.add(self.lines[key])
            done += self._texts(unit)
            told(done, total, str(unit))
        return [self.lines[json.dumps(asdict(unit), sort_keys=True)] for unit in units]

    def _texts(self, unit: Unit) -> int:
        return len(unit.methods) * len(self.plan.data_sets[unit.data_set])

    def _measure(self, unit: Unit, told: Callable[[int], None]) -> Line:
        if unit.share not in self._parts:
            self._parts[unit.share] = self.known.part(unit.share)
        known = self._parts[unit.share]
        settings = self.settings if unit.paced else self.settings.changed(gamma={"rule": "fixed"})
        ways = {m.name: decoder_of(m, self.pair, settings, known, self.plan.new_tokens) for m in unit.chosen}
        figures = {name: Figures() for name in ways}
        chance = random.Random(0)
        for number, prompt in enumerate(self.plan.data_sets[unit.data_set]):
            order = chance.sample(list(ways), len(ways))
            found = {name: ways[name]([prompt], unit.sampling(number)) for name in order}
            self._add(found, figures)
            told((number + 1) * len(ways))
        return {"unit": asdict(unit), "methods": {name: vars(own) for name, own in figures.items()}}

    def _add(self, found: dict[str, Turn], figures: dict[str, Figures]) -> None:
        own = found.get(ALONE.name)
        for name, turn in found.items():
            figures[name].add(turn)
            figures[name].differing += own is not None and turn.texts[0].tokens != own.texts[0].tokens


def _further(told: Report, done: int, total: int, name: str, more: int) -> None:
    told(done + more, total, name)
