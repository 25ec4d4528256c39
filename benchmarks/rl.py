"""The RL loop of docs/moving-targets.md as it is printed there, over `osd serve`: rollouts with osd following, with the
draft left as it is, and without one.

The loop is a process of its own and serves no bench: what it brings is read out of the store. At some updates it is
halted, and greedy answers of the server are compared with those of the target that has just come, alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoModelForCausalLM

from osd.bench.harness.picture import dress, make_panels, save
from osd.bench.harness.plan import Count
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch, note
from osd.models.vocabulary import load_tokenizer
from osd.server.start import SHIPPED
from storage.insights.recent import traffic
from storage.settings import Settings, load_settings
from storage.sql.ledger import HEIR_OF
from storage.store import open_store

PAGE = Path(__file__).parents[1] / "docs" / "moving-targets.md"
API, ADMIN = "http://127.0.0.1:8000", "http://127.0.0.1:8001"
"""Where the page's loop asks."""
ARMS: dict[str, dict[str, str]] = {
    "following": {"OSD_LEARN__FOLLOW": "successor", "OSD_STORAGE__FLUSH_SECONDS": "0.5"},
    "every step": {"OSD_LEARN__INTERVAL_REQUESTS": "12", "OSD_STORAGE__FLUSH_SECONDS": "0.5"}, "frozen": {},
    "no draft": {"OSD_GAMMA__RULE": "fixed", "OSD_GAMMA__INITIAL": "0"},
}  # fmt: skip
GREEDY, PATIENCE = 24, 120.0
"""Tokens of a compared answer; seconds to wait for a server."""
Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class RlPlan:
    """Run the page's RL loop over osd serve.

    Example: `python -m benchmarks rl --out out/rl`
    """

    out: Path
    """New folder for targets, stores and the picture."""
    target: str = str(SHIPPED / "target")
    """The target's folder."""
    draft: str = str(SHIPPED / "draft")
    """The draft's."""
    arms: tuple[str, ...] = tuple(ARMS)
    """following (learn.follow), every step (a run after twelve answers, whatever it costs), frozen, no draft."""
    gamma: int | None = None
    """Tokens drafted a round, so that all arms are judged on as many; None leaves that to goodput."""
    steps: Count = 40
    """Updates."""
    compare: Count = 5
    """Updates after which greedy texts are compared."""


