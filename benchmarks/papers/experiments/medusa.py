"""Medusa heads without and with online learning, beside a small draft that learns: OSD's Table 4.

Heads of random weights learn one data set while it is served, as Medusa's learned chats (familiar). From there on they
stay as they are, or learn while that set, or another one (new), is served: an update every eight requests, the target
reading the recorded texts again. The pair's small draft learns both sets in the same way. What came of it then decodes
prompts that none has served, by turns with the target alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import mean_of
from benchmarks.papers.experiment import PaperExperiment, PaperFindings, PapersBench
from benchmarks.papers.experiments.served import BATCH, drawn
from benchmarks.papers.experiments.timing import TimedAnswer, TimedEngine, by_turns, ratios_of, speed_up_of
from benchmarks.routes.bench import fresh
from osd.demo.runner.circle import StreamPlan, own_settings, turning
from osd.demo.runner.feed import RequestFeed, make_arrival
from osd.demo.runner.source import Segment
from osd.models.features.decoder import feature_target
from osd.models.features.files import save_feature_draft
from osd.models.features.new import HEADS, new_feature_draft
from osd.models.pair import Pair, with_draft
from osd.prompts import encode
from storage.errors import BadRequest
from storage.files.files import make_folder
from storage.records import DEFAULT_DRAFT, Request

HEADS_LEARN = {"learn": {"teacher": "recompute", "steps": HEADS}}
"""Heads read hidden states, which the target gives when it reads the recorded texts again."""
NEW, FAMILIAR = "new", "familiar"
ALONE, MEDUSA, MEDUSA_OSD, DRAFT_OSD = "target alone", "Medusa", "Medusa + OSD", "draft + OSD"
Seen = Mapping[str, Mapping[str, Sequence[TimedAnswer]]]
"""Answers by traffic and arm."""


class LearnedDrafts:
    """Drafts that learned while they served, each in a folder."""

    def __init__(self, bench: PapersBench, plan: MedusaTable) -> None:
        """Draw prompts: the first data set is new, the second familiar."""
        self._bench, self._plan = bench, plan
        self.folder = bench.folder(plan.named("medusa"))
        served = plan.texts + 1  # the last one waits for what the others taught
        segments = drawn(bench, plan, served + plan.tests)[:2]
        self.served = {kind: one.prompts[:served] for kind, one in zip((NEW, FAMILIAR), segments, strict=False)}
        self.tests = {kind: one.prompts[served:] for kind, one in zip((NEW, FAMILIAR), segments, strict=False)}

    def random_heads(self) -> Path:
        """Return a folder of heads of random weights."""
        out, target = self.folder / "heads-0", feature_target(self._bench.pair.target)
        if not out.exists():
            save_feature_draft(new_feature_draft("medusa", target, seed=self._bench.seed), out, target)
        return out

    def learned(self, start: str | Path, kind: str, name: str, **changes: dict[str, Any]) -> Path:
        """Return the folder of a draft after the traffic of that kind; what a stopped run has made is kept. Raises
        TrainingFailed."""
        out, target = self.folder / name, self._bench.target
        if not out.exists():
            run = fresh(self.folder, f"{name}-run")
            make_folder(run)
            serve = {"target": target, "draft": str(start), "max_batch": BATCH, "record": "verified"}
            own = own_settings(
                self._bench.settings, run / "data", serve=serve, drafters={"kind": "causal"}, **changes
            )  # fmt: skip
            segment = Segment(kind, self.served[kind])
            plan = StreamPlan(target, str(start), [segment], run, own, "lockstep", self._plan.tokens, 0)
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


class MedusaTable(PaperExperiment):
    """OSD's Table 4: all arms on new and on familiar traffic."""

    gamma: int
    """Tokens of the small draft's chains."""
    tests: int
    """Prompts of each data set that are decoded by the clock."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Let heads and the small draft learn, then time what came of them."""
        drafts, pair, dtype = LearnedDrafts(bench, self), bench.pair, bench.settings.serve.dtype
        heads = drafts.learned(drafts.random_heads(), FAMILIAR, "heads", **HEADS_LEARN)
        seen, weights = {}, {MEDUSA: _weights(with_draft(pair, heads, dtype)), DRAFT_OSD: _weights(pair)}
        for kind in drafts.served:
            taught = drafts.learned(heads, kind, f"heads-{kind}", **HEADS_LEARN)
            small = drafts.learned(bench.draft, kind, f"draft-{kind}")
            arms = {
                ALONE: self._timed(bench, pair, 0),
                MEDUSA: self._timed(bench, with_draft(pair, heads, dtype), HEADS, "tree"),
                MEDUSA_OSD: self._timed(bench, with_draft(pair, taught, dtype), HEADS, "tree"),
                DRAFT_OSD: self._timed(bench, with_draft(pair, small, dtype), self.gamma),
            }
            prompts = [encode(pair.tokenizer, text) for text in drafts.tests[kind]]
            seen[kind] = by_turns(bench, arms, prompts, f"Medusa, {kind} traffic")
        return told(seen, weights)

    def _timed(self, bench: PapersBench, pair: Pair, gamma: int, kind: str = "causal") -> TimedEngine:
        return TimedEngine(pair, bench.settings, self.tokens, gamma=gamma, kind=kind)


def _weights(pair: Pair) -> int:
    module: Any = pair.draft.module
    return sum(each.numel() for each in module.parameters())


def told(seen: Seen, weights: Mapping[str, int]) -> PaperFindings:
    """Return figures; ``weights``: of heads and of the small draft."""
    figures, rows = {}, []
    for kind, arms in seen.items():
        figures[f"osd_vs_medusa_{kind}"] = speed_up_of(arms[MEDUSA_OSD], arms[MEDUSA])
        pairs = zip(arms[MEDUSA_OSD], arms[MEDUSA], strict=True)
        figures[f"rounds_saved_{kind}"] = mean_of([1 - one.rounds_a_token / bare.rounds_a_token for one, bare in pairs])
        figures[f"draft_vs_medusa_osd_{kind}"] = speed_up_of(arms[DRAFT_OSD], arms[MEDUSA_OSD])
        figures[f"medusa_vs_draft_{kind}"] = speed_up_of(arms[MEDUSA], arms[DRAFT_OSD])
    for name in (MEDUSA, MEDUSA_OSD, DRAFT_OSD):
        row: dict[str, Any] = {"draft": name, "weights": weights.get(name, weights[MEDUSA])}
        for kind, arms in seen.items():
            rounds = mean_of([answer.rounds_a_token for answer in arms[name]]).value
            row[f"speed-up, {kind}"] = str(mean_of(ratios_of(arms[name], arms[ALONE])))
            row[f"tokens a round, {kind}"] = round(1 / rounds, 2)
        rows.append(row)
    return PaperFindings(figures, {"Speed-up over the target alone, this machine": rows})
