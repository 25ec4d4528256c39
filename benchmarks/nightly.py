"""A target that is fine-tuned every night: acceptance at once after each change and how soon it is back, with
succession, with the draft beginning from its folder again, and with the old draft left as it is.

Each night a LoRA adapter learns so many answers of another style and is merged. Served are questions that no night
learned from, greedily, with drafts of one length, and an update follows every ``interval`` of them: all is counted, and
nothing timed.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from osd.bench.harness.plan import Count
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch, note
from osd.engine.engine import Engine
from osd.engine.session import serving
from osd.models.pair import load_pair
from osd.models.vocabulary import load_tokenizer
from osd.prompts import Prompt, encode, read_prompts
from osd.server.start import SHIPPED
from storage.errors import BadPromptFile
from storage.records import Request
from storage.settings import Settings
from storage.store import Store, open_store
from trainer.distil.loop import run_once
from trainer.distil.resident import ResidentModels

ARMS = ("succession", "folder", "old draft")
BACK = 0.95
"""Share of the acceptance before the first night at which it is back."""
RATE, BATCH = 1e-3, 8
"""AdamW's learning rate, and answers of a step."""
Asked = Sequence[tuple[str, str]]
"""Questions with their answers."""


@dataclass(frozen=True, kw_only=True)
class NightlyPlan:
    """Fine-tune a target every night, and see what becomes of its draft.

    Example: `python -m benchmarks nightly --prompts gsm8k.jsonl.gz --out out/nightly`
    """

    prompts: Path
    """JSON lines, each with a "prompt" and its "response"; GSM8K's form is changed into numbered steps."""
    out: Path
    """New folder for targets and stores."""
    target: str = str(SHIPPED / "target")
    """The target's folder."""
    draft: str = str(SHIPPED / "draft")
    """The draft's."""
    nights: Count = 3
    """Changes of the target."""
    answers: Count = 300
    """Answers that a night learns from."""
    epochs: Count = 3
    """Its passes over them."""
    first: Count = 160
    """Questions served before the first night."""
    requests: Count = 160
    """Questions served after each."""
    interval: Count = 16
    """Requests between two updates of the draft."""
    window: Count = 32
    """Requests whose acceptance is called that of a moment."""
    max_tokens: Count = 64
    """Tokens of an answer at most."""
    gamma: Count = 4
    """Tokens drafted a round."""
    seed: int = 0
    """Which questions are served and learned from, and the adapters' weights."""


def styled(answer: str) -> str:
    """Return an answer in another style: numbered steps without the calculator's notes."""
    *steps, result = re.sub(r"<<[^>]*>>", "", answer).strip().split("\n")
    said = [f"Step {number}: {step}" for number, step in enumerate(steps, 1)]
    return "\n".join([*said, result.replace("####", "Answer:")])


