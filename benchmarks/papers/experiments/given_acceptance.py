"""Speed at a given acceptance: after a real pass of the draft its token is replaced, with chance α by the token that
the target is known to say, else by another one. So passes cost what they cost, and α is what is asked for.

OSD's Tables 2, 7 and 8, on the machine that runs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from benchmarks.papers.claims import PaperFigure, ratio_of_sums
from benchmarks.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture
from benchmarks.papers.experiments.arithmetic import speed_up
from benchmarks.papers.experiments.timing import TimedAnswer, TimedEngine, by_turns, speed_up_of
from osd.bench.contenders import Contender, Tokens, osd_contender
from osd.bench.harness.prompts import tokens_by_set
from osd.drafters.chain_override import PassSignals
from osd.models.pair import Pair, load_pair, row_limit
from osd.sequence import SequenceState
from storage.records import DEFAULT_DRAFT

ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
GAMMA = 8
"""k of OSD's Tables 2 and 7."""


class KnownText:
    """Override of one round's chains: the known text's tokens, each wrong with chance 1 − α."""

    def __init__(
        self, rows: Sequence[SequenceState], texts: Mapping[Tokens, Sequence[int]], alpha: float, chance: random.Random,
        vocabulary: int,
    ) -> None:  # fmt: skip
        """``texts``: the target's answers by prompt; ``vocabulary``: tokens that there are."""
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


class GivenAcceptance(TimedEngine):
    """Decodes prompts whose answers are known, at one α and γ."""

    def __init__(
        self,
        pair: Pair,
        bench: PapersBench,
        texts: Mapping[Tokens, Sequence[int]],
        tokens: int,
        alpha: float,
        gamma: int,
        *,
        whole: bool = False,
    ) -> None:
        """``tokens``: of an answer at most; ``whole``: whether answers go on past end tokens."""
        super().__init__(pair, bench.settings, tokens, gamma=gamma, whole=whole)
        chance, vocabulary = random.Random(bench.seed), int(pair.target.module.config.vocab_size)
        self.engine.drafter.second = lambda rows, _: KnownText(rows, texts, alpha, chance, vocabulary)


def pair_and_prompts(bench: PapersBench, sizes: PaperSizes) -> tuple[Pair, list[Tokens]]:
    """Return the pair and prompts of all data sets."""
    serve = bench.settings.serve
    pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
    sets = tokens_by_set(
        pair.tokenizer, bench.prompts, sizes.texts, row_limit(pair, serve) - sizes.tokens, seed=bench.seed
    )
    return pair, [tokens for some in sets.values() for tokens in some]


def target_alone(pair: Pair, bench: PapersBench, tokens: int) -> Contender:
    """Return osd's engine without drafting, one request at a time."""
    alone = bench.settings.changed(gamma={"rule": "fixed", "initial": 0}, serve={"max_batch": 1, "record": "off"})
    return osd_contender("alone", pair, alone, tokens)


def known_answers(pair: Pair, bench: PapersBench, prompts: Sequence[Tokens], tokens: int) -> dict[Tokens, list[int]]:
    """Return the target's greedy answers."""
    return dict(zip(prompts, target_alone(pair, bench, tokens).decode(prompts), strict=True))


def speeds(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """OSD's Tables 2 and 7: speed-up over the target alone at α 0.5 to 0.9 and k = 8, and what Eq. 1 expects with the
    c that is measured: by turns, prompt by prompt."""
    pair, prompts = pair_and_prompts(bench, sizes)
    texts = known_answers(pair, bench, prompts, sizes.tokens)
    arms = {a: GivenAcceptance(pair, bench, texts, sizes.tokens, a, GAMMA) for a in ALPHAS}
    alone = GivenAcceptance(pair, bench, texts, sizes.tokens, 1.0, 0)
    seen = by_turns({0.0: alone, **arms}, prompts, bench.watch, "speed at a given acceptance")
    draft_ms = arms[0.9].engine.pass_costs.draft_ms(DEFAULT_DRAFT)
    target_ms = alone.engine.pass_costs.verify_ms(1)
    return _told(seen, draft_ms / target_ms if draft_ms and target_ms else None)


def _told(seen: Mapping[float, Sequence[TimedAnswer]], c: float | None) -> PaperFindings:
    """Return figures; ``seen``: answers by α, 0 for the target alone; ``c``: milliseconds of a draft pass ÷ of a target
    pass, None where they were not timed."""
    gamma = GAMMA
    figures, rows, of_theory = {}, [], []
    for a in ALPHAS:
        found = figures[f"speed_up_{a:g}"] = speed_up_of(seen[a], seen[0.0])
        accepted, rejected = sum(each.accepted for each in seen[a]), sum(each.rejected for each in seen[a])
        expected = speed_up(a, gamma, c) if c else None
        rows.append({"α": a, "α as counted": accepted / max(1, accepted + rejected), "speed-up": str(found),
                     "Eq. 1": expected})  # fmt: skip
        if expected:
            error = None if found.error is None else found.error / expected
            of_theory.append(PaperFigure(found.value / expected, error, found.count))
    if of_theory:
        figures["least_of_eq_1"] = min(of_theory, key=lambda each: each.value)
    figures["speed_at_0.9_vs_0.5"] = ratio_of_sums([each.rate for each in seen[0.9]], [each.rate for each in seen[0.5]])
    curves = [Curve("measured", [(a, figures[f"speed_up_{a:g}"].value) for a in ALPHAS])]
    curves += [Curve("Eq. 1", [(a, speed_up(a, gamma, c)) for a in ALPHAS])] if c else []
    title = f"k = {gamma}, this machine" + (f", c = {c:.2f}" if c else "")
    return PaperFindings(figures, {title: rows}, {"speed-up": Picture("α", "speed-up", curves)})


SPEEDS = PaperExperiment(speeds, PaperSizes(2, 32, minutes=1), PaperSizes(12, 128, minutes=2))
