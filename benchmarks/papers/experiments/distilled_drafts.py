"""A draft distilled offline on each data set, and what it says of texts that it has not seen: OSD's Table 3 (speed),
Table 6 and Figure 7 (tokens that it learned).

Teacher sampling with forward KL, two epochs, as section 5.4 of the paper has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from benchmarks.distil.bench import distil_draft, split
from benchmarks.distil.result import REFERENCE
from benchmarks.distil.texts import answered
from benchmarks.papers.claims import PaperFigure, mean_of
from benchmarks.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture
from benchmarks.papers.experiments.timing import TimedAnswer, TimedEngine, by_turns, ratios_of, speed_up_of
from osd.bench.contenders import Tokens
from osd.bench.harness.prompts import tokens_by_set
from osd.drafters.scoring import logits_of
from osd.engine.session import in_folder
from osd.models.model import Model
from osd.models.pair import Pair, load_model, load_pair, row_limit
from storage.insights.judged import JudgedPositions
from storage.insights.tokens import TokenRow, ranked
from storage.records import RequestSamples, TokenKind
from storage.sampling import GREEDY

GAMMA, EPOCHS = 5, 2
POSITIONS = {True: 10_000, False: 400}
"""Positions that a draft learns from at most, once an epoch: full and small."""
TESTS = {True: 100, False: 6}
TIMED = {True: 16, False: 4}
"""Texts of each data set that are read, and of those the ones that are decoded by the clock."""
SHOWN = 15
"""Tokens in a row of Table 6."""


class DistilledSet(NamedTuple):
    """A data set, and the draft that learned it."""

    name: str
    draft: Model
    test: Sequence[RequestSamples]
    """The target's answers to prompts that it did not learn."""

    def prompts(self, count: int) -> list[Tokens]:
        """Return the first prompts of the tests."""
        return [tuple(each.tokens[: each.prompt_len].tolist()) for each in self.test[:count]]


class DistilledDrafts(NamedTuple):
    """The pair, and a draft for each data set."""

    pair: Pair
    sets: Sequence[DistilledSet]


def distilled_drafts(bench: PapersBench, sizes: PaperSizes) -> DistilledDrafts:
    """Return the drafts; what a stopped run has made is kept. Raises TrainingFailed."""
    made: DistilledDrafts = bench.once("distilled-drafts", lambda: _made(bench, sizes))
    return made


def _made(bench: PapersBench, sizes: PaperSizes) -> DistilledDrafts:
    serve, tests = bench.settings.serve, TESTS[bench.full]
    pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
    longest = row_limit(pair, serve) - sizes.tokens
    sets = tokens_by_set(pair.tokenizer, bench.prompts, sizes.texts + tests, longest, seed=bench.seed)
    found, folder = [], bench.folder(f"distilled-drafts-{sizes.texts}x{sizes.tokens}")
    for name, prompts in split(sets, tests).items():
        bench.watch.at(f"distilling a draft on {name}")
        own = folder / name
        learned = answered(pair, bench.settings, prompts, GREEDY, sizes.tokens, POSITIONS[bench.full], own)
        if not (own / "draft").exists():
            settings = bench.settings.changed(learn=REFERENCE.learn, storage={"directory": own / "data"})
            distil_draft(settings, learned.learn, in_folder(pair.draft).name, own / "draft", EPOCHS, told=name)
        model = load_model(own / "draft", pair.device, serve.dtype)
        found.append(DistilledSet(name, replace(model, shared=pair.draft.shared), learned.test))
    return DistilledDrafts(pair, found)


