"""A whole run with a small random pair: interrupted, gone on with, and replayed from what it recorded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from rich.progress import Progress

from benchmarks.gamma.bench import MEASURED, Replay, measure_gamma, plan_of, simulate_gamma
from benchmarks.gamma.contest import Contest, CountedCosts, Lodger, Timed, with_random_draft
from benchmarks.gamma.costs import load_costs
from benchmarks.gamma.measured import GammaMeasured
from benchmarks.gamma.plan import ALL, ALONE, MIX, ORACLE, Contested, Entrant, GammaJob, GammaSetting
from benchmarks.gamma.rounds import read_recording
from osd.bench.harness.watch import Watch
from osd.engine.engine import Engine
from osd.gamma.base import CostModel, DraftDecision, GammaController, Observation, RowByRow
from osd.gamma.rules.fsm import CountingRow
from storage.errors import BadSetting
from storage.records import Request
from tests.support.features import feature_pair
from tests.support.models import prompts, random_pair
from tests.support.settings import changed, settings_of

SERVE = settings_of(serve__max_length=128, gamma__max=6)
PLAN = Contested(
    target="random", draft="noisy", data_sets=("one", "two"), initial=3,
    controllers=("fixed", "analytic", "gammatune"), initial_gammas=(1, 3), temperatures=(0.0, 1.0), batch_sizes=(1, 2),
    count=1, max_tokens=6, turns=2, mix=2,
)  # fmt: skip
PROMPTS = {name: prompts(PLAN.prompts_needed(), seed=seed, longest=6) for seed, name in enumerate(PLAN.data_sets)}


def kept(out: Path) -> list[GammaMeasured]:
    """What a folder holds, line by line."""
    lines = TypeAdapter(GammaMeasured)
    return [lines.validate_json(line) for line in (out / MEASURED).read_text().splitlines()]


class Pressing(Watch):
    """Counts, and presses Ctrl-C before job number ``stop``."""

    def __init__(self, stop: int | None = None) -> None:
        self.bar = Progress(disable=True)
        super().__init__(self.bar)
        self.stop, self.jobs, self.said = stop, 0, list[str]()

    @property
    def work(self) -> float:
        return self.bar.tasks[0].total or 0.0

    @property
    def done(self) -> float:
        return self.bar.tasks[0].completed

    def at(self, what: str) -> None:
        if not what.startswith("recording"):
            self.jobs += 1
        if self.stop == self.jobs:
            raise KeyboardInterrupt

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Pressing]:
    """A run that was stopped before its tenth job, and gone on with to the end."""
    out, pair = tmp_path_factory.mktemp("gamma") / "run", random_pair("llama", noise=0.05)
    stopped = measure_gamma(PLAN, pair, PROMPTS, SERVE, out, Pressing(stop=10))
    assert (stopped.interrupted, stopped.figures, stopped.files) == (True, {}, {})
    assert len(kept(out)) == 9
    watch = Pressing()
    measure_gamma(PLAN, pair, PROMPTS, SERVE, out, watch)
    return out, watch


def test_an_interrupted_run_goes_on_and_measures_each_job_once(finished: tuple[Path, Pressing]) -> None:
    out, _ = finished
    jobs = [each.job for each in kept(out)]
    assert jobs == list(PLAN.jobs())


def test_progress_is_told_in_the_units_of_the_plan(finished: tuple[Path, Pressing]) -> None:
    watch = finished[1]
    assert watch.done == pytest.approx(watch.work) and watch.work > 0 and watch.said == []


def test_it_leaves_figures_rounds_and_costs(finished: tuple[Path, Pressing]) -> None:
    out, _ = finished
    bench = json.loads((out / "bench.json").read_text())
    held = [j for j in PLAN.jobs() if not j.setting.temperature and j.entrant.kind != "assisted" and j.entrant != ALONE]
    assert (bench["texts_compared"], bench["texts_differing"]) == (len(held), 0)
    assert set(bench["data_sets"]) == {"one", "two", MIX}
    assert set(bench["settings"]) == {str(setting) for setting in PLAN.settings()}
    oracle = bench["settings"]["one T=0 batch 1"]["counts"]["oracle"]
    assert oracle["discard_rate"] == 0
    alone = bench["settings"]["one T=0 batch 1"]["counts"]["fixed 0"]
    assert alone["verification_rate"] == 1 and oracle["verification_rate"] < 1
    assert len(read_recording(out / "rounds.parquet").of("two", 1.0)) == PLAN.prompts_needed()
    assert load_costs(out / "costs.json").verify_ms(1, 1) > 0


def test_every_round_is_timed_by_its_kind(finished: tuple[Path, Pressing]) -> None:
    """What a kind says adds up to the passes."""
    measured = kept(finished[0])
    ours = [each for each in measured if each.job.entrant.kind != "assisted"]
    for each in ours:
        counts = Counter(each.first) + Counter({kind: len(took) for kind, took in each.took_ms.items()})
        assert sum(counts.values()) == each.target_passes
        assert sum(map(Counter, each.texts), Counter()) == counts
        assert sum(int(kind.split(",")[1]) * count for kind, count in counts.items()) == each.draft_passes
        assert all(ms > 0 for took in each.took_ms.values() for ms in took)
        assert each.seconds > 0 <= each.decision_ns
    by_kind = {kind for each in ours if each.job.entrant == ALONE for kind in each.took_ms}
    assert {kind.split(",")[1] for kind in by_kind} == {"0"}


def test_the_oracle_takes_as_few_rounds_as_the_recorded_matches_allow(finished: tuple[Path, Pressing]) -> None:
    """Theorem 4.1, from the traces: a round ends at each token that the draft has wrong, and one more ends the text."""
    out, _ = finished
    recording = read_recording(out / "rounds.parquet")
    measured = kept(out)
    for each in measured:
        if each.job.entrant != ORACLE or each.job.setting.batch > 1 or each.job.setting.data_set == MIX:
            continue
        expected = 0
        for name, number in PLAN.turn_prompts(each.job.setting, each.job.turn):
            trace = recording.of(name, 0.0)[number]
            matches, position = trace.matches().tolist(), 0
            while position < trace.length:
                room = trace.end - position - 1
                position += 1 + min(matches[position], room, SERVE.gamma.max)
                expected += 1
        assert each.rounds == expected


def test_a_recording_replays_to_the_counts_that_were_measured(finished: tuple[Path, Pressing], tmp_path: Path) -> None:
    out, _ = finished
    recording, table = read_recording(out / "rounds.parquet"), load_costs(out / "costs.json")
    asked = replace(PLAN, simulate=out / "rounds.parquet", costs=str(out / "costs.json"))
    result = simulate_gamma(asked, SERVE, tmp_path, Pressing())
    assert len(result.files) == 1 and all(path.exists() for path in result.files.values())
    assert set(result.figures["data_sets"]) == {"one", "two", MIX}
    setting = PLAN.main("one")
    measured = kept(out)
    entrant = Entrant("rule", "fixed", 3)
    simulated = Replay(recording, table, SERVE, plan_of(recording, PLAN)).measure(GammaJob(setting, entrant, 0))
    counted = [m for m in measured if (m.job.setting, m.job.entrant) == (setting, entrant)]
    traces = recording.of("one", 0.0)
    assert simulated.tokens == sum(trace.length for trace in traces)
    for each in counted:
        ((_, number),) = PLAN.turn_prompts(setting, each.job.turn)
        assert each.tokens == traces[number].length


def test_a_run_cannot_go_on_with_other_prompts(finished: tuple[Path, Pressing]) -> None:
    others = {name: list(reversed(some)) for name, some in PROMPTS.items()}
    with pytest.raises(BadSetting, match="prompts_digest is"):
        measure_gamma(PLAN, random_pair("llama", noise=0.05), others, SERVE, finished[0], Pressing())


def test_a_controller_without_its_head_is_left_out_or_refused(tmp_path: Path) -> None:
    plan = replace(PLAN, controllers=("fixed", "specdecpp"), temperatures=(0.0,), batch_sizes=(1,), mix=0, turns=1)
    pair = random_pair("llama")
    with pytest.raises(BadSetting, match=r"gamma\.specdecpp\.head: specdecpp asks an acceptance head"):
        measure_gamma(plan, pair, PROMPTS, SERVE, tmp_path / "a", Pressing(), insist=True)
    assert not (tmp_path / "a").exists()
    watch = Pressing()
    result = measure_gamma(plan, pair, PROMPTS, SERVE, tmp_path / "b", watch, insist=False)
    assert result.settings["controllers"] == ("fixed",)
    assert watch.said[0].startswith("specdecpp is left out: ")


def test_a_borrowed_engine_decodes_as_one_of_ones_own() -> None:
    pair = random_pair("llama", noise=0.05)
    contest = Contest(pair, SERVE, PLAN, PROMPTS, {})
    setting, asked = PLAN.main("one"), [Request(prompt, 6) for prompt in PROMPTS["one"][:3]]
    for name in ("fixed", "gammatune"):
        own = Engine(pair, changed(SERVE, serve__max_batch=1, gamma__rule=name, gamma__initial=3))
        expected = [[(r.drafted, r.accepted) for r in done.rounds] for done in own.run(asked)]
        lodger = contest.warm(setting, Entrant("rule", name, 3))
        got = contest.decode(setting, lodger, asked)
        assert [[(r.drafted, r.accepted) for r in done.rounds] for done in got] == expected


def test_a_random_draft_has_the_shape_and_none_of_the_knowledge() -> None:
    pair = random_pair("llama", noise=0.0)
    other = with_random_draft(pair)
    assert other.target is pair.target
    assert [w.shape for w in other.draft.module.parameters()] == [w.shape for w in pair.draft.module.parameters()]
    contest = Contest(pair, SERVE, replace(PLAN, random_draft=True), PROMPTS, {})
    drafted = Entrant("rule", "fixed", 3)
    good = contest.measure(GammaJob(GammaSetting(ALL, 0.0, 2), drafted, 0))
    bad = contest.measure(GammaJob(GammaSetting(ALL, 0.0, 2, "random"), drafted, 0))
    alone = contest.measure(GammaJob(GammaSetting(ALL, 0.0, 2, "random"), ALONE, 0))
    assert good.accepted == good.drafted and bad.accepted < bad.drafted / 2
    assert bad.digest == alone.digest == good.digest


def test_a_draft_that_reads_hidden_states_has_a_random_one_too() -> None:
    pair = feature_pair("eagle")
    contest = Contest(pair, SERVE, replace(PLAN, random_draft=True), PROMPTS, {})
    drafted = Entrant("rule", "fixed", 3)
    good, bad = (contest.measure(GammaJob(GammaSetting(ALL, 0.0, 2, each), drafted, 0)) for each in ("given", "random"))
    assert bad.accepted < good.accepted and bad.digest == good.digest


class Slow(RowByRow):
    """Thinks for a millisecond before each answer."""

    name, signal = "slow", "none"

    def start(self) -> CountingRow:
        return CountingRow(2, 2)

    def plan(self, rows: Sequence[object], rooms: Sequence[int], batch: int, unread: Sequence[int] = ()) -> list[int]:
        sum(range(50_000))
        return [2] * len(rows)


def test_decisions_are_counted_by_answer_and_answers_are_passed_on() -> None:
    inner: GammaController = Slow()
    timed = Timed(inner)
    rows = [timed.start(), timed.start()]
    assert timed.plan(rows, [9, 9], 2) == [2, 2]
    assert timed.should_continue(rows, 1, [0.5, 0.5]) == [DraftDecision.ON, DraftDecision.ON]
    rows[0].observe(Observation(2, 2, 1))
    assert timed.counts.decisions == 4 and timed.counts.decision_ns > 10_000
    assert (timed.name, timed.signal) == ("slow", "none")


def test_costs_are_heard_by_their_own_model_and_by_everyones() -> None:
    everyone, job = CostModel(), GammaJob(PLAN.main("one"), ALONE, 0)
    first, second, many = CountedCosts(everyone, 1), CountedCosts(everyone, 1), CountedCosts(everyone, 8)
    counted = {}
    for costs in (first, second, many):
        lodger = Lodger(costs, Timed(Slow()))
        counted[costs] = GammaMeasured(job=job)
        lodger.count(counted[costs])
        lodger.controller.start()
    first.observe_draft(1, 3, 1.5)
    first.observe_verify(1, 4, 4.0)
    second.observe_verify(1, 1, 2.0)
    many.observe_draft(1, 3, 9.0)  # seven of its eight rows have left
    many.observe_verify(1, 1, 9.0)
    found = [(each.draft_passes, each.target_passes, each.clock_ms) for each in counted.values()]
    assert found == [(3, 1, 5.5), (0, 1, 2.0), (3, 1, 18.0)] and second.rounds == 1
    assert everyone.rounds == 2 and everyone.draft_ms(1, 3) == pytest.approx(1.5, rel=0.02)
