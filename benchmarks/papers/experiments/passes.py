"""What passes of both models take, and an update of the draft, on the machine that runs."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from pydantic import TypeAdapter

from benchmarks.distil.texts import answers
from benchmarks.figures import mean_of
from benchmarks.gamma.bench import MEASURED, bench_gamma
from benchmarks.gamma.measured import GammaMeasured
from benchmarks.gamma.plan import ALONE, Contested, GammaPlan
from benchmarks.gamma.result import Results
from benchmarks.gamma.scene import Scene, fitted
from benchmarks.papers.experiment import PaperExperiment, PaperFindings, PapersBench, shared
from benchmarks.papers.experiments.heads import BEST, HeadsExperiment
from benchmarks.papers.experiments.timing import TimedEngine
from osd.bench.harness.prompts import Tokens, numbers
from storage.sampling import GREEDY
from trainer.distil.distil import distil

MANY = 1 << 20
PLUS = "specdecpp"
LINES = TypeAdapter(GammaMeasured)


class ForwardTimes(HeadsExperiment):
    """SpecDec++, Table 2 and Figure 4: t_draft and t_target by linear regression.

    `python -m benchmarks gamma` times fixed lengths, SpecDec++ with a trained head, and the target alone by turns on
    the same prompts; T = t_draft N_draft + t_target N_target (Eq. 3.1) is fitted over texts, for each data set.
    SpecDec++ takes its turns with several thresholds: rounds that are all of one length say nothing of t_draft.
    """

    lengths: str
    thresholds: tuple[float, ...]
    turns: int

    def run(self, bench: PapersBench) -> PaperFindings:
        """Fit both methods, and the target alone."""
        rows, fits, head_cost, overhead = [], [], [], []
        scenes = self.timed(bench)
        for name, scene in scenes[0].items():
            fixed, alone = scene.time_model_of("fixed"), scene.of[ALONE]
            with_head = [some for one in scenes for entrant, some in one[name].of.items() if entrant.name == PLUS]
            plus = fitted(each for some in with_head for each in some)
            passes = sum(each.target_passes for each in alone)
            if not fixed or not plus or not passes:
                continue
            stand_alone = sum(each.clock_ms for each in alone) / passes
            fits += [fixed.r2, plus.r2]
            overhead.append(fixed.target_ms / stand_alone)
            if fixed.draft_ms:
                head_cost.append(plus.draft_ms / fixed.draft_ms)
            for what, model in (("SpecDec", fixed), ("SpecDec++", plus)):
                rows.append({"data set": name, "setting": what, "t_target, ms": model.target_ms,
                             "t_draft, ms": model.draft_ms, "R²": model.r2})  # fmt: skip
            rows.append({"data set": name, "setting": "stand-alone", "t_draft, ms": None, "t_target, ms": stand_alone,
                         "R²": None})  # fmt: skip
        figures = {"r2": fits, "target_vs_stand_alone": overhead, "draft_pass_with_head": head_cost}
        return PaperFindings({name: mean_of(some) for name, some in figures.items() if some}, {"Forward times": rows})

    @shared("timed")
    def timed(self, bench: PapersBench) -> list[dict[str, Scene]]:
        """Return by threshold the measurements of each data set, told by what rounds of their kinds usually take; fixed
        lengths with the first alone."""
        return [
            self._timed(bench, threshold, (PLUS,) if i else ("fixed", PLUS))
            for i, threshold in enumerate(self.thresholds)
        ]

    def _timed(self, bench: PapersBench, threshold: float, rules: tuple[str, ...]) -> dict[str, Scene]:
        head, out = str(self.heads(bench).head(BEST)), bench.folder(f"{self.named('timed')}-h{threshold:g}")
        own = {"specdecpp": {"head": head, "threshold": threshold}, "routes": {}}
        settings = bench.settings.changed(gamma=own)
        asked = GammaPlan(
            target=bench.target, draft=bench.draft, prompts=tuple(bench.prompts), seed=bench.seed, out=out,
            controllers=rules, initial_gammas=numbers([self.lengths], "lengths", int, 1),
            temperatures=(1.0,), batch_sizes=(1,), count=1, max_tokens=self.tokens, turns=self.turns,
        )  # fmt: skip
        bench_gamma(asked, settings, bench.watch)
        folder = [LINES.validate_json(line) for line in (out / MEASURED).read_text().splitlines()]
        scenes = Results(Contested.of(asked, settings.gamma), folder, {}).scenes
        return {setting.data_set: scene for setting, scene in scenes.items()}


class UpdateTimes(PaperExperiment):
    """OSD, A.9.2: what an update of the draft takes, beside the target's decoding. An update is the trainer's own: one
    step over all positions of the answers, from what was recorded of the target's distributions there."""

    prompt: int
    """Tokens of a prompt."""
    interval: int
    """Requests between two updates."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Time the answers between two updates by the target alone, and an update of the draft over them."""
        sets = bench.sets(self.texts, self.tokens)
        prompts = [prompt[: self.prompt] for some in sets.values() for prompt in some if len(prompt) >= 2]
        alone = TimedEngine(bench.pair, bench.settings, self.tokens, gamma=0)
        ratios, rows = [], []
        draft_update(bench, prompts[:1], self.tokens), alone.decode(prompts[0])  # warm
        for number in range(self.seeds):
            bench.watch.at(f"updates beside decoding: {number + 1} of {self.seeds}")
            some = [prompts[(number * self.interval + i) % len(prompts)] for i in range(self.interval)]
            target = sum(alone.decode(prompt).seconds for prompt in some)
            draft = draft_update(bench, some, self.tokens)
            ratios.append(target / draft)
            rows.append({"eight answers, s": target, "an update, s": draft, "÷": target / draft})
        return PaperFindings({"answers_vs_update": mean_of(ratios)}, {"Seconds": rows})


def draft_update(bench: PapersBench, prompts: Sequence[Tokens], tokens: int) -> float:
    """Return the seconds of one step over the target's answers to these prompts, on a copy of the draft."""
    answered = answers(bench.pair, bench.settings, prompts, GREEDY, tokens)
    module = copy.deepcopy(bench.pair.draft.module).requires_grad_(True)
    whole = {"epochs": 1, "batch_positions": MANY, "batch_tokens": MANY, "positions": "verified"}
    return distil(module, answered, bench.settings.learn.model_copy(update=whole)).seconds
