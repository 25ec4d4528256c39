"""γ rules on recorded rounds, under the costs of the machines that papers used.

The pair's rounds are recorded once (benchmarks/gamma/record.py) and replayed under each rule by the simulator, so every
rule meets the same texts, and a machine is a table of costs. At batch 1 the milliseconds of a text are the sum over its
rounds, so errors are over texts. All rules first serve WARM_REQUESTS requests that are not counted: Q-learning's
warm-up of 25 in the paper (D.1), and whatever else a rule has to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.gamma.costs import CostTable, find_costs
from benchmarks.gamma.oracle import OracleController
from benchmarks.gamma.rounds import RecordedText, Recording
from benchmarks.gamma.simulate import Simulator
from benchmarks.papers.claims import PaperFigure, ratio_of_sums
from benchmarks.papers.entry import PapersBench, PaperSizes
from osd.gamma.base import CostModel, GammaController
from osd.gamma.factory import make_controller
from osd.gamma.rules.analytic import AnalyticController

Floats = npt.NDArray[np.float64]
WARM_REQUESTS = 25
WARM_TEXTS = 3
"""Recorded texts of each data set that those requests are of, again and again."""
DEPTH = 24
"""Tokens of a recorded chain: the largest γ of GammaTune's list."""
PAPERS_H = 6
"""h of the analytic rule: the middle of on-the-fly adaptation's Table 12."""
Make = Callable[[CostModel], GammaController]


@dataclass(frozen=True, slots=True)
class ReplayedRule:
    """What a rule came to, text by text."""

    data_sets: tuple[str, ...]
    """Names, by text."""
    tokens: Floats
    ms: Floats
    drafted: Floats
    accepted: Floats
    rounds: Floats
    runs: tuple[tuple[int, ...], ...] = ()
    """Accepted tokens of each round."""

    def of(self, data_set: str) -> ReplayedRule:
        """Return the texts of one data set."""
        mine = np.array([name == data_set for name in self.data_sets])
        parts = {name: getattr(self, name)[mine] for name in ("tokens", "ms", "drafted", "accepted", "rounds")}
        runs = tuple(run for run, keep in zip(self.runs, mine, strict=True) if keep)
        return ReplayedRule(tuple(n for n in self.data_sets if n == data_set), **parts, runs=runs)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return float(1e3 * self.tokens.sum() / self.ms.sum())

    @property
    def token_acceptance(self) -> PaperFigure:
        """α: accepted ÷ (accepted + rejections), over texts; a text's rejections are its rounds that were not accepted
        whole, and every round makes one token beside those accepted."""
        return ratio_of_sums(self.accepted, self.drafted) if self.drafted.sum() else PaperFigure(0.0, 0.0)

    def faster_than(self, other: ReplayedRule) -> PaperFigure:
        """Return its speed ÷ another rule's on the same texts."""
        return ratio_of_sums(other.ms, self.ms)


@dataclass(frozen=True, slots=True)
class ReplayedTexts:
    """A recording that rules are replayed on."""

    warm: tuple[RecordedText, ...]
    texts: tuple[RecordedText, ...]
    table: CostTable

    def under(self, make: Make, *, upper_bound: bool = False) -> ReplayedRule:
        """Replay a rule. ``upper_bound``: every drafted token is accepted (validation is skipped)."""
        texts = [_all_accepted(text) for text in self.texts] if upper_bound else list(self.texts)
        simulator = Simulator(make, self.table)
        simulator.run(list(islice(cycle(self.warm), WARM_REQUESTS if self.warm else 0)))
        rounds = simulator.run(texts).by_request

        def ms(seen: Sequence[Any]) -> float:
            return sum(self.table.draft_ms(1, o.drafted) * bool(o.drafted) + self.table.verify_ms(1, o.drafted + 1)
                       for o in seen)  # fmt: skip

        def summed(name: str) -> Floats:
            return np.array([sum(getattr(o, name) for o in seen) for seen in rounds], float)

        return ReplayedRule(
            tuple(text.data_set for text in texts), np.array([text.length for text in texts], float),
            np.array([ms(seen) for seen in rounds]), summed("drafted"), summed("accepted"),
            np.array([len(seen) for seen in rounds], float), tuple(tuple(o.accepted for o in seen) for seen in rounds),
        )  # fmt: skip


