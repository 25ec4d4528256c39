"""Speed at a given acceptance: after a real pass of the draft its token is replaced, with chance α by the token that
the target is known to say, else by another one. So passes cost what they cost, and α is what is asked for.

OSD's Tables 2 and 8, on the machine that runs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.figures import PaperFigure, least, mean_of, ratio_of_sums
from benchmarks.papers.experiment import Curve, PaperExperiment, PaperFindings, PapersBench, Picture
from benchmarks.papers.experiments.arithmetic import speed_up
from benchmarks.papers.experiments.timing import TimedAnswer, TimedEngine, by_turns, speed_up_of
from osd.bench.contenders import Tokens
from osd.draft import Draft
from osd.drafters.base import DraftRequest, MakeOverride, PassSignals
from osd.models.pair import row_limit
from osd.sequence import SequenceState
from storage.errors import BadInput
from storage.records import DEFAULT_DRAFT

Texts = Mapping[Tokens, Sequence[int]]
"""The target's answers by prompt."""
Answers = Mapping[float, Sequence[TimedAnswer]]
"""By α; 0 for the target alone."""


class KnownText:
    """Override of one round's chains: the known text's tokens, each wrong with chance 1 − α."""

    def __init__(
        self, rows: Sequence[SequenceState], texts: Texts, alpha: float, chance: random.Random, vocabulary: int
    ) -> None:
        """``vocabulary``: tokens that there are."""
        self._known = [texts[tuple(row.request.prompt_tokens)] for row in rows]
        self._places = [len(row.tokens) - row.prompt_len for row in rows]
        self._alpha, self._chance, self._vocabulary = alpha, chance, vocabulary

    def needs_draft(self, going: Sequence[bool]) -> bool:
        """Say that the draft is always asked: its pass is to be paid for."""
        return True

    def put_in(self) -> tuple[list[int], PassSignals]:
        """Raise: the draft is always asked."""
        raise AssertionError("the draft is asked for every token")

    def overrule(self, chosen: Tensor, q: Tensor | None, signals: PassSignals) -> tuple[Tensor, PassSignals]:
        """Return the known tokens (B,), some of them wrong, in place of the draft's."""
        tokens = []
        for known, place in zip(self._known, self._places, strict=True):
            said = known[place] if place < len(known) else 0
            right = self._chance.random() < self._alpha
            tokens.append(said if right else (said + 1) % self._vocabulary)
        self._places = [place + 1 for place in self._places]
        return torch.tensor(tokens, device=chosen.device, dtype=chosen.dtype), signals


class OverriddenDrafts:
    """A drafter whose chains have other tokens put in, and is the drafter it wraps in all else."""

    def __init__(self, drafting: Any, override: MakeOverride) -> None:
        self._drafting, self._override = drafting, override

    def propose(self, request: DraftRequest) -> Draft:
        """Draft; see :meth:`osd.drafters.base.Drafting.propose`."""
        draft: Draft = self._drafting.propose(replace(request, override=self._override))
        return draft

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafting, name)


class GivenAcceptance(PaperExperiment):
    """An experiment with one arm for each α, beside the target alone."""

    gamma: int
    alphas: tuple[float, ...]

    def arm(self, bench: PapersBench, texts: Texts, alpha: float, tokens: int, *, whole: bool = False) -> TimedEngine:
        """Return what decodes prompts whose answers are known. ``whole``: whether answers go on past end tokens."""
        chance, vocabulary = random.Random(bench.seed), int(bench.pair.target.module.config.vocab_size)

        def wrap(drafting: Any) -> OverriddenDrafts:
            return OverriddenDrafts(drafting, lambda rows, _: KnownText(rows, texts, alpha, chance, vocabulary))

        return TimedEngine(bench.pair, bench.settings, tokens, gamma=self.gamma, whole=whole, wrap=wrap)

    def prompts(self, bench: PapersBench) -> list[Tokens]:
        """Return prompts of all data sets."""
        return [prompt for some in bench.sets(self.texts, self.tokens).values() for prompt in some]