def bench_nightly(plan: NightlyPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Serve, change the target, and serve on, by each arm. Raises BadPromptFile, PairError."""
    told = [each for each in read_prompts(plan.prompts) if isinstance(each, Prompt) and each.fields.get("response")]
    sizes = [plan.first, *[plan.requests] * plan.nights]
    wanted = plan.answers * plan.nights + sum(sizes)
    if len(told) < wanted:
        raise BadPromptFile(path=plan.prompts, reason=f"it has {len(told)} answers, and {wanted} are needed")
    random.Random(plan.seed).shuffle(told)
    served = (each.text for each in told)
    days = [list(islice(served, size)) for size in sizes]
    learned = [(each.text, each.fields["response"]) for each in told[sum(sizes) :]]
    targets = [plan.target]
    for night in range(plan.nights):
        folder = plan.out / f"night-{night + 1}"
        fine_tune(targets[-1], folder, learned[plan.answers * night :][: plan.answers], plan, plan.seed + night)
        targets.append(str(folder))
    first, rows = NightlyArm(plan, settings, ARMS[0]), list[dict[str, Any]]()
    found = first.day(0, targets[0], days[0])
    before = rate(found[-2 * plan.window :])
    rows.append({"arm": "all", "day": 0, **facts(found, plan, before)})
    shutil.copytree(first.data, plan.out / ARMS[1])
    for arm in (first, NightlyArm(plan, settings, ARMS[1]), NightlyArm(plan, settings, ARMS[2], first.learned)):
        for day in range(1, plan.nights + 1):
            found = arm.day(day, targets[day], days[day])
            rows.append({"arm": arm.name, "day": day, "began_with": arm.began, **facts(found, plan, before)})
            note(str(rows[-1]))
    figures = {"before": before, "days": rows}
    return BenchResult("nightly", {"seed": plan.seed, "target": plan.target}, figures, {"days": rows}, {})


Verdicts = Sequence[tuple[int, int]]
"""Accepted tokens and refusals of each request."""


def rate(found: Verdicts) -> float:
    """Return α over requests."""
    accepted = sum(one for one, _ in found)
    return accepted / max(1, accepted + sum(refused for _, refused in found))


def facts(found: Verdicts, plan: NightlyPlan, before: float) -> dict[str, Any]:
    """Return α at once, at the end, and the requests after which that of a window is back."""
    ends = range(plan.window, len(found) + 1)
    back = next((end for end in ends if rate(found[end - plan.window : end]) >= BACK * before), None)
    by_window = [round(rate(found[at : at + plan.window]), 3) for at in range(0, len(found), plan.window)]
    return {"at_once": rate(found[: plan.interval]), "last": by_window[-1], "back_after": back, "windows": by_window}


class NightlyArm:
    """One way to go on, with a store of its own. ``frozen``: the draft that stays as it is."""

    def __init__(self, plan: NightlyPlan, settings: Settings, name: str, frozen: Path | None = None) -> None:
        self.plan, self.name, self.frozen, self.resident = plan, name, frozen, ResidentModels()
        self.data = plan.out / name.replace(" ", "-")
        self.learned, self.began = Path(), ""
        """Folder of the newest version, and the version that the day began with."""
        self._settings = settings.changed(
            storage={"url": None, "directory": self.data, "flush_requests": plan.interval},
            serve={"successors": name == ARMS[0], "swap_poll_seconds": 0.05},
            drafters={"kind": "causal"},
            learn={"interval_requests": plan.interval},
        )  # fmt: skip

    def day(self, day: int, target: str, questions: Sequence[str]) -> Verdicts:
        """Serve a day's questions."""
        pair = load_pair(target, self.frozen or self.plan.draft, device="cpu", dtype="float32")
        own = self._settings.changed(storage={"directory": self.data / str(day)}) if self.frozen else self._settings
        with open_store(own) as store, serving(pair, own, store) as engine:
            found, self.began = list[tuple[int, int]](), engine.draft_version
            for at in range(0, len(questions), self.plan.interval):
                some = [
                    Request(encode(pair.tokenizer, each), self.plan.max_tokens, gamma=self.plan.gamma)
                    for each in questions[at : at + self.plan.interval]
                ]
                done = {one.request.id: one.outcomes for one in engine.run(some)}
                found += [_verdicts(done[one.id]) for one in some]
                engine.recorder.wait()  # type: ignore[union-attr]
                if not self.frozen:
                    self._update(store, engine, str(pair.target.digest))
            current = store.versions.current("default", pair.target.digest)
            if not self.learned.name:
                self.learned = store.versions.folder(current)
            return found

    def _update(self, store: Store, engine: Engine, target: str) -> None:
        run_once(store, self._settings, store.versions.current("default", target).draft, "bench", None, self.resident)
        while engine.draft_version != store.versions.current("default", target).id:
            engine.step()


def _verdicts(outcomes: Sequence[Any]) -> tuple[int, int]:
    return sum(one.accepted for one in outcomes), sum(one.rejections for one in outcomes)


def fine_tune(base: str, folder: Path, answers: Asked, plan: NightlyPlan, seed: int) -> None:
    """Teach a target answers of another style by a LoRA adapter, and merge it into a folder of its own."""
    from peft import LoraConfig, get_peft_model

    if folder.is_dir():
        return
    torch.manual_seed(seed)
    tokenizer, loader = load_tokenizer(base), AutoModelForCausalLM
    given: Any = loader.from_pretrained(base, dtype=torch.float32)
    model: Any = get_peft_model(given, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=RATE)
    for step, (ids, labels) in enumerate(_batches(tokenizer, answers, plan.epochs, seed)):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            note(f"{folder.name}: step {step}, loss {loss.item():.3f}")
    shutil.copytree(base, folder)
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)
    model.merge_and_unload().save_pretrained(folder)
    for name in ("config.json", "generation_config.json"):
        if (Path(base) / name).is_file():
            shutil.copyfile(Path(base) / name, folder / name)


def _batches(tokenizer: Any, answers: Asked, epochs: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    chance = random.Random(seed)
    for _ in range(epochs):
        order = chance.sample(answers, len(answers))
        for at in range(0, len(order), BATCH):
            rows = []
            for question, answer in order[at : at + BATCH]:
                prompt = list(encode(tokenizer, question))
                said = [*tokenizer.encode(styled(answer), add_special_tokens=False), tokenizer.eos_token_id]
                rows.append(([*prompt, *said], [-100] * len(prompt) + said))
            width = max(len(ids) for ids, _ in rows)
            yield (
                torch.tensor([ids + [tokenizer.eos_token_id] * (width - len(ids)) for ids, _ in rows]),
                torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows]),
            )
