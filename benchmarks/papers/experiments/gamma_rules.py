"""γ rules of three papers against each other, by replay (see replays.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.figures import PaperFigure, farthest, jackknife, least, ratio_of_sums
from benchmarks.gamma.costed import CostedTexts, Floats
from benchmarks.gamma.simulate import Make
from benchmarks.papers.experiment import Curve, PaperExperiment, PaperFindings, PapersBench, Picture, Rows
from benchmarks.papers.experiments.replays import (
    DEPTH,
    ReplayedTexts,
    deepest,
    fixed,
    papers_analytic,
    replayed,
    rule,
    tuned,
)
from storage.errors import BadInput

WINDOWS = (5, 6, 7, 8)
"""γ and γ_max of on-the-fly adaptation's Figure 3 and Table 12."""
Grid = Mapping[str, Sequence[Any]]
"""Values by constant, of which every combination is tried."""
ByInitial = Mapping[int, CostedTexts]


def chosen(bench: PapersBench, texts: ReplayedTexts, name: str, grid: Grid, most: int = DEPTH) -> Floats:
    """Return milliseconds of each text under a rule with the constants of a grid that are best on other texts.
    ``most``: γ_max."""
    tried = [{name: dict(zip(grid, values, strict=True))} for values in product(*grid.values())]
    return tuned({str(each): texts.under(rule(bench, name, 4, most, each)) for each in tried})


def begun(bench: PapersBench, name: str, initial: int) -> Make:
    """Return what makes a rule with an initial length; that of `confidence` holds all along, as in transformers."""
    return rule(bench, name, initial, tables={"confidence": {"tokens": initial}})


class AgainstWindows(PaperExperiment):
    """On-the-fly adaptation, Tables 1, 8 and 9: the analytic rule with the paper's constants against fixed windows and
    the target alone."""

    replays = 1
    costs: str
    temperature: float = 0.0
    constants: dict[str, tuple[Any, ...]]
    only: tuple[str, ...] = ()
    """Words of which one is in a data set's name that counts; none: all count."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Replay the rule, windows and the target alone. Raises BadInput where no data set counts."""
        texts = replayed(bench, self, self.costs, self.temperature)
        if self.only:
            texts = self._counting(texts)
        ours, alone = texts.under(papers_analytic(deepest(bench))), texts.under(fixed(bench, 0))
        windows = texts.under_all({gamma: fixed(bench, gamma) for gamma in range(1, 13)})
        names = sorted(set(ours.data_sets.tolist()))
        gained = {name: ours.only(name).faster_than(alone.only(name)) for name in names}
        lost = {name: windows[5].only(name).faster_than(alone.only(name)) for name in names}
        figures = {
            "vs_alone": ours.faster_than(alone),
            "vs_windows_5_to_8": ratio_of_sums(np.mean([windows[gamma].ms for gamma in WINDOWS], axis=0), ours.ms),
            "vs_best_window": ratio_of_sums(tuned(windows), ours.ms),
            "chosen_vs_best_window": ratio_of_sums(
                tuned(windows), chosen(bench, texts, "analytic", self.constants)
            ),
            "least_vs_alone": least(gained.values()), "least_of_window_5_vs_alone": least(lost.values()),
        }  # fmt: skip
        rows = [
            {"data set": name, "analytic ÷ γ = 5": str(ours.only(name).faster_than(windows[5].only(name))),
             "analytic ÷ alone": str(gained[name]), "γ = 5 ÷ alone": str(lost[name]),
             "accepted of drafted": str(ours.only(name).accepted_of_drafted)}
            for name in names
        ]  # fmt: skip
        return PaperFindings(figures, {f"Speed by data set, {texts.costs_told}": rows})

    def _counting(self, found: ReplayedTexts) -> ReplayedTexts:
        warm, texts = (
            [text for text in some if any(word in text.data_set.casefold() for word in self.only)]
            for some in (found.warm, found.texts)
        )
        if not texts:
            raise BadInput(
                reason="None of the prompts are chat; give --prompts oasst_en.jsonl.gz, or another file of chats."
            )
        return ReplayedTexts(warm, texts, found.table)


