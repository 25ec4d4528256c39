"""``osd bench decode``: tokens a second of osd, the target alone, and transformers' own ways, in one run.

Contenders take turns over the same chunks of prompts (A B C A B C …), so that what else the machine does
falls on all alike. A contender's figure is the median over its turns, with the spread beside it. A ratio is the
median of the ratios within a turn: a machine changes its speed from minute to minute by more than methods differ.
Every text is compared with the target's own greedy text.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from osd.bench.contenders import ASSISTED, Contender, Tokens, assisted_contender, osd_contender, plain_contender
from osd.bench.recording import RecordingCost, recording_cost
from osd.models.pair import Pair
from osd.models.target_only import has_draft
from storage.settings import Settings

Report = Callable[[int, int, str], None]
"""Turns done, turns in all, and what was just measured."""


@dataclass(slots=True)
class Measured:
    """The turns of one contender."""

    batch: int
    rates: list[float] = field(default_factory=list)
    """Tokens a second, a turn."""
    texts: dict[Tokens, list[int]] = field(default_factory=dict)

    def take_turn(self, contender: Contender, chunk: Sequence[Tokens]) -> None:
        """Decode a chunk of the prompts, timed."""
        begun = time.perf_counter()
        texts = contender.decode(chunk)
        self.rates.append(sum(map(len, texts)) / (time.perf_counter() - begun))
        self.texts |= dict(zip(chunk, texts, strict=True))

    @property
    def rate(self) -> float:
        """Median tokens a second."""
        return statistics.median(self.rates)

    def ratio(self, *others: Measured) -> float:
        """Median over the turns of these tokens a second ÷ those of the best of the others in the same turn."""
        bests: list[float] = [max(rates) for rates in zip(*(other.rates for other in others), strict=True)]
        return round(statistics.median(own / best for own, best in zip(self.rates, bests, strict=True)), 3)


def bench_decode(
    pair: Pair,
    prompts: Sequence[Tokens],
    settings: Settings,
    *,
    batches: Sequence[int] = (1, 8),
    new_tokens: int = 64,
    turns: int = 3,
    recorded: int = 300,
    report: Report = lambda done, total, name: None,
) -> dict[str, Any]:
    """Measure, and return the dictionary that the command prints as its last line.

    ``turns`` chunks of the prompts are each decoded by every contender; more turns, less noise. What recording costs is
    measured by itself, in so many pairs of shorter turns (0: not at all).
    """
    measured = _measure(_contenders(pair, settings, batches, new_tokens), prompts, turns, report)
    costs = {}
    for batch in batches if recorded else ():
        told = partial(_told, report, f"recording or not, batch {batch}")
        costs[str(batch)] = recording_cost(
            pair, prompts, settings, batch=batch, new_tokens=new_tokens, pairs=recorded, told=told
        )
    facts = {"prompts": len(prompts), "new_tokens": new_tokens, "turns": turns, "recorded": recorded}
    return _summary(measured, batches) | _recording(costs) | facts


def _told(report: Report, name: str, done: int, total: int) -> None:
    report(done, total, name)


def _recording(costs: dict[str, RecordingCost]) -> dict[str, Any]:
    by_batch = {batch: cost.as_dict() for batch, cost in costs.items()}
    names = next(iter(by_batch.values()), {})
    return {name: {batch: figures[name] for batch, figures in by_batch.items()} for name in names}


def _contenders(pair: Pair, settings: Settings, batches: Sequence[int], new_tokens: int) -> dict[str, Contender]:
    found: dict[str, Contender] = {}
    for batch in batches:
        own = settings.changed(serve={"max_batch": batch})
        alone = own.changed(gamma={"rule": "fixed", "initial": 0})
        found[f"osd@{batch}"] = osd_contender("osd", pair, own, new_tokens)
        found[f"target_alone@{batch}"] = osd_contender("target_alone", pair, alone, new_tokens)
        if has_draft(pair) and own.drafters.kind == "causal":
            blended = own.changed(drafters={"kind": "blended"})
            found[f"osd_blended@{batch}"] = osd_contender("osd_blended", pair, blended, new_tokens)
        found[f"plain@{batch}"] = plain_contender(pair, batch, new_tokens)
        if has_draft(pair) and batch == batches[0]:  # soon after what they are compared with
            found |= {f"{rule}@1": assisted_contender(pair, rule, new_tokens) for rule in ASSISTED}
    return found


def _measure(
    contenders: dict[str, Contender], prompts: Sequence[Tokens], turns: int, report: Report
) -> dict[str, Measured]:
    measured = {name: Measured(contender.batch) for name, contender in contenders.items()}
    for contender in contenders.values():
        # warm caches and cost tables, not measured; of texts that do not come again, for tables would know them
        contender.decode([prompt[::-1] for prompt in prompts[: contender.batch]])
    for turn in range(turns):
        chunk = prompts[turn::turns]
        for index, (name, contender) in enumerate(contenders.items()):
            measured[name].take_turn(contender, chunk)
            report(
                turn * len(contenders) + index + 1,
                turns * len(contenders),
                f"{name} {measured[name].rates[-1]:.0f} tok/s",
            )
    return measured


def _summary(measured: dict[str, Measured], batches: Sequence[int]) -> dict[str, Any]:
    """The figures by contender and batch size, and the ratios that they are for.

    A text equals the target's own when it is what plain generation gives at batch 1. transformers pads its
    batches, which moves its logits by rounding; its own texts are therefore not held against anything.
    """
    rates = {name: round(m.rate, 1) for name, m in measured.items()}
    reference = measured[f"plain@{batches[0]}"].texts
    ours = [name for name in measured if name.startswith(("osd", "target_alone"))]
    differing = sum(text != reference[prompt] for name in ours for prompt, text in measured[name].texts.items())

    def by_batch(name: str) -> dict[str, float]:
        return {str(b): rates[f"{name}@{b}"] for b in batches if f"{name}@{b}" in rates}

    first, last = batches[0], batches[-1]
    rules = [rule for rule in ASSISTED if f"{rule}@1" in rates]
    assisted = [measured[f"{rule}@1"] for rule in rules]

    def ratios(name: str, other: str) -> dict[str, float]:
        there = [b for b in batches if f"{name}@{b}" in rates]
        return {str(b): measured[f"{name}@{b}"].ratio(measured[f"{other}@{b}"]) for b in there}

    return {
        "osd": by_batch("osd"),
        "osd_blended": by_batch("osd_blended"),
        "target_alone": by_batch("target_alone"),
        "transformers": {"plain": by_batch("plain")} | {rule: {"1": rates[f"{rule}@1"]} for rule in rules},
        "identical": differing == 0,
        "differing": differing,
        "ratio_vs_best_assisted": measured["osd@1"].ratio(*assisted) if first == 1 and assisted else None,
        "ratio_vs_target_alone": ratios("osd", "target_alone"),
        "ratio_blended_vs_osd": ratios("osd_blended", "osd"),
        f"ratio_batch_{last}_vs_{first}": measured[f"osd@{last}"].ratio(measured[f"osd@{first}"]),
        "spread": {name: [round(min(m.rates), 1), round(max(m.rates), 1)] for name, m in measured.items()},
    }
