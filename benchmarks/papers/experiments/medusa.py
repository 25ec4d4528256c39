"""Medusa heads without and with online learning, beside a small draft that learns: OSD's Table 4.

Heads of random weights learn one data set while it is served, as Medusa's learned chats (familiar). From there on they
stay as they are, or learn while that set, or another one (new), is served: an update every eight requests, the target
reading the recorded texts again. The pair's small draft learns both sets in the same way. What came of it then decodes
prompts that none has served, by turns with the target alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.papers.claims import mean_of
from benchmarks.papers.entry import PaperExperiment, PaperFindings, PapersBench, PaperSizes
from benchmarks.papers.experiments.streams import BATCH, drawn
from benchmarks.papers.experiments.timing import TimedAnswer, TimedEngine, by_turns, ratios_of, speed_up_of
from osd.bench.contenders import Tokens
from osd.demo.runner.arrival import make_arrival
from osd.demo.runner.circle import StreamPlan, own_settings, turning
from osd.demo.runner.feed import RequestFeed
from osd.demo.runner.source import Segment
from osd.models.features.decoder import feature_target, load_feature_model
from osd.models.features.files import save_feature_draft
from osd.models.features.new import HEADS, new_feature_draft
from osd.models.pair import Pair, load_model, load_pair
from osd.prompts import encode
from storage.errors import BadRequest
from storage.files.files import make_folder
from storage.records import DEFAULT_DRAFT, Request
from storage.versions.feature_kinds import feature_kind

GAMMA = 5
TESTS = {True: 16, False: 4}
"""Prompts of each data set that are decoded by the clock, full and small."""
HEADS_LEARN = {"learn": {"teacher": "recompute", "steps": HEADS}}
"""Heads read hidden states, which the target gives when it reads the recorded texts again."""
NEW, FAMILIAR = "new", "familiar"
ALONE, MEDUSA, MEDUSA_OSD, DRAFT_OSD = "target alone", "Medusa", "Medusa + OSD", "draft + OSD"
Seen = Mapping[str, Mapping[str, Sequence[TimedAnswer]]]
"""Answers by traffic and arm."""


class LearnedDrafts:
    """Drafts that learned while they served, each in a folder."""

    def __init__(self, bench: PapersBench, sizes: PaperSizes) -> None:
        """Draw prompts: the first data set is new, the second familiar."""
        self._bench, self._sizes = bench, sizes
        self.folder = bench.folder(f"medusa-{sizes.texts}x{sizes.tokens}")
        served = sizes.texts + 1  # the last one waits for what the others taught
        segments = drawn(bench, sizes, served + TESTS[bench.full], 0)[:2]
        self.served = {kind: one.prompts[:served] for kind, one in zip((NEW, FAMILIAR), segments, strict=False)}
        self.tests = {kind: one.prompts[served:] for kind, one in zip((NEW, FAMILIAR), segments, strict=False)}

    def random_heads(self, pair: Pair) -> Path:
        """Return a folder of heads of random weights."""
        out, target = self.folder / "heads-0", feature_target(pair.target)
        if not out.exists():
            save_feature_draft(new_feature_draft("medusa", target, seed=self._bench.seed), out, target)
        return out

    def learned(self, start: str | Path, kind: str, name: str, **changes: dict[str, Any]) -> Path:
        """Return the folder of a draft after the traffic of that kind; what a stopped run has made is kept. Raises
        TrainingFailed."""
        out = self.folder / name
        if out.exists():
            return out
        run = next(path for i in range(1, 1 << 20) if not (path := self.folder / f"{name}-run-{i}").exists())
        make_folder(run)
        serve = {"target": self._bench.target, "draft": str(start), "max_batch": BATCH, "record": "verified"}
        own = own_settings(
            self._bench.settings, run / "data", serve=serve, drafters={"kind": "causal"}, **changes
        )  # fmt: skip
        segment = Segment(kind, self.served[kind])
        plan = StreamPlan(self._bench.target, str(start), [segment], run, own, "lockstep", self._sizes.tokens, 0)
        self._serve(plan, name, out)
        shutil.rmtree(plan.data)
        return out

    def _serve(self, plan: StreamPlan, name: str, out: Path) -> None:
        """Serve a plan while a worker learns from it, and copy what serves at the end."""
        with turning(plan) as circle:
            interval = plan.settings.learn.most_waiting
            arrival = make_arrival(plan.arrival, circle.store, [DEFAULT_DRAFT], circle.engine, interval)
            feed = RequestFeed(circle.engine, arrival, DEFAULT_DRAFT)
            for _ in feed.serve(self._requests(circle.pair, plan), _refused):
                circle.worker.require_alive()
                self._bench.watch.at(f"{name}: {feed.finished} of {plan.requests}")
            version = circle.store.versions.current(DEFAULT_DRAFT)
            aside = out.with_name(f"{out.name}-aside")
            shutil.copytree(circle.store.versions.folder(version), aside, dirs_exist_ok=True)
            aside.rename(out)

    def _requests(self, pair: Pair, plan: StreamPlan) -> Iterator[Request]:
        for text in plan.segments[0].prompts:
            yield Request(encode(pair.tokenizer, text), plan.max_new_tokens, route=plan.segments[0].name)


def _refused(error: BadRequest) -> None:
    """Raise it: prompts were chosen to fit."""
    raise error


def compared(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """OSD's Table 4: all arms on new and on familiar traffic."""
    drafts, serve = LearnedDrafts(bench, sizes), bench.settings.serve
    pair = load_pair(bench.target, bench.draft, device=serve.device, dtype=serve.dtype)
    heads = drafts.learned(drafts.random_heads(pair), FAMILIAR, "heads", **HEADS_LEARN)
    seen, facts = {}, {MEDUSA: _weights(_with(pair, bench, heads)), DRAFT_OSD: _weights(pair)}
    for kind in drafts.served:
        taught = drafts.learned(heads, kind, f"heads-{kind}", **HEADS_LEARN)
        small = drafts.learned(bench.draft, kind, f"draft-{kind}")
        arms = {
            ALONE: TimedEngine(pair, bench.settings, sizes.tokens, gamma=0),
            MEDUSA: _trees(_with(pair, bench, heads), bench, sizes),
            MEDUSA_OSD: _trees(_with(pair, bench, taught), bench, sizes),
            DRAFT_OSD: TimedEngine(_with(pair, bench, small), bench.settings, sizes.tokens, gamma=GAMMA),
        }
        prompts: list[Tokens] = [encode(pair.tokenizer, text) for text in drafts.tests[kind]]
        seen[kind] = by_turns(arms, prompts, bench.watch, f"Medusa, {kind} traffic")
    return told(seen, facts)


