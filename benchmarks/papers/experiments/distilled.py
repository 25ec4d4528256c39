"""Drafts distilled offline, and what they say of texts that they have not seen: OSD's Tables 1, 3, 6 and Figure 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.distil.bench import (
    ORIGINAL,
    REFERENCE,
    DistilArm,
    DistilCell,
    DistilPlan,
    distil_draft,
    distil_table,
    split,
    tables_of,
)  # fmt: skip
from benchmarks.distil.texts import answered
from benchmarks.figures import PaperFigure, difference_of_shares, least, mean_of
from benchmarks.papers.experiment import Curve, PaperExperiment, PaperFindings, PapersBench, Picture, shared
from benchmarks.papers.experiments.timing import TimedAnswer, TimedEngine, by_turns, ratios_of, speed_up_of
from osd.drafters.scoring import logits_of
from osd.engine.session import in_folder
from osd.models.model import Model
from osd.models.pair import with_draft
from storage.insights.tokens import JudgedPositions, TokenRow, ranked
from storage.records import RequestSamples, TokenKind
from storage.sampling import GREEDY

OTHERS = {
    "original": DistilArm(ORIGINAL), "ft": DistilArm("FT", "cross_entropy"), "sf": DistilArm("SF", REFERENCE.loss),
    "mixf": DistilArm("MixF", REFERENCE.loss), "reverse_kl": DistilArm("TF", "reverse_kl"),
    "jsd": DistilArm("TF", "jsd"),
}  # fmt: skip
"""Drafts that are compared with TF and forward KL, which the paper found best."""
MEASURES = ("precision", "recall")
SHOWN = 15
"""Tokens in a row of Table 6."""


class DistilTable(PaperExperiment):
    """OSD's Table 1 by `python -m benchmarks distil`: whose tokens a draft learns behind, and by which distance."""

    temperatures: tuple[float, ...]
    positions: int
    """Positions of each data set that a draft learns from at most, once an epoch."""
    epochs: int

    def run(self, bench: PapersBench) -> PaperFindings:
        """Compare all drafts with TF and forward KL on the same texts of all data sets."""
        cells = self.cells(bench)
        sampled = {0.0: "", 1.0: "_sampled"}
        figures = {
            f"tf_minus_{name}{sampled[t]}": _less(cells, arm, t) for t in self.temperatures
            for name, arm in OTHERS.items()
        }  # fmt: skip
        return PaperFindings(figures, tables_of(cells))

    @shared("distil")
    def cells(self, bench: PapersBench) -> list[DistilCell]:
        """Return the drafts, measured once."""
        out = bench.folder(self.named("distil"))
        plan = DistilPlan(
            prompts=tuple(bench.prompts), requests=self.texts, test_requests=max(2, self.texts // 4),
            positions=self.positions, max_tokens=self.tokens, epochs=self.epochs, temperature=self.temperatures,
            seed=bench.seed, out=out,
        )  # fmt: skip
        arms = [arm for arm in plan.arms if arm.name not in ("SF", "MixF") or arm.loss == REFERENCE.loss]
        return distil_table(plan, arms, bench.pair, bench.settings, bench.watch)[1]


def _less(cells: Sequence[DistilCell], arm: DistilArm, temperature: float) -> PaperFigure:
    """Return α of TF with forward KL less that of another draft, over the texts of all data sets."""
    hits: dict[DistilArm, list[float]] = {REFERENCE: [], arm: []}
    positions: list[int] = []
    for cell in cells:
        if cell.job.place.temperature == temperature and cell.job.arm in hits:
            hits[cell.job.arm] += cell.found.accepted
            positions += cell.found.positions if cell.job.arm == REFERENCE else []
    return difference_of_shares(hits[REFERENCE], hits[arm], positions)


def distilled_on(
    bench: PapersBench, samples: Path, out: Path, epochs: int, told: str, *asked: object, start: Path | None = None
) -> Path:
    """Return ``out``, the folder of a draft distilled on a file of the target's answers (teacher sampling, forward KL,
    as section 5.4 of OSD has it); what a stopped run has made is kept. ``asked``: further options of the trainer;
    ``start``: other weights than the pair's draft's. Raises TrainingFailed."""
    if not out.exists():
        bench.watch.at(f"distilling a draft: {told}")
        whose = {"serve": {"target": in_folder(bench.pair.target).name}}
        settings = bench.settings.changed(learn=REFERENCE.learn, storage={"directory": out.parent / "data"}, **whose)
        distil_draft(settings, samples, start or in_folder(bench.pair.draft).name, out, epochs, *asked, told=told)
    return out


class DistilledSet(NamedTuple):
    """A data set, and the draft that learned it."""

    name: str
    draft: Model
    test: Sequence[RequestSamples]
    """The target's answers to prompts that it did not learn."""


class DistilledDrafts(PaperExperiment):
    """An experiment with a draft for each data set."""

    epochs: int
    positions: int
    """Positions that a draft learns from at most, once an epoch."""
    tests: int
    """Texts of each data set that are read."""

    @shared("distilled-drafts")
    def drafts(self, bench: PapersBench) -> Sequence[DistilledSet]:
        """Return the drafts, made once. Raises TrainingFailed."""
        pair, folder, found = bench.pair, bench.folder(self.named("distilled-drafts")), []
        for name, prompts in split(bench.sets(self.texts + self.tests, self.tokens), self.tests).items():
            own = folder / name
            learned = answered(pair, bench.settings, prompts, GREEDY, self.tokens, self.positions, own)
            made = distilled_on(bench, learned.learn, own / "draft", self.epochs, name)
            draft = with_draft(pair, made, bench.settings.serve.dtype).draft
            found.append(DistilledSet(name, draft, learned.test))
        return found


class DistilledSpeeds(DistilledDrafts):
    """OSD's Table 3: tokens a second on each data set, with the draft distilled on it and with the one that it was,
    beside the target alone: by turns, prompt by prompt."""

    gamma: int
    timed: int
    """Texts of each data set that are decoded by the clock."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Time all three."""
        drafts, seen = self.drafts(bench), {}
        alone = TimedEngine(bench.pair, bench.settings, self.tokens, gamma=0)
        before = TimedEngine(bench.pair, bench.settings, self.tokens, gamma=self.gamma)
        for one in drafts:
            pair = replace(bench.pair, draft=one.draft)
            after = TimedEngine(pair, bench.settings, self.tokens, gamma=self.gamma)
            prompts = [tuple(each.tokens[: each.prompt_len].tolist()) for each in one.test[: self.timed]]
            arms = {"alone": alone, "before": before, "after": after}
            seen[one.name] = by_turns(bench, arms, prompts, f"{one.name}, distilled")
        return self.told(seen)

    def told(self, seen: Mapping[str, Mapping[str, Sequence[TimedAnswer]]]) -> PaperFindings:
        """Return figures; ``seen``: answers by data set and arm."""
        ups = {name: speed_up_of(some["after"], some["alone"]) for name, some in seen.items()}
        rows = [
            {"data set": name, "as it was": str(speed_up_of(some["before"], some["alone"])),
             "distilled": str(ups[name]), "tokens a round before": _round_length(some["before"]),
             "after": _round_length(some["after"])}
            for name, some in seen.items()
        ]  # fmt: skip
        pooled = {
            arm: mean_of([r for some in seen.values() for r in ratios_of(some["after"], some[arm])])
            for arm in ("alone", "before")
        }
        figures = {
            "least_speed_up": least(ups.values()), "speed_up": pooled["alone"], "after_vs_before": pooled["before"],
        }  # fmt: skip
        return PaperFindings(figures, {f"Speed-up over the target alone, k = {self.gamma}, this machine": rows})


def _round_length(some: Sequence[TimedAnswer]) -> float:
    """Return tokens a round; of nothing but rounds without a draft 1."""
    return round(sum(len(each.tokens) for each in some) / max(1, sum(each.rounds for each in some)), 2)


class TokensLearned(DistilledDrafts):
    """OSD's Figure 7 and Table 6: precision and recall of each data set's most frequent tokens on texts that the draft
    has not seen, before and after distillation."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Let both drafts read the tests."""
        found, shares = {}, []
        for one in self.drafts(bench):
            bench.watch.at(f"tokens of {one.name}")
            before, after = (judged_by_reading(draft, one.test) for draft in (bench.pair.draft, one.draft))
            found[one.name] = ranked(before, after)
            shares.append(sum(row.after.appeared for row in found[one.name]) / len(after))
        tokenizer = bench.pair.tokenizer
        spell = (lambda token: repr(tokenizer.decode([token]))) if tokenizer else str
        return tokens_told(found, shares, {n: {r.token: spell(r.token) for r in rows} for n, rows in found.items()})


def judged_by_reading(draft: Model, texts: Sequence[RequestSamples]) -> JudgedPositions:
    """Return what a draft says at each position of the target's answers: it is accepted where it is the answer's."""
    reader = draft.decoder(1, max(len(text.tokens) for text in texts))
    said = [logits_of(reader, text.tokens.tolist(), len(text)).argmax(-1).cpu().numpy() for text in texts]
    drafted = np.concatenate(said).astype(np.int64)
    emitted = np.concatenate([text.tokens[text.prompt_len :] for text in texts]).astype(np.int64)
    kinds = np.where(drafted == emitted, TokenKind.ACCEPTED, TokenKind.REJECTED).astype(np.int64)
    return JudgedPositions(len(texts), kinds, drafted, emitted)


def tokens_told(
    found: Mapping[str, Sequence[TokenRow]], shares: Sequence[float], names: Mapping[str, Mapping[int, str]]
) -> PaperFindings:
    """Return figures; ``shares``: of all tokens, those of the rows; ``names``: tokens as people read them."""
    figures, rows, best = {}, [], {}
    for measure in MEASURES:
        gains = {name: {row.token: _gain(row, measure) for row in some} for name, some in found.items()}
        figures[f"{measure}_gain"] = mean_of([gain for some in gains.values() for gain in some.values()])
        figures[f"least_{measure}_gain"] = least(mean_of([*some.values()]) for some in gains.values())
        best = {name: sorted(some, key=lambda token: -some[token])[:SHOWN] for name, some in gains.items()}
        for name, tokens in best.items():
            told = ", ".join(names[name][token] for token in tokens)
            rows.append({"data set": name, "gains most": measure, "tokens": told})
    figures |= {"share_of_tokens": mean_of(shares), "own_tokens_among_best": _own_among(best)}
    first, some = next(iter(found.items()))
    curves = [
        Curve(f"{measure} {side}", _smoothed(some, measure, side))
        for measure in MEASURES for side in ("before", "after")
    ]  # fmt: skip
    pictures = {f"Frequent tokens of {first}, mean of five": Picture("rank", "share", curves)}
    return PaperFindings(figures, {"Tokens that improve the most": rows}, pictures)


def _gain(row: TokenRow, measure: str) -> float:
    """Return what a token gained; one that was never proposed had a precision of 0."""
    if measure == "recall":
        return row.recall_gain or 0.0
    return (row.after.precision or 0.0) - (row.before.precision or 0.0)


def _own_among(best: Mapping[str, Sequence[int]]) -> PaperFigure:
    """Return, of each set's tokens that gain most, the share that is not among another set's: over data sets."""
    shares = []
    for name, tokens in best.items():
        others = {token for other, theirs in best.items() if other != name for token in theirs}
        shares.append(len(set(tokens) - others) / max(1, len(tokens)))
    return mean_of(shares)


def _smoothed(rows: Sequence[TokenRow], measure: str, side: str, wide: int = 5) -> list[tuple[float, float]]:
    """Return a measure over ranks, each the mean of the last ``wide``."""
    values = [float(getattr(getattr(row, side), measure) or 0.0) for row in rows]
    return [(float(i), float(np.mean(values[max(0, i - wide) : i]))) for i in range(1, len(values) + 1)]
