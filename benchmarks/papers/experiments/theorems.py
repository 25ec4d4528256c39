"""Theorems and equations on γ, on texts of known acceptance and on the pair's own recorded rounds (see replays.py)."""

from __future__ import annotations

import numpy as np

from benchmarks.figures import exact, mean_of, ratio_of_sums
from benchmarks.gamma.costed import Floats
from benchmarks.gamma.costs import find_costs
from benchmarks.gamma.oracle import OracleController
from benchmarks.gamma.rounds import RecordedText
from benchmarks.gamma.simulate import Make, Simulator
from benchmarks.papers.experiment import Curve, PaperExperiment, PaperFindings, PapersBench, Picture
from benchmarks.papers.experiments.replays import (
    DEPTH,
    PAPERS_H,
    ReplayedTexts,
    deepest,
    fixed,
    papers_analytic,
    replayed,
    tuned,
)


def made_text(beta: float, seed: int, length: int) -> RecordedText:
    """Return a sampled text of which each drafted token is accepted with chance β, whatever came before."""
    shape = (length, DEPTH)
    chances, nothing = np.full(shape, beta, np.float32), np.zeros(shape, np.int32)
    prompt, text = np.array([1 + seed], np.int32), np.arange(length, dtype=np.int32)
    return RecordedText(f"β = {beta:g}", 1.0, length, prompt, text, nothing, chances, chances, chances)


class Estimates(PaperExperiment):
    """On-the-fly adaptation, Theorem 1: variance of Eq. 2 over the last h rounds, under the analytic rule ÷ under a
    window of 5."""

    costs: str
    betas: tuple[float, ...]

    def run(self, bench: PapersBench) -> PaperFindings:
        """Replay both rules over made texts."""
        figures, rows = {}, []
        for beta in self.betas:
            ratios, kept = [], []
            for seed in range(self.seeds):
                number = 1000 * (bench.seed + seed)
                made = [made_text(beta, number + i, self.tokens) for i in range(self.texts)]
                texts = ReplayedTexts((), made, find_costs(self.costs))
                ours, theirs = (estimated(texts, make) for make in (papers_analytic(), fixed(bench, 5)))
                ratios.append(float(np.var(ours) / np.var(theirs)))
                kept.append((np.std(ours), np.std(theirs), np.abs(ours - beta).mean(), np.abs(theirs - beta).mean()))
            figures[f"variance_ratio_{beta:g}"] = mean_of(ratios)
            names = ("deviation, adaptive", "deviation, fixed", "error, adaptive", "error, fixed")
            deviations = dict(zip(names, np.mean(kept, axis=0).tolist(), strict=True))
            rows.append({"β": beta, "variance ÷ fixed": str(mean_of(ratios)), **deviations})
        return PaperFindings(figures, {f"Eq. 2 over the last {PAPERS_H} rounds": rows})


def estimated(texts: ReplayedTexts, make: Make) -> Floats:
    """Return Eq. 2 at the end of each text: each has a rule of its own, and coins of its own."""
    found = []
    for number, text in enumerate(texts.texts):
        seen = Simulator(make, texts.table, seed=int(text.prompt[0]) + number).run([text]).by_request[0]
        last = [each for each in seen if each.drafted][-PAPERS_H:]
        accepted, rejected = sum(each.accepted for each in last), sum(each.rejected for each in last)
        found.append(accepted / max(1, accepted + rejected))
    return np.array(found)


class Throughput(PaperExperiment):
    """On-the-fly adaptation, Theorem 2: L ÷ (b n + a L ÷ ρ) against what the rounds took."""

    replays = 1
    costs: str

    def run(self, bench: PapersBench) -> PaperFindings:
        """Replay fixed windows 1 to 12."""
        texts, rows = replayed(bench, self, self.costs), []
        for gamma in range(1, 13):
            found = texts.under(fixed(bench, gamma))
            length, n, drafted = found.tokens.sum(), found.rounds.sum(), found.drafted.sum()
            a, b = texts.table.draft_ms(1, 1), texts.table.verify_ms(1, gamma + 1)
            worded = length / (b * n + a * length / max(found.accepted.sum() / drafted, 1e-9))
            proved = length / (b * n + a * drafted)
            rows.append({"γ": gamma, "as worded": float(1e3 * worded), "as proved": float(1e3 * proved),
                         "replayed": found.rate})  # fmt: skip
        off = {name: max(abs(row[name] / row["replayed"] - 1) for row in rows) for name in ("as worded", "as proved")}
        figures = {"off_by": exact(off["as worded"]), "off_by_as_proved": exact(off["as proved"])}
        return PaperFindings(figures, {"Tokens a second": rows})


