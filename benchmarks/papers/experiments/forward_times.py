"""SpecDec++, Table 2 and Figure 4: t_draft and t_target by linear regression, on the machine that runs.

The gamma bench times fixed lengths, SpecDec++ with a trained head, and the target alone by turns on the same prompts;
T = t_draft N_draft + t_target N_target (Eq. 3.1) is fitted over texts, for each data set.
"""

from __future__ import annotations

from collections import defaultdict

from pydantic import TypeAdapter

from benchmarks.gamma.measured import GammaMeasured, told
from benchmarks.gamma.plan import ALONE, GammaPlan, GammaSetting
from benchmarks.gamma.scene import Scene
from benchmarks.papers.claims import mean_of
from benchmarks.papers.entry import PaperExperiment, PaperFindings, PapersBench, PaperSizes
from benchmarks.papers.experiments.heads import BEST, heads_of

LENGTHS = "2,4,8"
BLANK = ("t_draft, ms", "R²")
TURNS = {True: 8, False: 2}
LINES = TypeAdapter(GammaMeasured)


def scenes_of(bench: PapersBench, sizes: PaperSizes) -> dict[str, Scene]:
    """Return what was timed, by data set; it goes on in the shared folder."""
    scenes: dict[str, Scene] = bench.once("timed", lambda: _timed(bench, sizes))
    return scenes


def _timed(bench: PapersBench, sizes: PaperSizes) -> dict[str, Scene]:
    from benchmarks.gamma.bench import MEASURED, measure
    from benchmarks.gamma.plan import asked_plan

    head = str(heads_of(bench, sizes).head(BEST))
    settings = bench.settings.changed(gamma={"specdecpp": {"head": head}, "routes": {}})
    plan = asked_plan(
        settings, ["fixed,specdecpp"], [LENGTHS], ["1"], ["1"], count=1, max_tokens=sizes.tokens,
        turns=TURNS[bench.full], mix=0, random_draft=False,
    )  # fmt: skip
    out = bench.folder(f"timed-{sizes.texts}x{sizes.tokens}")
    names = (bench.target, bench.draft)
    result = measure(settings, plan, names, bench.prompts, bench.seed, out, bench.watch, insist=True)
    if result.interrupted:
        raise KeyboardInterrupt
    measured = [LINES.validate_json(line) for line in (out / MEASURED).read_text("utf-8").splitlines()]
    return scenes_by_set(measured, plan)


def scenes_by_set(measured: list[GammaMeasured], plan: GammaPlan) -> dict[str, Scene]:
    """Return the measurements of each data set, told by what rounds of their kinds usually take."""
    by_setting: dict[GammaSetting, list[GammaMeasured]] = defaultdict(list)
    for each in measured:
        by_setting[each.job.setting].append(each)
    return {setting.data_set: Scene(setting, plan, told(some)) for setting, some in by_setting.items()}


def forward_times(bench: PapersBench, sizes: PaperSizes) -> PaperFindings:
    """Fit both methods, and the target alone."""
    rows, fits, head_cost, overhead = [], [], [], []
    for name, scene in scenes_of(bench, sizes).items():
        fixed, plus = scene.time_model_of("fixed"), scene.time_model_of("specdecpp")
        alone = scene.of[ALONE]
        passes = sum(each.target_passes for each in alone)
        if not fixed or not plus or not passes:
            continue
        stand_alone = sum(each.clock_ms for each in alone) / passes
        fits += [fixed.r2, plus.r2]
        overhead.append(fixed.target_ms / stand_alone)
        if fixed.draft_ms:
            head_cost.append(plus.draft_ms / fixed.draft_ms)
        rows += [
            {"data set": name, "setting": what, "t_target, ms": model.target_ms, "t_draft, ms": model.draft_ms,
             "R²": model.r2}
            for what, model in (("SpecDec", fixed), ("SpecDec++", plus))
        ]  # fmt: skip
        rows.append(
            {"data set": name, "setting": "stand-alone", "t_draft, ms": None, "t_target, ms": stand_alone, "R²": None}
        )
    figures = {"r2": mean_of(fits), "target_vs_stand_alone": mean_of(overhead)} if fits else {}
    if head_cost:
        figures["draft_pass_with_head"] = mean_of(head_cost)
    return PaperFindings(figures, {"Forward times": rows})


FORWARD_TIMES = PaperExperiment(forward_times, PaperSizes(4, 32, minutes=2), PaperSizes(20, 128, minutes=3))
