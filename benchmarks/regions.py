"""`python -m benchmarks regions`: where each gamma rule wins. Texts of known acceptance, and recorded ones, are
replayed under every rule; a rule's figure is its speed ÷ that of the best fixed length, not drafting among them.

A made text has a chance of acceptance at each of its positions, drawn from a Beta distribution: narrow, all tokens are
nearly alike; wide, most are nearly sure or nearly hopeless, as those of real pairs are. The acceptance head tells this
chance, by w_rej times lower odds, as a trained one does, and so does the draft's probability, except where texts are
hidden: there it is the same for all tokens. Signals that tell are as good as they can be. Tokens tell nothing, so the
rule that goes by them is left out there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from benchmarks.figures import PaperFigure, ratio_of_sums
from benchmarks.gamma.costs import find_costs
from benchmarks.gamma.rounds import RecordedText, read_recording
from benchmarks.gamma.simulate import maker_of
from benchmarks.papers.experiments.replays import ReplayedTexts
from osd.bench.harness.folder import RunFolder
from osd.bench.harness.plan import Count, facts_of
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.turns import Cell, Job, measure_all
from osd.bench.harness.watch import Watch
from osd.gamma.factory import CONTROLLERS, RULES
from storage.errors import BadSetting
from storage.settings import Settings

DEPTH = 12
"""Most tokens of a draft, the default of ``gamma.max``."""
SPREADS = {"narrow": 60.0, "wide": 1.0, "hidden": 1.0}
"""a + b of the Beta distribution of a made text's chances."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "goodput with head": ("goodput", {"goodput": {"head": True}}),
    "specdecpp by costs": ("specdecpp", {"specdecpp": {"threshold": "costs"}}),
}
"""Rules with settings of their own."""
REJECT_WEIGHT = 6.0
"""w_rej of the head."""
WARM = 6
"""Texts that are served before those that count."""


@dataclass(frozen=True, kw_only=True)
class RegionsPlan:
    """Where each gamma rule wins: made texts of known acceptance and recorded rounds, replayed under every rule, as
    ratio to the best fixed length.

    Example: `python -m benchmarks regions --rounds docs/rounds/qwen-coder.parquet --out regions`
    """

    out: Path
    """Folder for what was replayed and the figure; a stopped run goes on in it."""
    rounds: tuple[Path, ...] = ()
    """Recordings of real pairs, whose points are drawn beside."""
    costs: tuple[str, ...] = ("a100-c013", "2xa100-specdecpp", "h100-8b-graphs")
    """Tables or profiles of costs."""
    means: tuple[Annotated[float, Ge(0.01)], ...] = (0.2, 0.35, 0.5, 0.65, 0.75, 0.84, 0.9)
    """Mean acceptance of the made texts, less than 1."""
    rules: tuple[str, ...] = (*(name for name in CONTROLLERS if name != "fixed"), *VARIANTS)
    """Gamma rules, with the defaults of their settings, or as the name says."""
    texts: Count = 30
    """Made texts of each mean."""
    tokens: Count = 128
    """Tokens of a made text."""
    seed: int = 0
    """Seed of the made texts."""


@dataclass(frozen=True, slots=True)
class Region:
    """Where rules meet: texts under a table of costs."""

    costs: str
    texts: str
    """A key of SPREADS; of recorded ones the file, and the temperature."""
    mean: float
    """Mean acceptance."""

    def __str__(self) -> str:
        return f"{self.texts}, acceptance {self.mean:.2f}, {self.costs}"


RegionJob = Job[Region, str]
RegionCell = Cell[RegionJob, list[float]]
"""Milliseconds of each text."""
Texts = dict[tuple[str, float], tuple[list[RecordedText], list[RecordedText]]]
"""By what :class:`Region` calls them, texts that are served before, and those that count."""
Ratios = dict[tuple[str, str, float], dict[str, PaperFigure]]
"""Each rule's ratio, by costs, texts and mean acceptance."""


class RegionReplay:
    """The texts, and how an arm is replayed on them."""

    def __init__(self, plan: RegionsPlan, settings: Settings) -> None:
        """Make the texts and read the recordings. Raises BadBenchFile."""
        self._plan, self._settings = plan, settings
        made = {
            (spread, mean): [made_text(mean, spread, (plan.seed, i), plan.tokens) for i in range(WARM + plan.texts)]
            for spread, mean in product(SPREADS, plan.means)
        }  # fmt: skip
        self._texts = {place: (texts[:WARM], texts[WARM:]) for place, texts in made.items()}
        for path in plan.rounds:
            self._texts |= recorded_places(path)

    def jobs(self) -> Iterator[RegionJob]:
        """Yield every arm everywhere. An arm is a rule, or a fixed length: "fixed 4"."""
        for costs, ((name, mean), (_, texts)) in product(self._plan.costs, self._texts.items()):
            lengths = [f"fixed {length}" for length in range(min(DEPTH, texts[0].depth) + 1)]
            headless = any(text.head is None for text in texts)
            left_out = {rule for rule in self._plan.rules if headless and asks_head(rule)}
            left_out |= {"cache_fsm"} if name in SPREADS else set()
            rules = [rule for rule in self._plan.rules if rule not in left_out]
            yield from (Job(Region(costs, name, mean), arm) for arm in lengths + rules)

    def measure(self, job: RegionJob) -> RegionCell:
        """Replay an arm with a fresh controller, which has served other texts before."""
        where, (rule, _, length) = job.place, job.arm.partition("fixed ")
        warm, texts = self._texts[where.texts, where.mean]
        name, tables = VARIANTS.get(rule, (rule or "fixed", {}))
        initial, most = int(length or self._settings.gamma.initial), min(DEPTH, texts[0].depth)
        make = maker_of(self._settings, name, initial, most, tables)
        return Cell(job, ReplayedTexts(warm, texts, find_costs(where.costs)).under(make).ms.tolist())


