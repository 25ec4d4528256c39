"""The RL loop of docs/moving-targets.md as it is printed there, over `osd serve`: rollouts with osd following, with the
draft left as it is, and without one.

Each arm has a server, a loop and a trainer of its own, and makes one update after another in turn with the others, so
that what else the machine does falls on all; meanwhile they wait. At some updates greedy answers of the server are
compared with those of the target that has just come, alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoModelForCausalLM

from osd.bench.harness.picture import COLOURS, dress, make_panels, save
from osd.bench.harness.plan import Count
from osd.bench.harness.report import BenchResult
from osd.bench.harness.watch import Watch, note
from osd.bench.serve.process import READY, awake, running, wait_for
from osd.models.vocabulary import load_tokenizer
from osd.server.start import SHIPPED
from storage.insights.recent import traffic
from storage.settings import Settings, load_settings
from storage.sql.ledger import HEIR_OF
from storage.store import open_store

PAGE = Path(__file__).parents[1] / "docs" / "moving-targets.md"
PORT = 8000
"""Where the page's loop asks; the next one is the admin's."""
ARMS: dict[str, dict[str, str]] = {
    "following": {"OSD_LEARN__FOLLOW": "successor", "OSD_STORAGE__FLUSH_SECONDS": "0.5"},
    "every step": {"OSD_LEARN__INTERVAL_REQUESTS": "12", "OSD_STORAGE__FLUSH_SECONDS": "0.5"}, "frozen": {},
    "no draft": {"OSD_GAMMA__RULE": "fixed", "OSD_GAMMA__INITIAL": "0"},
}  # fmt: skip
GREEDY, PATIENCE, SMOOTHED = 24, 120.0, 5
"""Tokens of a compared answer; seconds to wait for a server; updates of whose figures the picture has the mean."""
Rows = list[dict[str, Any]]
Rollouts = Sequence[Sequence[tuple[float, ...]]]
"""By update, of each request: tokens, its seconds, and the server's processor seconds."""
TIMED = """
import builtins, os, time, httpx
from pathlib import Path

def print(*words):
    builtins.print(*words, flush=True)
    input()

def busy():
    ticks = Path(f"/proc/{os.environ['SERVER']}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

def post(url, post=httpx.post, **given):
    if (length := os.environ.get("LENGTH")) and "prompt" in given["json"]:
        given["json"]["osd"] = {"gamma": int(length)}
    began, worked = time.perf_counter(), busy()
    answer = post(url, **given)
    spent = time.perf_counter() - began, busy() - worked
    if "usage" in answer.json():
        builtins.print("rollout", answer.json()["usage"]["completion_tokens"], *spent, flush=True)
    else:
        builtins.print("move", *spent, flush=True)
    return answer

httpx.post = post
"""
"""Stands before the page's loop: it waits for its turn after each update, and tells the tokens of each rollout, its
seconds, and the server's processor seconds; and the seconds of each move of the target. With LENGTH each rollout asks
for so many drafted tokens, also of a line that rests."""


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
    rows: Count = 4
    """Answers that are decoded together: with one a pass of several tokens costs little more than of one, as on a
    GPU."""
    rate: float = 1e-4
    """AdamW's learning rate in the loop: how far an update moves the target."""
    compare: Count = 5
    """Updates after which greedy texts are compared."""
    port: Count = 8100
    """The first arm's port; each arm takes two."""