def _all_accepted(text: RecordedText) -> RecordedText:
    return replace(text, acceptance=np.ones_like(text.acceptance))


def recording_of(bench: PapersBench, sizes: PaperSizes, temperature: float) -> Recording:
    """Return the pair's recorded rounds, from the shared folder where they are there."""
    return bench.once(f"rounds-{temperature:g}", lambda: _record(bench, sizes, temperature))  # type: ignore[no-any-return]


def _record(bench: PapersBench, sizes: PaperSizes, temperature: float) -> Recording:
    from benchmarks.gamma.record import record_file
    from osd.bench.harness.prompts import tokens_by_set
    from osd.models.pair import load_pair, row_limit

    serve = bench.settings.serve
    pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
    longest = row_limit(pair, serve) - sizes.tokens
    prompts = tokens_by_set(pair.tokenizer, bench.prompts, WARM_TEXTS + sizes.texts, longest, seed=bench.seed)
    size = f"{sizes.texts}x{sizes.tokens}-s{bench.seed}"
    path = bench.folder("rounds") / f"t{temperature:g}-{size}.parquet"
    return record_file(
        path, pair, prompts, temperatures=(temperature,), new_tokens=sizes.tokens, depth=DEPTH, seed=bench.seed,
        watch=bench.watch,
    )  # fmt: skip


def replayed(bench: PapersBench, sizes: PaperSizes, costs: str, temperature: float = 0.0) -> ReplayedTexts:
    """Return the pair's texts under a machine's costs, by the name of a profile."""
    recording = recording_of(bench, sizes, temperature)
    sets: dict[str, list[RecordedText]] = {}
    for text in recording.traces:
        sets.setdefault(text.data_set, []).append(text)
    warm = tuple(text for turn in zip(*(some[:WARM_TEXTS] for some in sets.values()), strict=False) for text in turn)
    texts = tuple(text for some in sets.values() for text in some[WARM_TEXTS:])
    return ReplayedTexts(warm, texts, find_costs(costs))


def rule(bench: PapersBench, name: str, initial: int = 4, most: int = DEPTH, **tables: Mapping[str, Any]) -> Make:
    """Return what makes a rule. ``most``: γ_max; ``tables``: settings of rules, as ``gammatune={"eta": 0.5}``."""
    changed = bench.settings.changed(gamma={"max": most, "initial": min(initial, most), "routes": {}, **tables})
    return lambda costs: make_controller(changed.gamma, costs, name)


def fixed(bench: PapersBench, gamma: int) -> Make:
    """Return a fixed γ; 0 is the target alone."""
    return rule(bench, "fixed", gamma)


def papers_analytic(most: int = DEPTH, history: int = PAPERS_H) -> Make:
    """Return the analytic rule with the paper's constants: Eq. 2 over h rounds of the request, and nothing beside."""
    return partial(AnalyticController, initial=4, maximum=most, history=history, prior_trials=0.0)


def oracle(texts: ReplayedTexts) -> Make:
    """Return the oracle of SpecDec++, Theorem 4.1, for texts without a warm-up."""
    return lambda costs: OracleController(texts.texts, DEPTH)


class TimedTexts(Protocol):
    """Texts, and what each took."""

    @property
    def ms(self) -> Floats:
        """Milliseconds of each text."""
        ...


def best_on_other_half(rules: Mapping[Any, TimedTexts]) -> Floats:
    """Return milliseconds of each text under the rule that is fastest on the other half of the texts, every second
    one: a constant that is chosen on the texts themselves would be in part the one that was lucky there."""
    ms = {name: found.ms for name, found in rules.items()}
    count = len(next(iter(ms.values())))
    even = np.arange(count) % 2 == 0
    best = [min(ms, key=lambda name: float(ms[name][half].sum())) for half in (~even, even)]
    return np.where(even, ms[best[0]], ms[best[1]])