def asks_head(rule: str) -> bool:
    """Return whether a rule asks an acceptance head."""
    name, tables = VARIANTS.get(rule, (rule, {}))
    return RULES.entry(name).needs_head or "head" in tables.get("goodput", {})


def made_text(mean: float, spread: str, seed: tuple[int, int], length: int) -> RecordedText:
    """Return a sampled text whose chances of acceptance are drawn from Beta(mean · size, (1 − mean) · size)."""
    random, size = np.random.default_rng(seed), SPREADS[spread]
    chances = random.beta(mean * size, (1 - mean) * size, length + DEPTH).clip(1e-4, 1 - 1e-4)
    chain = np.lib.stride_tricks.sliding_window_view(chances.astype(np.float32), DEPTH)[:length]
    odds = chain / (1 - chain) / REJECT_WEIGHT
    head = np.ones_like(chain)
    head[:, 1:] = (odds / (1 + odds))[:, :-1]
    prompt, text = (random.integers(0, 50_000, count).astype(np.int32) for count in (8, length))
    drafted = random.integers(0, 50_000, chain.shape).astype(np.int32)
    peak = np.full_like(chain, mean) if spread == "hidden" else chain
    return RecordedText("made", 1.0, length, prompt, text, drafted, peak, peak, chain, head)


def recorded_places(path: Path) -> Texts:
    """Return a recording's texts at each temperature, with their mean acceptance; the first one of each data set is
    served before. Raises BadBenchFile."""
    places: Texts = {}
    traces = read_recording(path).traces
    for warm in sorted({text.temperature for text in traces}):
        own = [text for text in traces if text.temperature == warm]
        mean = float(np.concatenate([text.acceptance[:, 0] for text in own]).mean())
        first = {text.data_set: text for text in reversed(own)}
        places[f"{path.stem}, T={warm:g}", mean] = (
            [text for text in own if text is first[text.data_set]],
            [text for text in own if text is not first[text.data_set]],
        )  # fmt: skip
    return places


def bench_regions(plan: RegionsPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Replay every rule everywhere; raises BadSetting for a folder of another plan or a mean that is none,
    BadBenchFile, StoreWriteFailed."""
    if max(plan.means) >= 1:
        raise BadSetting(source="option", key="--means", reason=f"{max(plan.means):g} is not less than 1, as 0.9 is")
    facts = facts_of(plan)
    folder, replay = RunFolder(plan.out, facts, "measured.jsonl", RegionCell), RegionReplay(plan, settings)
    measured = measure_all(replay.jobs(), replay.measure, watch, folder=folder)
    if watch.stopped:
        return BenchResult("regions", facts, {}, interrupted=True)
    from benchmarks.regions_picture import draw_regions
    from osd.bench.harness.picture import save

    ratios = ratios_of(measured)
    heads = [dict(zip(("costs", "texts", "acceptance"), place, strict=True)) for place in ratios]
    told = [
        head | {rule: str(each) for rule, each in own.items()} for head, own in zip(heads, ratios.values(), strict=True)
    ]
    rows = [
        head | {rule: [each.value, each.reach] for rule, each in own.items()}
        for head, own in zip(heads, ratios.values(), strict=True)
    ]
    picture = save(draw_regions(ratios), plan.out, "regions")
    files = {"figures": save_json(plan.out / "regions.json", rows), "picture": picture}
    return BenchResult("regions", facts, {"regions": rows}, {"Speed ÷ the best fixed length": told}, files)


def ratios_of(measured: Iterable[RegionCell]) -> Ratios:
    """Return every rule's speed ÷ that of the fixed length that is fastest there, not drafting among them."""
    places: dict[Region, dict[str, list[float]]] = {}
    for cell in measured:
        places.setdefault(cell.job.place, {})[cell.job.arm] = cell.found
    ratios: Ratios = {}
    for place, arms in places.items():
        best = min((ms for arm, ms in arms.items() if arm.startswith("fixed ")), key=sum)
        ratios[place.costs, place.texts, place.mean] = {
            rule: ratio_of_sums(best, ms) for rule, ms in arms.items() if not rule.startswith("fixed ")
        }
    return ratios
