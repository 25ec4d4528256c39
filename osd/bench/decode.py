"""``osd bench decode``: tokens a second of osd, the target alone, and transformers' own ways, in one run.

Contenders take turns over the same chunks of prompts, so that what else the machine does falls on all alike. A
contender's figure is the median over its turns, with the spread beside it. A ratio is the median of the ratios within a
turn: a machine changes its speed from minute to minute by more than methods differ. Every text is compared with the
target's own greedy text.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from osd.bench.contenders import ASSISTED, Contender, assisted_contender, osd_contender, plain_contender
from osd.bench.harness.plan import all_prompts, data_sets, facts_of
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult
from osd.bench.harness.turns import measure_all, ratio_of_turns, turns_of
from osd.bench.harness.watch import Watch
from osd.bench.plans import DecodePlan
from osd.bench.recording import recording_cost
from osd.models.pair import Pair, row_limit
from osd.models.target_only import has_draft
from osd.server.start import choose_pair
from storage.settings import Settings


@dataclass(slots=True)
class DecodedTurns:
    """The turns of one contender."""

    rates: list[float] = field(default_factory=list)
    """Tokens a second, a turn."""
    texts: dict[Tokens, list[int]] = field(default_factory=dict)

    def take_turn(self, contender: Contender, chunk: Sequence[Tokens]) -> None:
        """Decode a chunk of the prompts, timed."""
        begun = time.perf_counter()
        texts = contender.decode(chunk)
        self.rates.append(sum(map(len, texts)) / (time.perf_counter() - begun))
        self.texts |= dict(zip(chunk, texts, strict=True))

    def ratio(self, *others: DecodedTurns) -> float | None:
        """Return the median over turns of these tokens a second ÷ those of the best of the others in that turn."""
        return ratio_of_turns(self.rates, *(other.rates for other in others)).value


def bench_decode(plan: DecodePlan, settings: Settings, watch: Watch) -> BenchResult:
    """Load the pair and its prompts, and measure. Raises PairError, BadInput."""
    settings = settings.changed(drafters={"kind": plan.drafter}) if plan.drafter else settings
    names = choose_pair(settings.serve, plan.target, plan.draft, drafter=settings.drafters.kind)
    pair = names.load(settings.serve)
    if plan.threads:
        torch.set_num_threads(plan.threads)
    sets = data_sets(plan, pair.tokenizer, plan.count, row_limit(pair, settings.serve) - plan.max_tokens)
    return decode_all(plan, pair, all_prompts(sets), settings, watch)


def decode_all(
    plan: DecodePlan, pair: Pair, prompts: Sequence[Tokens], settings: Settings, watch: Watch
) -> BenchResult:
    """Measure chunks of the prompts, each decoded by every contender; more turns, less noise. What recording costs is
    measured by itself, in pairs of shorter turns."""
    facts = facts_of(
        plan, target=pair.target.name, draft=pair.draft.name if has_draft(pair) else None, prompts=len(prompts),
        threads=torch.get_num_threads(),
    )  # fmt: skip
    measured = _measure(_contenders(pair, settings, plan.batch, plan.max_tokens), prompts, plan.turns, watch)
    whole = all(each.rates for each in measured.values())
    figures, costs = _summary(measured, plan.batch) if whole else {}, {}
    with watch.until_ctrl_c():
        for batch in () if watch.stopped or not plan.recorded else plan.batch:
            costs[str(batch)] = recording_cost(plan, pair, prompts, settings, batch, watch).as_dict()
    names = next(iter(costs.values()), {})
    figures |= {name: {batch: cost[name] for batch, cost in costs.items()} for name in names}
    rows = _rows(figures) if whole else []
    return BenchResult("decode", facts, figures, {"Greedy decoding, tokens a second": rows}, interrupted=watch.stopped)


def _rows(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    blended = {"osd, a table beside the draft": figures["osd_blended"]} if figures["osd_blended"] else {}
    ours = {"osd": figures["osd"], **blended, "target alone (osd)": figures["target_alone"]}
    theirs = {f"transformers {name}": rates for name, rates in figures["transformers"].items()}
    return [
        {"how": how} | {f"batch {b}": rates.get(b) for b in figures["osd"]} for how, rates in (ours | theirs).items()
    ]


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
        if assists(pair) and batch == batches[0]:  # soon after what they are compared with
            found |= {f"{rule}@1": assisted_contender(pair, rule, new_tokens) for rule in ASSISTED}
    return found


def assists(pair: Pair) -> bool:
    """Return whether transformers can draft with a pair's draft: a model, not one that reads the target's states."""
    return has_draft(pair) and isinstance(pair.draft.module, PreTrainedModel)


def _measure(
    contenders: dict[str, Contender], prompts: Sequence[Tokens], turns: int, watch: Watch
) -> dict[str, DecodedTurns]:
    measured = {name: DecodedTurns() for name in contenders}
    for contender in contenders.values():
        # warm caches and cost tables, not measured; of texts that do not come again, for tables would know them
        contender.decode([prompt[::-1] for prompt in prompts[: contender.batch]])
    measure_all(
        turns_of(list(contenders), turns),
        lambda job: measured[job.arm].take_turn(contenders[job.arm], prompts[job.turn :: turns]), watch,
    )  # fmt: skip
    return measured


def _summary(measured: dict[str, DecodedTurns], batches: Sequence[int]) -> dict[str, Any]:
    """Return the figures by contender and batch size, and the ratios that they are for.

    A text equals the target's own when it is what plain generation gives at batch 1. transformers pads its batches,
    which moves its logits by rounding; its own texts are therefore not held against anything.
    """
    rates = {name: statistics.median(each.rates) for name, each in measured.items()}
    reference = measured[f"plain@{batches[0]}"].texts
    ours = [name for name in measured if name.startswith(("osd", "target_alone"))]
    differing = sum(text != reference.get(at, text) for name in ours for at, text in measured[name].texts.items())
    first, last = batches[0], batches[-1]
    rules = [rule for rule in ASSISTED if f"{rule}@1" in rates]
    assisted = [measured[f"{rule}@1"] for rule in rules]

    def by_batch(name: str) -> dict[str, float]:
        return {str(b): rates[f"{name}@{b}"] for b in batches if f"{name}@{b}" in rates}

    def ratios(name: str, other: str) -> dict[str, float | None]:
        return {b: measured[f"{name}@{b}"].ratio(measured[f"{other}@{b}"]) for b in by_batch(name)}

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
        "spread": {name: [min(m.rates), max(m.rates)] for name, m in measured.items()},
    }