def speeds(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """OSD's Table 3: tokens a second on each data set, with the draft distilled on it and with the one that it was,
    beside the target alone: by turns, prompt by prompt."""
    made = distilled_drafts(bench, sizes)
    alone = TimedEngine(made.pair, bench.settings, sizes.tokens, gamma=0)
    before = TimedEngine(made.pair, bench.settings, sizes.tokens, gamma=GAMMA)
    seen: dict[str, dict[str, list[TimedAnswer]]] = {}
    for one in made.sets:
        after = TimedEngine(replace(made.pair, draft=one.draft), bench.settings, sizes.tokens, gamma=GAMMA)
        arms = {"alone": alone, "before": before, "after": after}
        seen[one.name] = by_turns(arms, one.prompts(TIMED[bench.full]), bench.watch, f"{one.name}, distilled")
    return speeds_told(seen)


def speeds_told(seen: Mapping[str, Mapping[str, Sequence[TimedAnswer]]]) -> PaperFindings:
    """Return figures; ``seen``: answers by data set and arm."""
    rows, ups = [], {}
    for name, some in seen.items():
        ups[name] = speed_up_of(some["after"], some["alone"])
        rows.append({"data set": name, "as it was": str(speed_up_of(some["before"], some["alone"])),
                     "distilled": str(ups[name]), "tokens a round before": _round_length(some["before"]),
                     "after": _round_length(some["after"])})  # fmt: skip
    learned = [ratio for some in seen.values() for ratio in ratios_of(some["after"], some["before"])]
    over = [ratio for some in seen.values() for ratio in ratios_of(some["after"], some["alone"])]
    figures = {
        "least_speed_up": min(ups.values(), key=lambda each: each.value), "speed_up": mean_of(over),
        "after_vs_before": mean_of(learned),
    }  # fmt: skip
    return PaperFindings(figures, {f"Speed-up over the target alone, k = {GAMMA}, this machine": rows})


def _round_length(some: Sequence[TimedAnswer]) -> float:
    """Return tokens a round; of nothing but rounds without a draft 1."""
    return round(sum(len(each.tokens) for each in some) / max(1, sum(each.rounds for each in some)), 2)


def judged_by_reading(draft: Model, texts: Sequence[RequestSamples]) -> JudgedPositions:
    """Return what a draft says at each position of the target's answers: it is accepted where it is the answer's."""
    reader = draft.decoder(1, max(len(text.tokens) for text in texts))
    said = [logits_of(reader, text.tokens.tolist(), len(text)).argmax(-1).cpu().numpy() for text in texts]
    drafted = np.concatenate(said).astype(np.int64)
    emitted = np.concatenate([text.tokens[text.prompt_len :] for text in texts]).astype(np.int64)
    kinds = np.where(drafted == emitted, TokenKind.ACCEPTED, TokenKind.REJECTED).astype(np.int64)
    return JudgedPositions(len(texts), kinds, drafted, emitted)


def tokens_learned(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """OSD's Figure 7 and Table 6: precision and recall of each data set's most frequent tokens on texts that the draft
    has not seen, before and after distillation."""
    made = distilled_drafts(bench, sizes)
    found, shares = {}, []
    for one in made.sets:
        bench.watch.at(f"tokens of {one.name}")
        before, after = (judged_by_reading(draft, one.test) for draft in (made.pair.draft, one.draft))
        found[one.name] = ranked(before, after)
        shares.append(sum(row.after.appeared for row in found[one.name]) / len(after))
    tokenizer = made.pair.tokenizer
    spell = (lambda token: repr(tokenizer.decode([token]))) if tokenizer else str
    return tokens_told(found, shares, {name: {r.token: spell(r.token) for r in rows} for name, rows in found.items()})


def tokens_told(
    found: Mapping[str, Sequence[TokenRow]], shares: Sequence[float], names: Mapping[str, Mapping[int, str]]
) -> PaperFindings:
    """Return figures; ``shares``: of all tokens, those of the rows; ``names``: tokens as people read them."""
    gains, figures, rows = _gains(found), {}, []
    for measure in ("precision", "recall"):
        by_set = gains[measure]
        figures[f"{measure}_gain"] = mean_of([gain for some in by_set.values() for gain in some.values()])
        least = min(by_set.values(), key=lambda some: float(np.mean([*some.values()])))
        figures[f"least_{measure}_gain"] = mean_of([*least.values()])
        for name, some in by_set.items():
            best = sorted(some, key=lambda token: -some[token])[:SHOWN]
            rows.append({"data set": name, "gains most": measure, "tokens": ", ".join(names[name][t] for t in best)})
    figures["share_of_tokens"] = mean_of(shares)
    figures["own_tokens_among_best"] = _own_among_best(gains["recall"])
    curves = [
        Curve(f"{measure} {side}", _smoothed(next(iter(found.values())), measure, side))
        for measure in ("precision", "recall") for side in ("before", "after")
    ]  # fmt: skip
    title = f"Frequent tokens of {next(iter(found))}, mean of five"
    return PaperFindings(figures, {"Tokens that improve the most": rows}, {title: Picture("rank", "share", curves)})


def _gains(found: Mapping[str, Sequence[TokenRow]]) -> dict[str, dict[str, dict[int, float]]]:
    """Return gains by measure, data set and token; a token that was never proposed had a precision of 0."""
    precise = {n: {r.token: (r.after.precision or 0.0) - (r.before.precision or 0.0) for r in some}
               for n, some in found.items()}  # fmt: skip
    recalled = {n: {r.token: r.recall_gain or 0.0 for r in some} for n, some in found.items()}
    return {"precision": precise, "recall": recalled}


def _own_among_best(gains: Mapping[str, Mapping[int, float]]) -> PaperFigure:
    """Return, of each set's tokens that gain most, the share that is not among another set's: over data sets."""
    best = {name: set(sorted(some, key=lambda token: -some[token])[:SHOWN]) for name, some in gains.items()}
    shares = []
    for name, some in best.items():
        others: set[int] = set().union(*(theirs for each, theirs in best.items() if each != name))
        shares.append(len(some - others) / max(1, len(some)))
    return mean_of(shares)


def _smoothed(rows: Sequence[TokenRow], measure: str, side: str, wide: int = 5) -> list[tuple[float, float]]:
    """Return a measure over ranks, each the mean of the last ``wide``."""
    values = [float(getattr(getattr(row, side), measure) or 0.0) for row in rows]
    return [(float(i), float(np.mean(values[max(0, i - wide) : i]))) for i in range(1, len(values) + 1)]


SMALL, FULL = PaperSizes(24, 24, minutes=1.5), PaperSizes(400, 64, minutes=8)
SPEEDS, TOKENS = (PaperExperiment(run, SMALL, FULL, "distilled drafts") for run in (speeds, tokens_learned))