class AdaptiveMethods(PaperExperiment):
    """On-the-fly adaptation, Figures 3, 5 and 6: throughput and acceptance rate of all methods by γ_max, and the upper
    bound: nothing is rejected."""

    replays = 1
    costs: str
    methods: dict[str, str]
    """Our rule by the paper's name."""
    constants: dict[str, dict[str, tuple[Any, ...]]]
    """By our rule's name, constants among which those are chosen that are best on other texts."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Replay every method with every γ_max, and with every constant."""
        texts, lengths = replayed(bench, self, self.costs), {most: fixed(bench, most) for most in WINDOWS}
        bound = {most: texts.under(make, upper_bound=True) for most, make in lengths.items()}
        arms = {"original": texts.under_all(lengths), "upper bound": bound}
        for name, own in self.methods.items():
            makes = {m: papers_analytic(m) if own == "analytic" else rule(bench, own, 4, m) for m in WINDOWS}
            arms[name] = texts.under_all(makes)
        ms = {name: np.sum([each.ms for each in by_most.values()], axis=0) for name, by_most in arms.items()}
        figures = {
            f"analytic_vs_{name.split('-')[0].lower()}": ratio_of_sums(ms[name], ms["analytic"])
            for name in ms if name not in ("analytic", "upper bound")
        } | {"upper_bound_vs_analytic": ratio_of_sums(ms["analytic"], ms["upper bound"])}  # fmt: skip
        figures["rl_acceptance_gap"] = self._acceptance_gap(arms)
        picked = {name: chosen(bench, texts, name, grid, WINDOWS[-1]) for name, grid in self.constants.items()}
        figures["analytic_vs_rl_chosen"] = ratio_of_sums(picked["q_learning"], picked["analytic"])
        rows = [
            {"method": name, "γ_max": most, "tokens a second": each.rate,
             "accepted of drafted": str(each.accepted_of_drafted)}
            for name, by_most in arms.items() for most, each in by_most.items()
        ]  # fmt: skip
        curves = [
            Curve(name, [(most, each.rate) for most, each in by_most.items()])
            for name, by_most in arms.items() if name != "upper bound"  # far above, it flattens others
        ]  # fmt: skip
        pictures = {"throughput": Picture("γ_max", "tokens a second", curves)}
        return PaperFindings(figures, {f"Costs of {texts.table.name}": rows}, pictures)

    def _acceptance_gap(self, arms: Mapping[str, Mapping[int, CostedTexts]]) -> PaperFigure:
        """Return Q-learning's acceptance less the highest of the others'."""
        sums = {name: _sums(list(arms[name].values())) for name in self.methods}
        ours = sums.pop("RL-based")

        def gap(kept: npt.NDArray[np.bool_]) -> float:
            return _share(*ours, kept) - max(_share(*each, kept) for each in sums.values())

        return jackknife(gap, len(ours[0]))


