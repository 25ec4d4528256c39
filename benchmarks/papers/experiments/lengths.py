"""Speed-up by the length of the answer, at given acceptances: OSD's Table 8, on the machine that runs.

Answers go on past their end tokens, so that all have the length that is asked for; what reading the prompt takes is
left out, as llama.cpp tells it apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.papers.claims import PaperFigure, mean_of
from benchmarks.papers.entry import Curve, PaperExperiment, PaperFindings, PapersBench, PaperSizes, Picture
from benchmarks.papers.experiments.given_acceptance import ALPHAS, GivenAcceptance, pair_and_prompts
from benchmarks.papers.experiments.timing import TimedAnswer, TimedEngine, by_turns
from osd.bench.contenders import Tokens
from osd.models.pair import row_limit
from storage.errors import BadInput

GAMMA = 5
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Those of the table; the experiment's size is the longest that is measured."""
PREFIX = {True: 512, False: 48}
"""Tokens of a prompt, full and small."""
Answers = Mapping[int, Mapping[float, Sequence[TimedAnswer]]]
"""By length, by α; 0 for the target alone."""


def by_length(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Measure every length at every α beside the target alone: by turns, prompt by prompt."""
    pair, asked = pair_and_prompts(bench, sizes)
    longest = min(sizes.tokens, row_limit(pair, bench.settings.serve) - PREFIX[bench.full])
    prompts = prefixes(asked, PREFIX[bench.full])
    alone = TimedEngine(pair, bench.settings, longest, gamma=0, whole=True)
    texts = {prompt: alone.decode(prompt).tokens for prompt in prompts}
    arms = {a: GivenAcceptance(pair, bench, texts, longest, a, GAMMA, whole=True) for a in ALPHAS}
    found = {}
    for length in [each for each in LENGTHS if each <= longest]:
        found[length] = by_turns({0.0: alone, **arms}, prompts, bench.watch, f"answers of {length} tokens", length)
    return told(found)


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


def told(found: Answers) -> PaperFindings:
    """Compare lengths at each α, and what both bring."""
    ratios = {n: {a: _ratios(some[a], some[0.0]) for a in ALPHAS} for n, some in found.items()}
    short, long = min(ratios), max(ratios)
    gains = {a: [b - s for s, b in zip(ratios[short][a], ratios[long][a], strict=True)] for a in ALPHAS}
    by_alpha = [b - s for s, b in zip(ratios[short][ALPHAS[0]], ratios[short][ALPHAS[-1]], strict=True)]
    mean_gain = np.mean([gains[a] for a in ALPHAS], axis=0)
    figures: dict[str, PaperFigure] = {
        "gain_of_length": mean_of(mean_gain),
        "least_gain_of_length": min(map(mean_of, gains.values()), key=lambda each: each.value),
        "gain_of_alpha_less_that_of_length": mean_of(np.asarray(by_alpha) - mean_gain),
    }
    rows = [{"tokens": n, **{f"α = {a:g}": str(mean_of(ratios[n][a])) for a in ALPHAS}} for n in ratios]
    curves = [Curve(f"α = {a:g}", [(float(n), mean_of(ratios[n][a]).value) for n in ratios]) for a in ALPHAS]
    return PaperFindings(
        figures, {f"Speed-up, k = {GAMMA}, this machine": rows}, {"length": Picture("tokens", "speed-up", curves)}
    )


def _ratios(some: Sequence[TimedAnswer], alone: Sequence[TimedAnswer]) -> list[float]:
    return [one.later_rate / other.later_rate for one, other in zip(some, alone, strict=True)]


BY_LENGTH = PaperExperiment(by_length, PaperSizes(2, 64, minutes=1), PaperSizes(2, 1024, minutes=6))