def bench_rl(plan: RlPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Run the loop once by every arm. Raises what the loop does not survive."""
    rows, found = Rows(), dict[str, Rows]()
    for arm in plan.arms:
        own = plan.out / arm.replace(" ", "-")
        shutil.copytree(plan.target, own / "base")
        for path in (own / "base", *(own / "base").iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        began = time.monotonic()
        texts, rewards = Loop(plan, arm, own).run()
        found[arm] = by_update(own, rewards)
        rows.append({"arm": arm, **summed_up(found[arm]), **texts, "wall_seconds": time.monotonic() - began})
        note(str(rows[-1]))
        (own / "updates.json").write_text(json.dumps(found[arm]))
    picture = draw(found, plan.out)
    return BenchResult("rl", {"steps": plan.steps}, {"arms": rows}, {"arms": rows}, {"picture": picture})


class Loop:
    """One arm: the server, the trainer where osd follows, and the page's loop."""

    def __init__(self, plan: RlPlan, arm: str, own: Path) -> None:
        self.plan, self.arm, self.own = plan, arm, own
        fixed = {} if plan.gamma is None else {"OSD_GAMMA__RULE": "fixed", "OSD_GAMMA__INITIAL": str(plan.gamma)}
        self.env = os.environ | fixed | ARMS[arm] | {
            "OSD_STORAGE__DIRECTORY": str(own / "data"), "OSD_SERVE__TARGET": str(own / "base"),
            "OSD_SERVE__DRAFT": plan.draft, "OMP_NUM_THREADS": "1", "OSD_SERVE__THREADS": "1",
        }  # fmt: skip

    def run(self) -> tuple[dict[str, Any], list[float]]:
        """Return how many greedy texts were equal, and the mean reward at each update."""
        (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
        rewards, equal, compared, every = list[float](), 0, 0, max(1, self.plan.steps // self.plan.compare)
        with ExitStack() as stack:
            stack.enter_context(self._process("serve"))
            wait_for(f"{API}/v1/models")
            if self.arm in ("following", "every step"):
                stack.enter_context(self._process("trainer"))
            loop = subprocess.Popen(
                [sys.executable, "-u", "-c", code, str(self.own / "base"), str(self.plan.steps)],
                env=self.env, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.callback(loop.kill)
            assert loop.stdout is not None
            for line in loop.stdout:
                note(f"{self.arm}: {line.strip()}")
                step, reward = line.split()[:2]
                rewards.append(float(reward))
                if (int(step) + 1) % every == 0:
                    loop.send_signal(signal.SIGSTOP)
                    right = self._compare(self.own / f"step-{int(step) % 2}")
                    equal, compared = equal + sum(right), compared + len(right)
                    loop.send_signal(signal.SIGCONT)
            if loop.wait():
                raise RuntimeError(f"the loop ended with {loop.returncode}")
        return {"texts_equal": equal, "texts": compared}, rewards

    @contextmanager
    def _process(self, command: str) -> Iterator[None]:
        words = [sys.executable, "-c", "from osd.cli.main import main; main()", command]
        with (self.own / f"{command}.log").open("w") as log:
            process = subprocess.Popen(words, env=self.env, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)

    def _compare(self, folder: Path) -> list[bool]:
        loader: Any = AutoModelForCausalLM
        model, tokenizer = loader.from_pretrained(folder, dtype=torch.float32), load_tokenizer(folder)
        assert tokenizer is not None
        return [self._same(model, tokenizer, prompt) for prompt in PROMPTS]

    def _same(self, model: Any, tokenizer: Any, prompt: str) -> bool:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=GREEDY, do_sample=False)
        alone = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
        asked = {"prompt": prompt, "max_tokens": GREEDY, "temperature": 0, "osd": {"learn": False}}
        said = httpx.post(f"{API}/v1/completions", json=asked, timeout=PATIENCE).json()["choices"][0]["text"]
        if said != alone:
            note(f"{self.arm}, {folder_of(model)}: {said!r} is not {alone!r}")
        return bool(said == alone)


PROMPTS = ("SELECT name FROM users WHERE", "How many orders were made in", "def add(", "The capital of")


def folder_of(model: Any) -> str:
    """Return the folder that a model was read from."""
    return str(model.name_or_path)


def wait_for(url: str) -> None:
    """Wait until a server answers. Raises TimeoutError."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise TimeoutError(url)


def by_update(own: Path, rewards: Sequence[float]) -> Rows:
    """Return what the store knows of each target, in their order."""
    rows, settings = Rows(), load_settings(storage={"directory": own / "data"})
    with open_store(settings) as store:
        lines = {target: line for line, target in store.targets.of_lines().items()}
        for number, one in enumerate(store.targets.served()):
            served, versions = traffic(store.db, lines[one.digest], 0.0), store.versions.list(lines[one.digest])
            runs = store.runs.list(lines[one.digest])
            heirs = [version.evidence for version in versions if HEIR_OF in version.evidence]
            judged = next((each for each in heirs if "after" in each), {})
            rows.append({
                "update": number, "alpha": served.alpha, "emitted": served.emitted, "rounds": served.rounds,
                "drafted": served.drafted, "accepted": served.accepted, "seconds": served.seconds,
                "rejections": served.rejections, "reward": rewards[number] if number < len(rewards) else None,
                "heir": [each.get("better") for each in heirs], "number_0": judged.get("before"),
                "learned": judged.get("after"), "break_even": judged.get("break_even"),
                "runs": [run.state.value for run in runs],
                "run_seconds": [run.result.get("seconds") for run in runs],
                "divergence": store.targets.divergence(one.digest),
            })  # fmt: skip
    return rows


def summed_up(rows: Rows) -> dict[str, Any]:
    """Return an arm's totals; of acceptance and rewards also those of the last quarter."""
    last = rows[-len(rows) // 4 :]

    def total(name: str, some: Rows) -> float:
        return float(sum(row[name] for row in some))

    def alpha(some: Rows) -> float | None:
        judged = total("accepted", some) + total("rejections", some)
        return total("accepted", some) / judged if judged else None

    rewards = [row["reward"] for row in last if row["reward"] is not None]
    return {
        "tokens_per_second": total("emitted", rows) / total("seconds", rows), "alpha": alpha(rows),
        "alpha_last": alpha(last), "tokens_a_round": total("emitted", rows) / total("rounds", rows),
        "tokens_a_round_last": total("emitted", last) / total("rounds", last),
        "tokens_per_second_last": total("emitted", last) / total("seconds", last),
        "drafted_a_round": total("drafted", rows) / total("rounds", rows),
        "reward_last": sum(rewards) / max(1, len(rewards)), "updates": len(rows) - 1,
        "runs": sum(len(row["runs"]) for row in rows),
        "published": sum(run == "published" for row in rows for run in row["runs"]),
        "heirs": sum(len(row["heir"]) for row in rows), "heirs_good": sum(sum(map(bool, row["heir"])) for row in rows),
    }  # fmt: skip


def draw(found: dict[str, Rows], out: Path) -> Path:
    """Draw over the updates what is inherited, judged on the new target beside number 0, and rewards."""
    figure, (upper, lower) = make_panels(2, 7.0, 2.6, across=1)
    for arm, rows in found.items():
        lines = (upper, "learned", arm), (upper, "number_0", f"{arm}, number 0"), (lower, "reward", arm)
        for axes, name, label in lines:
            if points := [(row["update"], row[name]) for row in rows if row[name] is not None]:
                axes.plot(*zip(*points, strict=True), label=label, linestyle=":" if name == "number_0" else "-")
    for axes, words in ((upper, "expected α"), (lower, "mean reward")):
        axes.set_ylabel(words)
        axes.set_xlabel("update of the target")
        axes.legend()
        dress(axes)
    return save(figure, out, "rl")