class OracleBound(PaperExperiment):
    """SpecDec++, Theorem 4.1: stopping just before each rejection, against the best fixed length and the target alone;
    and Lemma 3.1's count of passes."""

    replays = 1
    costs: str
    lengths: tuple[int, ...]

    def run(self, bench: PapersBench) -> PaperFindings:
        """Replay the oracle, lengths and the target alone, without a warm-up."""
        found = replayed(bench, self, self.costs)
        texts = ReplayedTexts((), found.texts, found.table)
        bound, alone = texts.under(lambda _: OracleController(texts.texts, DEPTH)), texts.under(fixed(bench, 0))
        lengths = texts.under_all({k: fixed(bench, k) for k in self.lengths if k <= deepest(bench)})
        lemma_off_by = [
            float(abs((f.drafted + f.rounds).sum() - (f.tokens + f.drafted - f.accepted).sum()) / f.tokens.sum())
            for f in lengths.values()
        ]
        figures = {
            "discarded": exact(bound.discard_rate), "oracle_vs_best_k": ratio_of_sums(tuned(lengths), bound.ms),
            "oracle_vs_alone": bound.faster_than(alone), "verification_rate": ratio_of_sums(bound.rounds, bound.tokens),
            "lemma_off_by": exact(max(lemma_off_by)),
        }  # fmt: skip
        rows = [
            {"": name, "discard rate": each.discard_rate, "verification rate": each.verification_rate,
             "÷ alone": each.faster_than(alone).value}
            for name, each in [*((f"K = {k}", f) for k, f in lengths.items()), ("oracle", bound)]
        ]  # fmt: skip
        return PaperFindings(figures, {f"Costs of {texts.table.name}": rows})


class Regimes(PaperExperiment):
    """GammaTune, Figure 2a: does a round's number of accepted tokens say something of the next one's?"""

    replays = 1
    costs: str

    def run(self, bench: PapersBench) -> PaperFindings:
        """Replay a length of 8, and correlate neighbours."""
        found = replayed(bench, self, self.costs).replayed(fixed(bench, 8))
        runs = [np.array([each.accepted for each in text.rounds], float) for text in found]
        runs = [run for run in runs if len(run) > 3 and np.std(run[:-1]) and np.std(run[1:])]
        together = [float(np.corrcoef(run[:-1], run[1:])[0, 1]) for run in runs]
        varied = max(runs, key=lambda run: float(np.std(run)), default=np.zeros(1))
        curve = Curve("accepted of 8", [(float(i), float(a)) for i, a in enumerate(varied)])
        figures = {"correlation": mean_of(together)} if together else {}
        return PaperFindings(figures, pictures={"a text": Picture("round", "accepted tokens", [curve])})


class CostTheorem(PaperExperiment):
    """GammaTune, Eqs. 2 to 6: calls of both models and the cost of them, against what rounds took."""

    replays = 1
    costs: str
    gammas: tuple[int, ...]

    def run(self, bench: PapersBench) -> PaperFindings:
        """Replay fixed lengths, and compute the equations with α as counted."""
        texts = replayed(bench, self, self.costs)
        draft_ms = texts.table.draft_ms(1, 1)
        c, rows = texts.table.verify_ms(1, 1) / draft_ms, []
        for gamma in (each for each in self.gammas if each <= deepest(bench)):
            found = texts.under(fixed(bench, gamma))
            alpha = float(found.accepted.sum() / found.drafted.sum())
            steps = float(found.tokens.sum() / (alpha * gamma + 1))
            rows.append({"γ": gamma, "α": alpha, "Eq. 3: steps": steps, "steps": float(found.rounds.sum()),
                         "Eq. 6: ms": steps * (c + gamma) * draft_ms, "ms": float(found.ms.sum())})  # fmt: skip
        first, last = rows[0]["α"], rows[-1]["α"]
        figures = {
            "cost_off_by": exact(max(abs(row["Eq. 6: ms"] / row["ms"] - 1) for row in rows)),
            "alpha_at_24_vs_1": exact(last / first if first else 1),
        }
        return PaperFindings(figures, {f"Costs of {texts.table.name}": rows})