class Speeds(GivenAcceptance):
    """OSD's Table 2: speed-up over the target alone by α, and what Eq. 1 expects with the c that is measured."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Time every α beside the target alone: by turns, prompt by prompt."""
        prompts, alone = self.prompts(bench), TimedEngine(bench.pair, bench.settings, self.tokens, gamma=0)
        texts = alone.answers(prompts)
        arms = {a: self.arm(bench, texts, a, self.tokens) for a in self.alphas}
        seen = by_turns(bench, {0.0: alone, **arms}, prompts, "speed at a given acceptance")
        draft_ms = arms[self.alphas[-1]].engine.pass_costs.draft_ms(DEFAULT_DRAFT)
        target_ms = alone.engine.pass_costs.verify_ms(1)
        return self.told(seen, draft_ms / target_ms if draft_ms and target_ms else None)

    def told(self, seen: Answers, c: float | None) -> PaperFindings:
        """Return figures. ``c``: milliseconds of a draft pass ÷ of a target pass, None where they were not timed."""
        figures, rows, of_theory = {}, [], []
        for a in self.alphas:
            found = figures[f"speed_up_{a:g}"] = speed_up_of(seen[a], seen[0.0])
            accepted, rejected = sum(each.accepted for each in seen[a]), sum(each.rejected for each in seen[a])
            expected = speed_up(a, self.gamma, c) if c else None
            rows.append({"α": a, "α as counted": accepted / max(1, accepted + rejected), "speed-up": str(found),
                         "Eq. 1": expected})  # fmt: skip
            if expected:
                error = None if found.error is None else found.error / expected
                of_theory.append(PaperFigure(found.value / expected, error, found.count))
        if of_theory:
            figures["least_of_eq_1"] = least(of_theory)
        high, low = ([each.rate for each in seen[a]] for a in (0.9, 0.5))
        figures["speed_at_0.9_vs_0.5"] = ratio_of_sums(high, low)
        curves = [Curve("measured", [(a, figures[f"speed_up_{a:g}"].value) for a in self.alphas])]
        curves += [Curve("Eq. 1", [(a, speed_up(a, self.gamma, c)) for a in self.alphas])] if c else []
        title = f"k = {self.gamma}, this machine" + (f", c = {c:.2f}" if c else "")
        return PaperFindings(figures, {title: rows}, {"speed-up": Picture("α", "speed-up", curves)})


class ByLength(GivenAcceptance):
    """OSD's Table 8: speed-up by the length of the answer.

    Answers go on past their end tokens, so that all have the length that is asked for; what reading the prompt takes is
    left out, as llama.cpp tells it apart.
    """

    lengths: tuple[int, ...]
    """Those of the table; ``tokens`` is the longest that is measured."""
    prefix: int
    """Tokens of a prompt."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Time every length at every α beside the target alone: by turns, prompt by prompt."""
        longest = min(self.tokens, row_limit(bench.pair, bench.settings.serve) - self.prefix)
        prompts = prefixes(self.prompts(bench), self.prefix)
        alone = TimedEngine(bench.pair, bench.settings, longest, gamma=0, whole=True)
        texts = alone.answers(prompts)
        arms = {0.0: alone, **{a: self.arm(bench, texts, a, longest, whole=True) for a in self.alphas}}
        lengths = [each for each in self.lengths if each <= longest]
        return self.told({n: by_turns(bench, arms, prompts, f"answers of {n} tokens", n) for n in lengths})

    def told(self, found: Mapping[int, Answers]) -> PaperFindings:
        """Compare lengths at each α, and what both bring."""
        ratios = {n: {a: _later_ratios(some[a], some[0.0]) for a in self.alphas} for n, some in found.items()}
        short, long = ratios[min(ratios)], ratios[max(ratios)]
        gains = {a: long[a] - short[a] for a in self.alphas}
        mean_gain = np.mean([*gains.values()], axis=0)
        figures = {
            "gain_of_length": mean_of(mean_gain), "least_gain_of_length": least(map(mean_of, gains.values())),
            "gain_of_alpha_less_that_of_length": mean_of(short[self.alphas[-1]] - short[self.alphas[0]] - mean_gain),
        }  # fmt: skip
        rows = [{"tokens": n, **{f"α = {a:g}": str(mean_of(ratios[n][a])) for a in self.alphas}} for n in ratios]
        curves = [Curve(f"α = {a:g}", [(float(n), mean_of(ratios[n][a]).value) for n in ratios]) for a in self.alphas]
        title = f"Speed-up, k = {self.gamma}, this machine"
        return PaperFindings(figures, {title: rows}, {"length": Picture("tokens", "speed-up", curves)})


def prefixes(prompts: Sequence[Tokens], length: int) -> list[Tokens]:
    """Return as many prompts of ``length`` tokens, put together of these. Raises BadInput where they are too few."""
    count = len(prompts)
    joined = [token for prompt in prompts for token in prompt]
    while len(joined) > 1 and len(joined) < count * length:
        joined += joined[1:]  # each time begun elsewhere
    found = [tuple(joined[i * length : (i + 1) * length]) for i in range(count)]
    if not joined or len(set(found)) < count:
        raise BadInput(reason=f"the prompts are too few for {count} of {length} tokens; give another --prompts")
    return found


def _later_ratios(some: Sequence[TimedAnswer], alone: Sequence[TimedAnswer]) -> np.ndarray:
    return np.array([one.later_rate / other.later_rate for one, other in zip(some, alone, strict=True)])
