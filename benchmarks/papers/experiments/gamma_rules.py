"""Experiments of three papers on γ rules, by replay (see replays.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.papers.claims import PaperFigure, exact, jackknife, mean_of, ratio_of_sums
from benchmarks.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture
from benchmarks.papers.experiments.replays import (
    Floats,
    ReplayedRule,
    ReplayedTexts,
    best_on_other_half,
    fixed,
    oracle,
    papers_analytic,
    replayed,
    rule,
)
from storage.errors import BadInput

SMALL, FULL = PaperSizes(4, 32, minutes=0.2), PaperSizes(40, 128, minutes=1)
INITIALS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24)
"""GammaTune's list of initial speculation lengths, as printed (section 5)."""
LENGTHS = (2, 4, 6, 8, 10, 12, 14)
"""SpecDec++'s candidate lengths K (section 5.1)."""
WINDOWS = (5, 6, 7, 8)
"""γ and γ_max of on-the-fly adaptation's Figure 3 and Table 12."""
ON_TWO_A100, ON_A100_8, ON_A100_13 = "2xa100-specdecpp", "a100-c008", "a100-c013"
CHATS = ("oasst", "sharegpt", "mt_bench", "chat")
SD, HF, THRESHOLD = "SpecDecode", "HFHeuristic", "AssistantThreshold"
METHODS = {SD: "fixed", HF: "heuristic", THRESHOLD: "confidence", "GammaTune": "gammatune",
           "GammaTune+": "gammatune_plus"}  # fmt: skip
CONSTANTS: dict[str, tuple[dict[str, Any], ...]] = {
    THRESHOLD: tuple({"confidence": {"threshold": tau}} for tau in (0.2, 0.4, 0.6, 0.8)),
    "GammaTune": tuple({"gammatune": {"eta": eta, "delta": delta}} for eta in (0.1, 0.25, 0.5, 0.75)
                       for delta in (1, 2, 4)),
    "GammaTune+": tuple({"gammatune_plus": {"eta": eta, "delta": delta, "threshold": tau}} for eta in (0.25, 0.5)
                        for delta in (1, 2, 4) for tau in (0.2, 0.4, 0.6)),
}  # fmt: skip
"""Constants among which those are chosen that are best on other texts; the papers' own are among them."""
HISTORIES_TRIED, PRIORS_TRIED = (3, 6, 12, 24), (0.0, 6.0, 24.0)
ADAPTIVE = {"analytic": "analytic", "state-based": "fsm", "cache-based": "cache_fsm", "RL-based": "q_learning"}


def chat(bench: PapersBench, sizes: PaperSizes, *, costs: str) -> PaperFindings:
    """The same over data sets that are chat. Raises BadInput where none is."""
    found = replayed(bench, sizes, costs)
    warm, texts = (tuple(t for t in some if is_chat(t.data_set)) for some in (found.warm, found.texts))
    if not texts:
        raise BadInput(
            reason="None of the prompts are chat; give --prompts oasst_en.jsonl.gz, or another file of chats."
        )
    return _against_windows(bench, ReplayedTexts(warm, texts, found.table))


def is_chat(data_set: str) -> bool:
    """Return whether a data set's name says that it is chat."""
    return any(word in data_set.casefold() for word in CHATS)


def on_the_fly(bench: PapersBench, sizes: PaperSizes, *, costs: str, temperature: float = 0.0) -> PaperFindings:
    """The analytic rule with the paper's constants against fixed windows and the target alone."""
    return _against_windows(bench, replayed(bench, sizes, costs, temperature))