def bench_rl(plan: RlPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Run the loop once by every arm. Raises what the loop does not survive."""
    loops = [Loop(plan, arm, plan.port + 2 * at) for at, arm in enumerate(plan.arms)]
    with ExitStack() as stack:
        turns = [stack.enter_context(closing(loop.turns())) for loop in loops]
        for _ in range(plan.steps + 1):
            for turn in turns:
                next(turn, None)
    rows, found = Rows(), dict[str, Rows]()
    for loop in loops:
        found[loop.arm] = by_update(loop.own, loop.rewards, loop.rollouts)
        equal = {"texts_equal": sum(loop.equal), "texts": len(loop.equal)}
        wall, busy = (statistics.median(column) for column in zip(*loop.moves, strict=True))
        moves = {"move_seconds": wall, "move_cpu_seconds": busy}
        rows.append({"arm": loop.arm, **summed_up(found[loop.arm]), **rates(loop.rollouts), **moves, **equal})
        note(str(rows[-1]))
        (loop.own / "updates.json").write_text(json.dumps(found[loop.arm]))
    picture = draw(found, plan.out)
    return BenchResult("rl", {"steps": plan.steps}, {"arms": rows}, {"arms": rows}, {"picture": picture})


class Loop:
    """One arm: the server, the trainer where osd follows, and the page's loop."""

    def __init__(self, plan: RlPlan, arm: str, port: int) -> None:
        self.plan, self.arm, self.own, self.port = plan, arm, plan.out / arm.replace(" ", "-"), port
        self.rewards, self.equal, self.rollouts = list[float](), list[bool](), list[list[tuple[float, ...]]]()
        self.moves = list[tuple[float, ...]]()
        self.api = f"http://127.0.0.1:{port}"
        drafts = plan.gamma is not None and arm != "no draft"
        asked = {"LENGTH": str(plan.gamma)} if drafts else {}
        self.env = os.environ | asked | ARMS[arm] | {
            "OSD_STORAGE__DIRECTORY": str(self.own / "data"), "OSD_SERVE__TARGET": str(self.own / "base"),
            "OSD_SERVE__DRAFT": plan.draft, "OSD_SERVE__MAX_BATCH": str(plan.rows), "OSD_SERVE__THREADS": "1",
            "OMP_NUM_THREADS": "1", "OSD_SERVER__PORT": str(port), "OSD_SERVER__ADMIN_PORT": str(port + 1),
        }  # fmt: skip

    def turns(self) -> Generator[None, None, None]:
        """Make an update, and yield while others make theirs."""
        shutil.copytree(self.plan.target, self.own / "base")
        for path in (self.own / "base", *(self.own / "base").iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        with ExitStack() as stack:
            server, log = stack.enter_context(self._process("serve")), self.own / "serve.log"
            wait_for("osd serve", server, log, lambda: READY.search(log.read_text(errors="replace")))
            follows = self.arm in ("following", "every step")
            trainer = stack.enter_context(self._process("trainer")) if follows else None
            loop = self._begin(server.pid)
            stack.callback(loop.kill)
            assert loop.stdin is not None
            for step in range(self.plan.steps):
                with awake(trainer) if trainer else nullcontext():
                    self._read(loop, step)
                yield
                print(file=loop.stdin, flush=True)
            if loop.wait():
                raise RuntimeError(f"the loop ended with {loop.returncode}")

    def _read(self, loop: subprocess.Popen[str], step: int) -> None:
        asked = list[tuple[float, ...]]()
        assert loop.stdout is not None
        for first, *words in map(str.split, loop.stdout):
            if first not in ("rollout", "move"):
                break
            (asked if first == "rollout" else self.moves).append(tuple(map(float, words)))
        else:
            raise RuntimeError(f"the loop ended with {loop.wait()}")
        note(f"{self.arm}: {first} {' '.join(words)}")
        self.rewards.append(float(words[0]))
        self.rollouts.append(asked)
        (self.own / "rollouts.json").write_text(json.dumps([self.rewards, self.rollouts]))
        if (step + 1) % max(1, self.plan.steps // self.plan.compare) == 0:
            self.equal += self._compare(self.own / f"step-{step % 2}")

    def _begin(self, server: int) -> subprocess.Popen[str]:
        (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
        code = TIMED + code.replace("lr=1e-4", f"lr={self.plan.rate}")
        code = code.replace(f":{PORT + 1}", f":{self.port + 1}").replace(f":{PORT}", f":{self.port}")
        words = [sys.executable, "-u", "-c", code, str(self.own / "base"), str(self.plan.steps)]
        env = self.env | {"SERVER": str(server)}
        return subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _process(self, command: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return running([sys.executable, "-P", "-m", "osd.cli.main", command], self.own / f"{command}.log", self.env)

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
        said = httpx.post(f"{self.api}/v1/completions", json=asked, timeout=PATIENCE).json()["choices"][0]["text"]
        if said != alone:
            note(f"{self.arm}, {model.name_or_path}: {said!r} is not {alone!r}")
        return bool(said == alone)


PROMPTS = ("SELECT name FROM users WHERE", "How many orders were made in", "def add(", "The capital of")


def rates(rollouts: Rollouts) -> dict[str, float]:
    """Return tokens a second of the rollouts as their client saw them, and a processor second of the server; of the
    last quarter of the updates too."""
    found = dict[str, float]()
    if not rollouts:
        return found
    for end, some in (("", rollouts), ("_last", rollouts[-max(1, len(rollouts) // 4) :])):
        tokens, wall, busy = (sum(column) for column in zip(*chain.from_iterable(some), strict=True))
        found |= {f"rollout_tokens_per_second{end}": tokens / wall, f"tokens_per_cpu_second{end}": tokens / busy}
    return found


def by_update(own: Path, rewards: Sequence[float], rollouts: Rollouts) -> Rows:
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
                "learned": judged.get("after"),
                "runs": [run.state.value for run in runs],
                "run_seconds": [run.result.get("seconds") for run in runs],
                "divergence": store.targets.divergence(one.digest), "rollouts": rollouts[number : number + 1],
                **rates(rollouts[number : number + 1]),
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

    given = [row["reward"] for row in rows if row["reward"] is not None]
    rewards = given[-max(1, len(given) // 4) :]
    return {
        "tokens_per_second": total("emitted", rows) / total("seconds", rows), "alpha": alpha(rows),
        "alpha_last": alpha(last), "tokens_a_round": total("emitted", rows) / total("rounds", rows),
        "tokens_a_round_last": total("emitted", last) / total("rounds", last),
        "tokens_per_second_last": total("emitted", last) / total("seconds", last),
        "drafted_a_round": total("drafted", rows) / total("rounds", rows),
        "reward_last": statistics.fmean(rewards), "reward_last_spread": statistics.pstdev(rewards),
        "updates": len(rows) - 1,
        "runs": sum(len(row["runs"]) for row in rows),
        "published": sum(run == "published" for row in rows for run in row["runs"]),
        "heirs": sum(len(row["heir"]) for row in rows), "heirs_good": sum(sum(map(bool, row["heir"])) for row in rows),
    }  # fmt: skip


def draw(found: dict[str, Rows], out: Path) -> Path:
    """Draw over the updates, as means of so many of them: expected acceptance on the target that has just come, of what
    was inherited and of number 0; by arm tokens a second of the server's processor, and rewards."""
    figure, panels = make_panels(3, 7.0, 2.3, across=1)
    for colour, (arm, rows) in zip(COLOURS, found.items(), strict=False):
        for name, words, line in (("learned", arm, "-"), ("number_0", f"{arm}: the draft as it began", ":")):
            if any(row[name] is not None for row in rows):
                panels[0].plot(*smoothed(rows, name), label=words, color=colour, linestyle=line)
        panels[1].plot(*smoothed(rows, "tokens_per_cpu_second"), label=arm, color=colour)
        panels[2].plot(*smoothed(rows, "reward"), label=arm, color=colour)
    for axes, words in zip(panels, ("expected acceptance α", "tokens a processor second", "mean reward"), strict=True):
        axes.set_ylabel(words)
        axes.set_xlim(0, max(map(len, found.values())) - 1)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, loc="lower right")
        dress(axes)
    panels[-1].set_xlabel(f"update of the target (means of the last {SMOOTHED})")
    return save(figure, out, "rl")


def smoothed(rows: Rows, name: str) -> tuple[list[int], list[float]]:
    """Return updates, and the mean of a figure over each one and those before it, where it is known."""
    known = [(row["update"], row[name]) for row in rows if row.get(name) is not None]
    means = [
        statistics.fmean(each for _, each in known[max(0, at + 1 - SMOOTHED) : at + 1]) for at in range(len(known))
    ]
    return [update for update, _ in known], means