def _sums(some: Sequence[CostedTexts]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return accepted and drafted tokens of each text, over several runs."""
    return np.sum([r.accepted for r in some], axis=0), np.sum([r.drafted for r in some], axis=0)


def _share(accepted: npt.NDArray[np.float64], drafted: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_]) -> float:
    return float(accepted[kept].sum() / max(1.0, drafted[kept].sum()))


class Histories(PaperExperiment):
    """On-the-fly adaptation, Table 12: the history h and γ_max."""

    replays = 1
    costs: str
    histories: tuple[int, ...]

    def run(self, bench: PapersBench) -> PaperFindings:
        """Replay the analytic rule with each."""
        texts = replayed(bench, self, self.costs)
        found = {h: texts.under_all({most: papers_analytic(most, h) for most in WINDOWS}) for h in self.histories}
        rows = [{"h": h} | {f"γ_max {most}": each.rate for most, each in found[h].items()} for h in found]
        gains = [found[7][most].faster_than(found[5][most]) for most in WINDOWS]
        return PaperFindings({"h_7_vs_5": farthest(gains, 1)}, {"Tokens a second": rows})


class InitialLengths(PaperExperiment):
    """GammaTune, Table 2 and Figure 1: its methods over several initial lengths.

    A method's speed is the mean over initial lengths of tokens a second; its spread their standard deviation ÷ mean.
    """

    replays = 1
    costs: str
    initials: tuple[int, ...]
    methods: dict[str, str]
    """Our rule by the paper's name."""
    constants: dict[str, dict[str, tuple[Any, ...]]]
    """By method, constants among which those are chosen that are best on other texts; the papers' are among them."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Replay every method from every initial length, and from γ = 4 with every constant."""
        texts = replayed(bench, self, self.costs)
        found = {
            name: texts.under_all({k: begun(bench, own, k) for k in self.initials if k <= deepest(bench)})
            for name, own in self.methods.items()
        }
        picked = {name: chosen(bench, texts, self.methods[name], grid) for name, grid in self.constants.items()}
        speeds = {name: np.mean([e.tokens / e.ms for e in some.values()], axis=0) for name, some in found.items()}
        figures = self._figures(found, speeds, picked)
        original = "SpecDecode"
        rows = [
            {"method": name, "÷ SpecDecode": float(speeds[name].sum() / speeds[original].sum()), "spread": spread(some)}
            for name, some in found.items()
        ]
        best = tuned(found[original])
        against = [{"method": name, "÷ SpecDecode": str(ratio_of_sums(best, ms))} for name, ms in picked.items()]
        curves = [Curve(name, [(float(i), each.rate) for i, each in some.items()]) for name, some in found.items()]
        tables: dict[str, Rows] = {
            f"Mean over initial lengths, {texts.costs_told}": rows,
            "Constants, and the fixed length, chosen on other texts": against,
        }
        return PaperFindings(figures, tables, {"speed": Picture("initial γ", "tokens a second", curves)})

    def _figures(
        self, found: Mapping[str, ByInitial], speeds: Mapping[str, Floats], picked: Mapping[str, Floats]
    ) -> dict[str, PaperFigure]:
        original, best = found["SpecDecode"], tuned(found["SpecDecode"])
        keys = {name: name.lower().replace("+", "_plus") for name in found if name != "SpecDecode"}
        figures = {f"{key}_vs_sd": ratio_of_sums(speeds[name], speeds["SpecDecode"]) for name, key in keys.items()}
        heuristic = max(("HFHeuristic", "AssistantThreshold"), key=lambda name: float(speeds[name].sum()))
        figures["plus_vs_best_heuristic"] = ratio_of_sums(speeds["GammaTune+"], speeds[heuristic])
        figures["gammatune_vs_hf"] = ratio_of_sums(speeds["GammaTune"], speeds["HFHeuristic"])
        plus_ms = np.mean([each.ms for each in found["GammaTune+"].values()], axis=0)
        figures["plus_vs_tuned_sd"] = ratio_of_sums(best, plus_ms)
        for name in ("GammaTune", "GammaTune+"):
            figures[f"{keys[name]}_chosen_vs_tuned_sd"] = ratio_of_sums(best, picked[name])
            figures[f"{keys[name]}_spread_less"] = _spread_less(original, found[name])
        return figures


def spread(rules: ByInitial, keep: npt.NDArray[np.bool_] | slice = slice(None)) -> float:
    """Return the standard deviation ÷ mean of a method's rates over initial lengths, on the texts that are kept."""
    rates = [float(each.tokens[keep].sum() / each.ms[keep].sum()) for each in rules.values()]
    return float(np.std(rates, ddof=1) / np.mean(rates))


def _spread_less(one: ByInitial, other: ByInitial) -> PaperFigure:
    """Return by how much the spread is lower with ``other``, and its jackknife error over texts."""
    count = len(next(iter(one.values())).ms)
    return jackknife(lambda keep: spread(one, keep) - spread(other, keep), count)
