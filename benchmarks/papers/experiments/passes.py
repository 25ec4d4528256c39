"""What passes of both models take, and an update of the draft, on the machine that runs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from pydantic import TypeAdapter

from benchmarks.figures import mean_of
from benchmarks.gamma.bench import MEASURED, bench_gamma
from benchmarks.gamma.measured import GammaMeasured
from benchmarks.gamma.plan import ALONE, Contested, GammaPlan
from benchmarks.gamma.result import Results
from benchmarks.gamma.scene import Scene
from benchmarks.papers.experiment import PaperExperiment, PaperFindings, PapersBench, shared
from benchmarks.papers.experiments.heads import BEST, HeadsExperiment
from benchmarks.papers.experiments.timing import TimedEngine
from osd.bench.harness.prompts import numbers
from osd.models.pair import Pair

LINES = TypeAdapter(GammaMeasured)


class ForwardTimes(HeadsExperiment):
    """SpecDec++, Table 2 and Figure 4: t_draft and t_target by linear regression.

    `python -m benchmarks gamma` times fixed lengths, SpecDec++ with a trained head, and the target alone by turns on
    the same prompts; T = t_draft N_draft + t_target N_target (Eq. 3.1) is fitted over texts, for each data set.
    """

    lengths: str
    turns: int

    def run(self, bench: PapersBench) -> PaperFindings:
        """Fit both methods, and the target alone."""
        rows, fits, head_cost, overhead = [], [], [], []
        for name, scene in self.timed(bench).items():
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
            for what, model in (("SpecDec", fixed), ("SpecDec++", plus)):
                rows.append({"data set": name, "setting": what, "t_target, ms": model.target_ms,
                             "t_draft, ms": model.draft_ms, "R²": model.r2})  # fmt: skip
            rows.append({"data set": name, "setting": "stand-alone", "t_draft, ms": None, "t_target, ms": stand_alone,
                         "R²": None})  # fmt: skip
        figures = {"r2": fits, "target_vs_stand_alone": overhead, "draft_pass_with_head": head_cost}
        return PaperFindings({name: mean_of(some) for name, some in figures.items() if some}, {"Forward times": rows})

    @shared("timed")
    def timed(self, bench: PapersBench) -> dict[str, Scene]:
        """Return the measurements of each data set, told by what rounds of their kinds usually take."""
        head, out = str(self.heads(bench).head(BEST)), bench.folder(self.named("timed"))
        settings = bench.settings.changed(gamma={"specdecpp": {"head": head}, "routes": {}})
        asked = GammaPlan(
            target=bench.target, draft=bench.draft, prompts=tuple(bench.prompts), seed=bench.seed, out=out,
            controllers=("fixed", "specdecpp"), initial_gammas=numbers([self.lengths], "lengths", int, 1),
            temperatures=(1.0,), batch_sizes=(1,), count=1, max_tokens=self.tokens, turns=self.turns,
        )  # fmt: skip
        bench_gamma(asked, settings, bench.watch)
        folder = [LINES.validate_json(line) for line in (out / MEASURED).read_text().splitlines()]
        scenes = Results(Contested.of(asked, settings.gamma), folder, {}).scenes
        return {setting.data_set: scene for setting, scene in scenes.items()}


class UpdateTimes(PaperExperiment):
    """OSD, A.9.2: what an update of the draft takes, beside the target's decoding."""

    prompt: int
    """Tokens of a prompt."""
    interval: int
    """Requests between two updates."""

    def run(self, bench: PapersBench) -> PaperFindings:
        """Time the answers between two updates by the target alone, and a forward, backward and AdamW step of the draft
        over texts as long."""
        sets = bench.sets(self.texts, self.tokens)
        prompts = [prompt[: self.prompt] for some in sets.values() for prompt in some if len(prompt) >= 2]
        alone = TimedEngine(bench.pair, bench.settings, self.tokens, gamma=0)
        update, ratios, rows = draft_update(bench.pair, self.interval, self.prompt + self.tokens), [], []
        update()
        alone.decode(prompts[0])  # warm
        for number in range(self.seeds):
            bench.watch.at(f"updates beside decoding: {number + 1} of {self.seeds}")
            some = [prompts[(number * self.interval + i) % len(prompts)] for i in range(self.interval)]
            target, draft = sum(alone.decode(prompt).seconds for prompt in some), _seconds(update)
            ratios.append(target / draft)
            rows.append({"eight answers, s": target, "an update, s": draft, "÷": target / draft})
        return PaperFindings({"answers_vs_update": mean_of(ratios)}, {"Seconds": rows})


def draft_update(pair: Pair, texts: int, length: int) -> Callable[[], None]:
    """Return a step of forward KL over so many texts of ``length`` tokens, on a copy of the draft."""
    module = copy.deepcopy(pair.draft.module).requires_grad_(True).train()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-5)
    generator = torch.Generator().manual_seed(0)
    vocabulary, device = int(module.config.vocab_size), next(module.parameters()).device
    tokens = torch.randint(2, vocabulary, (texts, length), generator=generator).to(device)
    said = torch.randn(texts, length, vocabulary, generator=generator).to(device).softmax(-1)

    def step() -> None:
        logits = module(input_ids=tokens, use_cache=False).logits.float()
        loss = F.kl_div(logits.log_softmax(-1).flatten(0, 1), said.flatten(0, 1), reduction="batchmean")
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