def _with(pair: Pair, bench: PapersBench, folder: Path) -> Pair:
    """Return the pair with another draft, over the same target in memory."""
    if feature_kind(folder):
        return replace(pair, draft=load_feature_model(folder, pair.target))
    draft = load_model(folder, pair.device, bench.settings.serve.dtype)
    return replace(pair, draft=replace(draft, shared=pair.draft.shared))


def _trees(pair: Pair, bench: PapersBench, sizes: PaperSizes) -> TimedEngine:
    return TimedEngine(pair, bench.settings, sizes.tokens, gamma=HEADS, kind="tree")


def _weights(pair: Pair) -> int:
    module: Any = pair.draft.module
    return sum(each.numel() for each in module.parameters())


def told(seen: Seen, weights: Mapping[str, int]) -> PaperFindings:
    """Return figures; ``weights``: of heads and of the small draft."""
    figures, rows = {}, []
    for kind, arms in seen.items():
        figures[f"osd_vs_medusa_{kind}"] = speed_up_of(arms[MEDUSA_OSD], arms[MEDUSA])
        longer = zip(arms[MEDUSA_OSD], arms[MEDUSA], strict=True)
        figures[f"rounds_saved_{kind}"] = mean_of([1 - _per_token(one) / _per_token(other) for one, other in longer])
        figures[f"draft_vs_medusa_osd_{kind}"] = speed_up_of(arms[DRAFT_OSD], arms[MEDUSA_OSD])
        figures[f"medusa_vs_draft_{kind}"] = speed_up_of(arms[MEDUSA], arms[DRAFT_OSD])
    for name in (MEDUSA, MEDUSA_OSD, DRAFT_OSD):
        row: dict[str, Any] = {"draft": name, "weights": weights.get(name, weights[MEDUSA])}
        for kind, arms in seen.items():
            rounds = mean_of([_per_token(answer) for answer in arms[name]]).value
            row |= {f"speed-up, {kind}": str(mean_of(ratios_of(arms[name], arms[ALONE])))}
            row |= {f"tokens a round, {kind}": round(1 / rounds, 2)}
        rows.append(row)
    return PaperFindings(figures, {"Speed-up over the target alone, this machine": rows})


def _per_token(answer: TimedAnswer) -> float:
    """Return rounds a token: fewer are better."""
    return answer.rounds / len(answer.tokens)


MEDUSA_TABLE = PaperExperiment(compared, PaperSizes(16, 24, minutes=2), PaperSizes(300, 64, minutes=20))