def _against_windows(bench: PapersBench, texts: ReplayedTexts) -> PaperFindings:
    ours, alone = texts.under(papers_analytic()), texts.under(fixed(bench, 0))
    windows = {gamma: texts.under(fixed(bench, gamma)) for gamma in range(1, 13)}
    shown = [windows[gamma].ms for gamma in WINDOWS]
    names = sorted(set(ours.data_sets))
    by_set = {name: ours.of(name).faster_than(alone.of(name)) for name in names}
    worst = min(names, key=lambda name: by_set[name].value)
    lost = {name: windows[5].of(name).faster_than(alone.of(name)) for name in names}
    figures = {
        "vs_alone": ours.faster_than(alone),
        "vs_windows_5_to_8": ratio_of_sums(np.mean(shown, axis=0), ours.ms),
        "vs_best_window": ratio_of_sums(best_on_other_half(windows), ours.ms),
        "chosen_vs_best_window": ratio_of_sums(best_on_other_half(windows), _analytic_chosen(bench, texts)),
        "least_vs_alone": by_set[worst],
        "least_of_window_5_vs_alone": min(lost.values(), key=lambda figure: figure.value),
    }  # fmt: skip
    rows = [
        {"data set": name, "analytic ÷ γ = 5": str(ours.of(name).faster_than(windows[5].of(name))),
         "analytic ÷ alone": str(by_set[name]), "γ = 5 ÷ alone": str(lost[name]),
         "accepted of drafted": str(ours.of(name).token_acceptance)}
        for name in names
    ]  # fmt: skip
    return PaperFindings(figures, {f"Speed by data set, costs of {texts.table.name}": rows})


def _analytic_chosen(bench: PapersBench, texts: ReplayedTexts) -> Floats:
    """Return milliseconds of each text under the analytic rule with the constants that are best on other texts."""
    tried: list[dict[str, Any]] = [{"analytic": {"history": h, "prior_trials": prior, "estimator": estimator}}
             for h in HISTORIES_TRIED for prior in PRIORS_TRIED for estimator in ("ratio", "truncated")]  # fmt: skip
    return best_on_other_half({str(each): texts.under(rule(bench, "analytic", **each)) for each in tried})


def adaptive_methods(bench: PapersBench, sizes: PaperSizes, *, costs: str) -> PaperFindings:
    """Throughput and acceptance rate of all methods for γ_max 5 to 8, and the upper bound: nothing is rejected."""
    texts = replayed(bench, sizes, costs)
    arms: dict[str, dict[int, ReplayedRule]] = {"original": {}, "upper bound": {}, **{name: {} for name in ADAPTIVE}}
    for most in WINDOWS:
        arms["original"][most] = texts.under(fixed(bench, most))
        arms["upper bound"][most] = texts.under(fixed(bench, most), upper_bound=True)
        for name, own in ADAPTIVE.items():
            arms[name][most] = texts.under(papers_analytic(most) if own == "analytic" else rule(bench, own, 4, most))
    ms = {name: np.sum([each.ms for each in by_most.values()], axis=0) for name, by_most in arms.items()}
    figures = {
        f"analytic_vs_{name.split('-')[0].replace(' ', '_').lower()}": ratio_of_sums(ms[name], ms["analytic"])
        for name in ("original", "state-based", "cache-based", "RL-based")
    } | {"upper_bound_vs_analytic": ratio_of_sums(ms["analytic"], ms["upper bound"])}
    rate = {name: _rates(by_most) for name, by_most in arms.items()}
    gap = rate["RL-based"].value - max(rate[name].value for name in ADAPTIVE if name != "RL-based")
    error = np.hypot(rate["RL-based"].error or 0, rate["analytic"].error or 0)
    figures["rl_acceptance_gap"] = PaperFigure(gap, float(error) or None, rate["analytic"].count)
    rows = [
        {"method": name, "γ_max": most, "tokens a second": each.rate, "accepted of drafted": str(each.token_acceptance)}
        for name, by_most in arms.items() for most, each in by_most.items()
    ]  # fmt: skip
    drawn = {name: by_most for name, by_most in arms.items() if name != "upper bound"}  # far above, it flattens others
    curves = [Curve(name, [(most, each.rate) for most, each in by_most.items()]) for name, by_most in drawn.items()]
    pictures = {"throughput": Picture("γ_max", "tokens a second", curves)}
    return PaperFindings(figures, {f"Costs of {texts.table.name}": rows}, pictures)


def _rates(by_most: Mapping[int, ReplayedRule]) -> PaperFigure:
    accepted = np.sum([each.accepted for each in by_most.values()], axis=0)
    drafted = np.sum([each.drafted for each in by_most.values()], axis=0)
    return ratio_of_sums(accepted, drafted) if drafted.sum() else exact(0.0)


