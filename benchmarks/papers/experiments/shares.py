"""The draft that learns while it serves against drafts distilled beforehand on a share of as much data: OSD's Figure 3
(a tenth) and Figure 4 (30, 50, 70 and 100 %).

What they learn are the target's answers to other prompts of the same data set; then they read the texts that were
served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.distil.bench import distil_draft
from benchmarks.distil.result import REFERENCE
from benchmarks.distil.texts import AnsweredSet, PromptSplit, TextTest, answered
from benchmarks.papers.claims import PaperFigure, difference_of_shares, ratio_of_sums
from benchmarks.papers.entry import PaperExperiment, PaperFindings, PapersBench, PaperSizes
from benchmarks.papers.experiments.streams import drawn, online, served
from osd.demo.runner.measure import FinishedRequest
from osd.demo.runner.source import Segment
from osd.engine.session import in_folder
from osd.models.pair import Pair, load_model, load_pair
from osd.prompts import encode
from storage.errors import BadInput
from storage.records import RequestSamples
from storage.sampling import GREEDY

EPOCHS = 2
SHARES = {True: (0.1, 0.3, 0.5, 0.7, 1.0), False: (0.1, 0.3, 0.7, 1.0)}
"""Shares of as many prompts as were served, full and small."""
SETS = {True: None, False: 2}
"""Data sets, from the first, that drafts are distilled on beforehand; None: all."""
MANY = 1 << 30


class ReadText(NamedTuple):
    """One served text, and at how many positions each draft is right there."""

    data_set: str
    place: float
    """When it was served, from 0 to 1 in its data set's stretch."""
    positions: int
    online: float
    by_share: Mapping[float, float]


def against_shares(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Add to what :func:`benchmarks.papers.experiments.streams.online` finds how the draft compares with those
    that were distilled on a share: at a data set's begin (its first tenth) and at its end (its last third)."""
    base = online(bench, sizes)
    texts: list[ReadText] = bench.once("shares", lambda: read_texts(bench, sizes))
    figures, table = told(texts)
    return replace(base, figures={**base.figures, **figures}, tables={**base.tables, **table})


def read_texts(bench: PapersBench, sizes: PaperSizes) -> list[ReadText]:
    """Distil a draft for each data set and share, and let it read the served texts; what a stopped run has made is
    kept. Raises TrainingFailed, BadInput."""
    serve, found = bench.settings.serve, []
    pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
    for segment in drawn(bench, sizes, 2 * sizes.texts, 0)[: SETS[bench.full]]:
        folder = bench.folder(f"shares-{sizes.texts}x{sizes.tokens}") / segment.name
        texts = _answers(bench, pair, segment, sizes, folder)
        test = TextTest(pair.target, texts.test, GREEDY)
        right = {}
        for share in SHARES[bench.full]:
            bench.watch.at(f"distilling on {share:.0%} of {segment.name}")
            draft = _distilled(bench, pair, texts, max(1, round(share * sizes.texts)), folder)
            right[share] = test.accepted(load_model(draft, pair.device, serve.dtype))
        found += matched([one for one in served(bench, sizes) if one.segment == segment.name], texts.test, right)
    if not found:
        raise BadInput(reason="What was served was served by an older osd; remove runs/online in the folder of --out.")
    return found


def _answers(bench: PapersBench, pair: Pair, segment: Segment, sizes: PaperSizes, folder: Path) -> AnsweredSet:
    """Return the target's answers to a data set's prompts: those that are served are the tests."""
    tokens = [encode(pair.tokenizer, text) for text in segment.prompts]
    split = PromptSplit(tokens[sizes.texts :], tokens[: sizes.texts])
    return answered(pair, bench.settings, split, GREEDY, sizes.tokens, MANY, folder)


def _distilled(bench: PapersBench, pair: Pair, texts: AnsweredSet, requests: int, folder: Path) -> Path:
    """Return the folder of a draft distilled on so many answers."""
    out = folder / f"draft-{requests}"
    if not out.exists():
        settings = bench.settings.changed(learn=REFERENCE.learn, storage={"directory": folder / "data"})
        asked, told = ("--requests", requests), f"{folder.name}, {requests} answers"
        distil_draft(settings, texts.learn, in_folder(pair.draft).name, out, EPOCHS, *asked, told=told)
    return out


def matched(
    mine: Sequence[FinishedRequest], texts: Sequence[RequestSamples], right: Mapping[float, Sequence[float]]
) -> list[ReadText]:
    """Return a data set's requests, each as it was served and as the drafts read it. ``right``: by share, positions at
    which a draft is right, text by text. One that is not the same text is left out."""
    index, found = {text.request_id: i for i, text in enumerate(texts)}, []
    for place, one in enumerate(mine):
        i = index.get(f"prompt-{one.number - 1}")
        if i is not None and len(texts[i]) == one.emitted:
            hits = {share: some[i] for share, some in right.items()}
            found.append(ReadText(one.segment, place / len(mine), one.emitted, one.hits("online"), hits))
    return found


def told(texts: Sequence[ReadText]) -> tuple[dict[str, PaperFigure], dict[str, list[dict[str, str]]]]:
    """Return figures and a table. After a change means: in every data set but the first."""
    first = texts[0].data_set
    begins, ends = [one for one in texts if one.place < 0.1], [one for one in texts if one.place >= 2 / 3]
    changed = [one for one in begins if one.data_set != first]
    back = [one for one in ends if one.data_set != first]
    gaps = {
        "begin_minus_tenth": ([one for one in begins if one.data_set == first], 0.1), "end_minus_tenth": (ends, 0.1),
        "after_change_minus_30": (changed, 0.3), "end_minus_70": (back, 0.7), "end_minus_100": (back, 1.0),
    }  # fmt: skip
    figures = {name: _gap(some, share) for name, (some, share) in gaps.items() if some}
    rows = [
        {"texts": when, "while serving": str(_alpha([one.online for one in some], some))}
        | {f"{share:.0%}": str(_alpha([one.by_share[share] for one in some], some)) for share in texts[0].by_share}
        for when, some in (("first tenth", begins), ("last third", ends))
        if some
    ]
    return figures, {"α, distilled beforehand on a share of as much data": rows}


def _gap(some: Sequence[ReadText], share: float) -> PaperFigure:
    """Return α of the draft that learned while it served less that of one distilled on a share."""
    return difference_of_shares(
        [one.online for one in some], [one.by_share[share] for one in some], [one.positions for one in some]
    )


def _alpha(hits: Sequence[float], some: Sequence[ReadText]) -> PaperFigure:
    return ratio_of_sums(hits, [one.positions for one in some])


SHARES_OF_DATA = PaperExperiment(against_shares, PaperSizes(16, 24, minutes=3), PaperSizes(400, 64, minutes=25))
