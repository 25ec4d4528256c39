"""The draft that learns while it serves, and drafts distilled beforehand on a share of as much data: OSD's Figure 3 (a
tenth) and Figure 4 (30, 50, 70 and 100 %).

`osd bench online` serves one data set after another: lockstep, the draft alone, drafts distilled offline on each set
beside. Drafts of a share learn from the target's answers to other prompts of the same set; then they read the texts
that were served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

from pydantic import TypeAdapter
from rich.console import Console

from benchmarks.distil.texts import PromptSplit, TextTest, answered
from benchmarks.figures import PaperFigure, difference_of_shares, mean_of, ratio_of_sums
from benchmarks.papers.experiment import Curve, PaperExperiment, PaperFindings, PapersBench, Picture, Rows, shared
from benchmarks.papers.experiments.distilled import distilled_on
from benchmarks.papers.experiments.served import (
    BATCH,
    LEARNING_RECIPES,
    OURS,
    LearningRecipe,
    apart,
    drawn,
    last_third,
)
from benchmarks.routes.bench import fresh
from osd.bench.harness.report import save_json
from osd.bench.online import serve_segments
from osd.bench.plans import OnlinePlan
from osd.demo.runner.measure import FinishedRequest, Whose, moving, recovered_after
from osd.demo.runner.source import Segment
from osd.models.pair import with_draft
from osd.prompts import encode
from storage.errors import BadInput
from storage.records import RequestSamples
from storage.sampling import GREEDY

LINES = TypeAdapter(list[FinishedRequest])
MANY = 1 << 30
Served = Sequence[FinishedRequest]


class ReadText(NamedTuple):
    """One served text, and at how many positions each draft is right there."""

    data_set: str
    place: float
    """When it was served, from 0 to 1 in its data set's stretch."""
    positions: int
    online: float
    by_share: Mapping[float, float]


class SharesOfData(PaperExperiment):
    """Both figures."""

    epochs: int
    shares: tuple[float, ...]
    """Shares of as many prompts as were served."""
    sets: int | None = None
    """Data sets, from the first, that drafts are distilled on beforehand; none said: all."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Serve and learn; distil and read; compare."""
        requests, figures, tables = self.served(bench), dict[str, PaperFigure](), dict[str, Rows]()
        curves = [_curve("frozen", requests, "frozen")]
        for recipe in LEARNING_RECIPES:
            some = requests if recipe is OURS else self._beside(bench, recipe)
            online, rows = online_told(some, WHOSE if recipe is OURS else WHOSE[:2])
            figures |= {f"{name}{recipe.suffix}": figure for name, figure in online.items()}
            figures |= {} if recipe is OURS else beside(requests, some, recipe)
            title = "Last third of each data set" + f", {recipe.told}" * (recipe is not OURS)
            tables[title], curves = rows, [*curves, _curve(recipe.told, some, "online")]
        shares, tables["α, distilled beforehand on a share of as much data"] = shares_told(self.texts_read(bench))
        pictures = {"acceptance": Picture("requests", "α, last 50 requests", curves)}
        return PaperFindings({**figures, **shares}, tables, pictures)

    def _beside(self, bench: PapersBench, recipe: LearningRecipe) -> Served:
        """Return the requests of a run by another recipe."""
        return bench.once(self.named(f"online{recipe.suffix}"), lambda: self._serve(bench, recipe))

    @shared("online")
    def served(self, bench: PapersBench) -> Served:
        """Return the requests of a run that learned while it served."""
        return self._serve(bench, OURS)

    def _serve(self, bench: PapersBench, recipe: LearningRecipe) -> Served:
        folder = bench.folder("online")
        kept = folder / f"{self.named('served')}{recipe.suffix}.json"
        if kept.exists():
            return LINES.validate_json(kept.read_bytes())
        plan = OnlinePlan(
            target=bench.target, draft=bench.draft, max_tokens=self.tokens, batch=BATCH, drafter="causal",
            offline=recipe is OURS,
        )  # fmt: skip
        segments, out = drawn(bench, self, self.texts), fresh(folder, "run")
        quiet = Console(quiet=True)
        results = serve_segments(
            plan, bench.settings.changed(**recipe.settings), segments, out, check_every=0, console=quiet
        )
        if results.facts["interrupted"]:
            raise KeyboardInterrupt
        save_json(kept, [asdict(one) for one in results.served])
        return results.served

    @shared("shares")
    def texts_read(self, bench: PapersBench) -> list[ReadText]:
        """Distil a draft for each data set and share, and let it read the served texts; what a stopped run has made is
        kept. Raises TrainingFailed, BadInput."""
        requests, found = self.served(bench), []
        for segment in drawn(bench, self, 2 * self.texts)[: self.sets]:
            mine = [one for one in requests if one.segment == segment.name]
            found += matched(mine, *self._hits(bench, segment))
        if not found:
            reason = "What was served was served by an older osd; remove runs/online in the folder of --out."
            raise BadInput(reason=reason)
        return found

    def _hits(
        self, bench: PapersBench, segment: Segment
    ) -> tuple[Sequence[RequestSamples], Mapping[float, Sequence[float]]]:
        """Return a data set's served texts, and by share the positions at which a draft is right, text by text."""
        folder, pair = bench.folder(self.named("shares")) / segment.name, bench.pair
        prompts = [encode(pair.tokenizer, text) for text in segment.prompts]
        split = PromptSplit(prompts[self.texts :], prompts[: self.texts])
        texts = answered(pair, bench.settings, split, GREEDY, self.tokens, MANY, folder)
        test, right = TextTest(pair.target, texts.test, GREEDY), {}
        for share in self.shares:
            requests = max(1, round(share * self.texts))
            out, told = folder / f"draft-{requests}", f"{segment.name}, {requests} answers"
            draft = distilled_on(bench, texts.learn, out, self.epochs, told, "--requests", requests)
            right[share] = test.accepted(with_draft(pair, draft, bench.settings.serve.dtype).draft)
        return texts.test, right