def histories(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """On-the-fly adaptation, Table 12: the history h and γ_max."""
    texts = replayed(bench, sizes, ON_A100_13)
    found = {(h, most): texts.under(papers_analytic(most, h)) for h in WINDOWS[:3] for most in WINDOWS}
    rows = [{"h": h} | {f"γ_max {most}": found[h, most].rate for most in WINDOWS} for h in WINDOWS[:3]]
    gains = [found[7, most].faster_than(found[5, most]) for most in WINDOWS]
    spread = max(gains, key=lambda figure: abs(figure.value - 1))
    return PaperFindings({"h_7_vs_5": spread}, {"Tokens a second": rows})


def gammatune(bench: PapersBench, sizes: PaperSizes, *, costs: str = ON_A100_13) -> PaperFindings:
    """GammaTune, Table 2 and Figure 1: five methods over twelve initial lengths.

    A method's speed is the mean over initial lengths of tokens a second; its spread their standard deviation ÷ mean.
    """
    texts = replayed(bench, sizes, costs)
    found = {
        name: {initial: texts.under(rule(bench, own, initial)) for initial in INITIALS} for name, own in METHODS.items()
    }
    speeds = {name: np.mean([each.tokens / each.ms for each in own.values()], axis=0) for name, own in found.items()}
    rates = {name: [each.rate for each in own.values()] for name, own in found.items()}
    spreads = {name: float(np.std(each, ddof=1) / np.mean(each)) for name, each in rates.items()}
    figures = {f"{_key(name)}_vs_sd": ratio_of_sums(speeds[name], speeds[SD]) for name in METHODS if name != SD}
    best = max((HF, THRESHOLD), key=lambda name: float(speeds[name].sum()))
    figures["plus_vs_best_heuristic"] = ratio_of_sums(speeds["GammaTune+"], speeds[best])
    figures["gammatune_vs_hf"] = ratio_of_sums(speeds["GammaTune"], speeds[HF])
    tuned = best_on_other_half(found[SD])
    figures["plus_vs_tuned_sd"] = ratio_of_sums(tuned, np.mean([e.ms for e in found["GammaTune+"].values()], axis=0))
    chosen = {name: _chosen(bench, texts, name) for name in CONSTANTS}
    for name in ("GammaTune", "GammaTune+"):
        figures[f"{_key(name)}_chosen_vs_tuned_sd"] = ratio_of_sums(tuned, chosen[name])
        figures[f"{_key(name)}_spread_less"] = _spread_less(found[SD], found[name])
    rows = [
        {"method": name, "÷ SpecDecode": float(speeds[name].sum() / speeds[SD].sum()), "spread": spreads[name]}
        for name in METHODS
    ]
    curves = [Curve(name, list(zip(map(float, INITIALS), rates[name], strict=True))) for name in METHODS]
    title = f"Mean over initial lengths, costs of {texts.table.name}"
    second = "Constants, and the fixed length, chosen on other texts"
    against = [{"method": name, "÷ SpecDecode": str(ratio_of_sums(tuned, ms))} for name, ms in chosen.items()]
    pictures = {"speed": Picture("initial γ", "tokens a second", curves)}
    return PaperFindings(figures, {title: rows, second: against}, pictures)


def _chosen(bench: PapersBench, texts: ReplayedTexts, name: str) -> Floats:
    """Return milliseconds of each text under a method from γ = 4 with the constants that are best on other texts."""
    tried = {str(each): texts.under(rule(bench, METHODS[name], **each)) for each in CONSTANTS[name]}
    return best_on_other_half(tried)


def _key(name: str) -> str:
    return name.lower().replace("+", "_plus")


def _spread_less(one: Mapping[int, ReplayedRule], other: Mapping[int, ReplayedRule]) -> PaperFigure:
    """Return by how much the spread over initial lengths is lower with ``other``, and its jackknife error over
    texts."""

    def spread(rules: Mapping[int, ReplayedRule], keep: np.ndarray) -> float:
        rates = [float(each.tokens[keep].sum() / each.ms[keep].sum()) for each in rules.values()]
        return float(np.std(rates, ddof=1) / np.mean(rates))

    count = len(next(iter(one.values())).ms)
    return jackknife(lambda keep: spread(one, keep) - spread(other, keep), count)


def regimes(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """GammaTune, Figure 2a: does a round's number of accepted tokens say something of the next one's?"""
    found = replayed(bench, sizes, ON_A100_13).under(fixed(bench, 8))
    runs = [np.array(run, float) for run in found.runs if len(run) > 3 and np.std(run[:-1]) and np.std(run[1:])]
    together = [float(np.corrcoef(run[:-1], run[1:])[0, 1]) for run in runs]
    varied = max(runs, key=lambda run: float(np.std(run)), default=np.zeros(1))
    curve = Curve("accepted of 8", [(float(i), float(a)) for i, a in enumerate(varied)])
    figures = {"correlation": mean_of(together)} if together else {}
    return PaperFindings(figures, pictures={"a text": Picture("round", "accepted tokens", [curve])})


def cost_model(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """GammaTune, Eqs. 2 to 6: calls of both models and the cost of them, against what rounds took."""
    texts = replayed(bench, sizes, ON_A100_13)
    c = texts.table.verify_ms(1, 1) / texts.table.draft_ms(1, 1)
    rows, cost_off, falls = [], [], []
    for gamma in INITIALS:
        found = texts.under(fixed(bench, gamma))
        alpha = float(found.accepted.sum() / found.drafted.sum())
        steps = found.tokens.sum() / (alpha * gamma + 1)
        cost = steps * (c + gamma) * texts.table.draft_ms(1, 1)
        rows.append({"γ": gamma, "α": alpha, "Eq. 3: steps": float(steps), "steps": float(found.rounds.sum()),
                     "Eq. 6: ms": float(cost), "ms": float(found.ms.sum())})  # fmt: skip
        cost_off.append(abs(cost / found.ms.sum() - 1))
        falls.append(alpha)
    figures = {
        "cost_off_by": exact(float(max(cost_off))),
        "alpha_at_24_vs_1": exact(falls[-1] / falls[0] if falls[0] else 1),
    }
    return PaperFindings(figures, {f"Costs of {texts.table.name}": rows})


def oracle_bound(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """SpecDec++, Theorem 4.1: stopping just before each rejection, against the best fixed length and the target
    alone; and Lemma 3.1's count of passes."""
    texts = replayed(bench, sizes, ON_TWO_A100)
    cold = ReplayedTexts((), texts.texts, texts.table)
    bound, alone = cold.under(oracle(texts)), cold.under(fixed(bench, 0))
    lengths = {k: cold.under(fixed(bench, k)) for k in LENGTHS}
    passes = [
        float(abs((f.drafted + f.rounds).sum() - (f.tokens + f.drafted - f.accepted).sum()) / f.tokens.sum())
        for f in lengths.values()
    ]
    figures = {
        "discarded": exact(float((bound.drafted - bound.accepted).sum() / bound.tokens.sum())),
        "oracle_vs_best_k": ratio_of_sums(best_on_other_half(lengths), bound.ms),
        "oracle_vs_alone": bound.faster_than(alone), "verification_rate": ratio_of_sums(bound.rounds, bound.tokens),
        "lemma_off_by": exact(max(passes)),
    }  # fmt: skip
    rows = [
        {"": f"K = {k}", "discard rate": float((f.drafted - f.accepted).sum() / f.tokens.sum()),
         "verification rate": float(f.rounds.sum() / f.tokens.sum()), "÷ alone": f.faster_than(alone).value}
        for k, f in lengths.items()
    ]  # fmt: skip
    rows.append({"": "oracle", "discard rate": 0.0, "verification rate": figures["verification_rate"].value,
                 "÷ alone": figures["oracle_vs_alone"].value})  # fmt: skip
    return PaperFindings(figures, {f"Costs of {texts.table.name}": rows})


def _experiment(run: Callable[..., PaperFindings], **fixed_by: Any) -> PaperExperiment:
    return PaperExperiment(partial(run, **fixed_by), SMALL, FULL)


ON_THE_FLY = _experiment(on_the_fly, costs=ON_TWO_A100)
CHAT = _experiment(chat, costs=ON_TWO_A100)
SAMPLED = _experiment(on_the_fly, costs=ON_TWO_A100, temperature=1.0)
METHODS_OPT, METHODS_BLOOM, METHODS_LLAMA = (
    _experiment(adaptive_methods, costs=costs) for costs in (ON_A100_8, ON_A100_13, ON_TWO_A100)
)
GAMMATUNE_LARGE = _experiment(gammatune, costs=ON_TWO_A100)
HISTORIES, GAMMATUNE, REGIMES = _experiment(histories), _experiment(gammatune), _experiment(regimes)
COST_MODEL, ORACLE_BOUND = _experiment(cost_model), _experiment(oracle_bound)
