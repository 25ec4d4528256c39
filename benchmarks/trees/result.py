"""What a run says: figures by set and method, ratios over all sets, and the curves that are drawn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.trees.methods import ALONE, BY_NAME, FROZEN, GREEDY, LOOKUP, MCTS, THEIRS, TreesUnit
from osd.bench.harness.turns import Cell, ratio_of_turns

TreesCell = Cell[TreesUnit, dict[str, dict[str, Any]]]
"""A unit, and by method what was measured."""
Curve = list[tuple[float, float]]
"""(what was varied, accept length)"""
BIN = 64
"""Tokens of context that are counted together."""
FEW = 30
"""Passes of a bin below which its mean says little."""


def of_part(lines: Sequence[TreesCell], part: str) -> list[TreesCell]:
    """Return the units of one part."""
    return [line for line in lines if line.job.part == part]


def accept_length(figures: dict[str, Any]) -> float:
    """Return tokens a target pass."""
    return float(figures["tokens"] / figures["passes"])


def summary(lines: Sequence[TreesCell], draft_us: dict[str, float], bytes_per_trigram: float) -> dict[str, Any]:
    """Return the command's figures."""
    sets, speed = by_set(lines), of_part(lines, "speed")
    greedy = [line for line in lines if line.job.temperature == 0]
    texts = sum(each["differing"] for line in greedy for each in line.found.values())
    return {
        "sets": sets, "draft_us": draft_us, "bytes_per_trigram": round(bytes_per_trigram, 2),
        "overall": overall(sets, speed), "differing": texts, "identical": texts == 0,
        "by_context": by_context(lines),
        "by_temperature": sampled(lines, "temperature"), "by_top_p": sampled(lines, "top_p"),
        "by_corpus": by_corpus(lines),
    }  # fmt: skip


def by_set(lines: Sequence[TreesCell]) -> dict[str, Any]:
    """Return ``accept_length`` where every tree is as deep as it may be, ``tokens_per_s`` where the controller chooses,
    each with its other beside it."""
    sets: dict[str, Any] = {}
    for line in of_part(lines, "shape"):
        lengths = {name: round(accept_length(own), 3) for name, own in line.found.items()}
        sets[line.job.data_set] = {name: {"accept_length": length} for name, length in lengths.items()}
    for line in of_part(lines, "speed"):
        for name, own in line.found.items():
            rate, paced = round(statistics.median(own["rates"]), 1), round(accept_length(own), 3)
            sets[line.job.data_set][name] |= {"tokens_per_s": rate, "accept_length_paced": paced}
    return sets


def faster(line: TreesCell, one: str, others: Sequence[str]) -> list[float | None]:
    """Return tokens a second of a method ÷ those of the fastest of the others on this set: the median over prompts of
    the ratio at the same prompt, and its standard error."""
    rates = {name: line.found[name]["rates"] for name in (one, *others)}
    best = max(others, key=lambda name: statistics.median(rates[name]))
    return list(ratio_of_turns(rates[one], rates[best]))


def overall(sets: dict[str, Any], speed: Sequence[TreesCell]) -> dict[str, Any]:
    """Return geometric means over sets, and what the goals ask for; what is compared in tokens a second, set by set
    with its standard error."""

    def mean(name: str, what: str) -> float:
        return statistics.geometric_mean(own[name][what] for own in sets.values())

    def by_prompt(one: str, *others: str) -> dict[str, list[float | None]]:
        return {line.job.data_set: faster(line, one, others) for line in speed}

    lengths = {name: mean(name, "accept_length") for name in BY_NAME}
    rates = {name: mean(name, "tokens_per_s") for name in BY_NAME}
    trees = (MCTS.name, LOOKUP.name)
    found: dict[str, Any] = {
        "mcts_vs_greedy": lengths[MCTS.name] / lengths[GREEDY.name],
        "mcts_vs_greedy_frozen": lengths[FROZEN.name] / lengths["trigram_greedy_frozen"],
        "adaptive_vs_frozen": lengths[MCTS.name] / lengths[FROZEN.name],
        "tri_gram_vs_bi_gram": lengths["tri_gram"] / lengths["bi_gram"],
        "tri_gram_vs_four_gram": lengths["tri_gram"] / lengths["four_gram"],
        "tri_gram_vs_bi_gram_backoff": lengths[MCTS.name] / lengths["bi_gram_backoff"],
        "tri_gram_vs_four_gram_backoff": lengths[MCTS.name] / lengths["four_gram_backoff"],
        "vs_target_alone": {name: by_prompt(name, ALONE.name) for name in trees},
        "vs_transformers_lookup": {name: by_prompt(name, THEIRS.name) for name in trees},
    }
    return found | {"accept_length": lengths, "tokens_per_s": rates}


def by_context(lines: Sequence[TreesCell]) -> dict[str, Curve]:
    """Return accept length by the length of the text before a pass, over all sets; only lengths that have enough
    passes."""
    curves: dict[str, Curve] = {}
    for name in (GREEDY.name, FROZEN.name, MCTS.name):
        sums: dict[int, list[int]] = {}
        for line in of_part(lines, "shape"):
            for place, (tokens, passes) in line.found[name]["bins"].items():
                kept = sums.setdefault(int(place), [0, 0])
                kept[0], kept[1] = kept[0] + tokens, kept[1] + passes
        curves[name] = [(p * BIN + BIN / 2, round(t / n, 3)) for p, (t, n) in sorted(sums.items()) if n >= FEW]
    return curves


def sampled(lines: Sequence[TreesCell], what: str) -> dict[str, Curve]:
    """Return accept length by temperature (without top-p) or by top-p (at temperature 1)."""
    other, usual = ("top_p", None) if what == "temperature" else ("temperature", 1)
    units = [line for line in of_part(lines, "sampling") if getattr(line.job, other) == usual]
    return _curves(units, lambda unit: 1.0 if (own := getattr(unit, what)) is None else own)


def by_corpus(lines: Sequence[TreesCell]) -> dict[str, Curve]:
    """Return accept length by share of the corpus."""
    return _curves(of_part(lines, "corpus"), lambda unit: unit.share)


def _curves(lines: Sequence[TreesCell], key: Any) -> dict[str, Curve]:
    """Return the geometric mean over sets at each point."""
    found: dict[str, dict[float, list[float]]] = {}
    for line in lines:
        for name, own in line.found.items():
            if name != ALONE.name:
                found.setdefault(name, {}).setdefault(key(line.job), []).append(accept_length(own))
    return {
        name: [(x, round(statistics.geometric_mean(each), 3)) for x, each in sorted(points.items())]
        for name, points in found.items()
    }