WHOSE: tuple[Whose, ...] = ("frozen", "online", "offline")


def _curve(label: str, some: Served, whose: Whose) -> Curve:
    return Curve(label, [(float(i), a) for i, a in enumerate(moving(some, whose), 1)])


def online_told(
    requests: Served, drafts: Sequence[Whose] = WHOSE
) -> tuple[dict[str, PaperFigure], list[dict[str, str]]]:
    """Return figures and rows of the last third of each data set's requests, with the draft that learned, the frozen
    one and, where it is among the ``drafts``, one distilled offline on all of them; and what a change of data set
    does."""
    by_name: dict[str, list[FinishedRequest]] = {}
    for one in requests:
        by_name.setdefault(one.segment, []).append(one)
    ends, later = {name: last_third(some) for name, some in by_name.items()}, list(by_name)[1:]
    late = [one for some in ends.values() for one in some]
    early = [one for name in later for one in by_name[name][: max(1, len(by_name[name]) // 10)]]
    hits, emitted = ({whose: [one.hits(whose) for one in late] for whose in drafts}, [one.emitted for one in late])
    figures = {
        "online_minus_frozen": difference_of_shares(hits["online"], hits["frozen"], emitted),
        "late_minus_early": apart(_alpha([one for name in later for one in ends[name]]), _alpha(early)),
        "requests_to_recover": mean_of([recovered_after(moving(by_name[name], "online")) or 0 for name in later]),
    }  # fmt: skip
    if "offline" in drafts and any(hits["offline"]):
        figures["online_vs_offline"] = ratio_of_sums(hits["online"], hits["offline"])
    rows = [{"data set": name} | {whose: str(_alpha(some, whose)) for whose in drafts} for name, some in ends.items()]
    return figures, rows


def beside(ours: Served, theirs: Served, recipe: LearningRecipe) -> dict[str, PaperFigure]:
    """Return α of another recipe, in each data set's last third, less ours on the same requests, and less the
    frozen draft's."""
    last = [one for name in dict.fromkeys(one.segment for one in theirs)
            for one in last_third([one for one in theirs if one.segment == name])]  # fmt: skip
    known = {(one.segment, one.number): one for one in ours}
    pairs = [(one, known[one.segment, one.number]) for one in last if (one.segment, one.number) in known]
    emitted, hits = [one.emitted for one, _ in pairs], [one.hits("online") for one, _ in pairs]
    others = {"online": [own.hits("online") for _, own in pairs], "frozen": [one.hits("frozen") for one, _ in pairs]}
    return {f"minus_{who}{recipe.suffix}": difference_of_shares(hits, some, emitted) for who, some in others.items()}


def _alpha(some: Served, whose: Whose = "online") -> PaperFigure:
    return ratio_of_sums([one.hits(whose) for one in some], [one.emitted for one in some])


def matched(mine: Served, texts: Sequence[RequestSamples], right: Mapping[float, Sequence[float]]) -> list[ReadText]:
    """Return a data set's requests, each as it was served and as the drafts read it. ``right``: by share, positions at
    which a draft is right, text by text. One that is not the same text is left out."""
    index, found = {text.request_id: i for i, text in enumerate(texts)}, []
    for place, one in enumerate(mine):
        i = index.get(f"prompt-{one.number - 1}")
        if i is not None and len(texts[i]) == one.emitted:
            hits = {share: some[i] for share, some in right.items()}
            found.append(ReadText(one.segment, place / len(mine), one.emitted, one.hits("online"), hits))
    return found


def shares_told(texts: Sequence[ReadText]) -> tuple[dict[str, PaperFigure], list[dict[str, str]]]:
    """Return figures and rows of a data set's begin (its first tenth) and end (its last third). After a change means:
    in every data set but the first."""
    first = texts[0].data_set
    begins, ends = [one for one in texts if one.place < 0.1], [one for one in texts if one.place >= 2 / 3]
    back = [one for one in ends if one.data_set != first]
    gaps = {
        "begin_minus_tenth": ([one for one in begins if one.data_set == first], 0.1), "end_minus_tenth": (ends, 0.1),
        "after_change_minus_30": ([one for one in begins if one.data_set != first], 0.3),
        "end_minus_70": (back, 0.7), "end_minus_100": (back, 1.0),
    }  # fmt: skip
    figures = {
        name: difference_of_shares(
            [one.online for one in some], [one.by_share[share] for one in some], [one.positions for one in some]
        )
        for name, (some, share) in gaps.items() if some
    }  # fmt: skip
    return figures, [_row(when, some) for when, some in (("first tenth", begins), ("last third", ends)) if some]


def _row(when: str, some: Sequence[ReadText]) -> dict[str, str]:
    """Return α of all drafts on the same texts."""
    hits = {"while serving": [one.online for one in some]}
    hits |= {f"{share:.0%}": [one.by_share[share] for one in some] for share in some[0].by_share}
    positions = [one.positions for one in some]
    return {"texts": when} | {name: str(ratio_of_sums(each, positions)) for name, each in hits.items()}
