"""``python -m benchmarks attached``: a vLLM that osd attends to ÷ the same vLLM without speculation.

Its draft begins with random weights, and drafts nothing until that pays. Both vLLMs are asked the same prompts in
turns. Who has no turn is stopped (SIGSTOP), and so is the trainer: it trains between turns, and its time is told apart.
`osd attach` goes on, for it belongs to what is measured. At its end stands what drafting gains by the engine's own word
beside what the turns say.
"""

from __future__ import annotations

import math
import secrets
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from annotated_types import Ge

from benchmarks.servers import Up
from benchmarks.vllm import server
from benchmarks.vllm.bench import LONGEST, TokenAnswer, complete
from osd.attached.base import EngineGain
from osd.attached.follower import servable_folder
from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.plugin import osd_vllm
from osd.bench.harness.plan import Count, TargetPlan, all_prompts, data_sets, facts_of
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.turns import shifted
from osd.bench.harness.watch import Watch
from osd.bench.serve.process import awake, running, signal_group
from osd.demo import TARGET
from osd.demo.runner.circle import make_new_folder, own_settings
from osd.demo.runner.feed import TrainerView
from osd.demo.runner.process import command, environment, save_settings
from osd.hotswap.new_draft import new_feature_version
from osd.models.vocabulary import load_tokenizer
from storage.errors import StoreError
from storage.records import DEFAULT_DRAFT
from storage.sampling import GREEDY
from storage.settings import Settings
from storage.store import Store, open_store

ATTACHED, PLAIN, CONTROL = "attached", "without speculation", "control"
LEARN_SECONDS = 900.0
"""Until a training run must have ended, and its version must serve."""


@dataclass(frozen=True, kw_only=True)
class AttachedPlan(TargetPlan):
    """Tokens a second of an attached vLLM ÷ those of the same vLLM without speculation, block by block, while its draft
    learns; whether all answers have the same ids; and what drafting gains by the engine's own word.

    Example: `python -m benchmarks attached --vllm .venv-vllm/bin/python --target ./target --out /tmp/attached`
    """

    resumes: ClassVar[bool] = False
    vllm: Path
    """Python of an environment that has vLLM and osd's plugin."""
    out: Path
    """A new folder for all that comes of it."""
    kind: Literal["eagle", "medusa", "mtp"] = "eagle"
    """The draft, of random weights; mtp: the head in the target's files."""
    answers: Count = 600
    """Answers of each vLLM."""
    distinct: Count | None = None
    """Prompts that are asked again and again, so that a draft soon pays; without it each is asked once."""
    block: Count = 32
    """Answers of a turn."""
    clients: Count = 4
    """Clients at a time."""
    max_tokens: Annotated[int, Ge(2)] = 32
    """Tokens of an answer at most."""
    interval: Annotated[int, Ge(0)] = 96
    """Answers between two training runs; 0: nothing trains."""
    plain_first: bool = False
    """Start the vLLM without speculation first: whoever is started first may be slower."""
    control: bool = False
    """Also a second vLLM without speculation, started last: what two processes of one command differ by."""


class AttachedBlock(NamedTuple):
    """A turn of both."""

    attached: float
    """Tokens a second."""
    plain: float
    same: int
    """Answers with the same ids."""
    accepted: int
    trained: float
    """Seconds of training after it."""
    gain: dict[str, Any]
    """What the engine says of itself at its end."""
    control: float | None = None
    """Tokens a second of the second vLLM without speculation."""


@dataclass
class AttachedRun:
    """Both vLLMs, and what attends to one of them."""

    plan: AttachedPlan
    store: Store
    up: dict[str, Up]
    trainer: subprocess.Popen[bytes] | None
    engine: VllmEngine
    blocks: list[AttachedBlock] = field(default_factory=list)

    def take(self, turn: int, prompts: Sequence[Tokens]) -> None:
        """Ask all the same, then let the trainer learn from it."""
        found: dict[str, tuple[float, list[TokenAnswer]]] = {}
        told: dict[str, Any] = {}
        for arm in shifted(list(self.up), turn):
            with awake(self.up[arm].process):
                found[arm] = self._ask(self.up[arm].address.url, prompts)
                if arm == ATTACHED:
                    told = gain_of(self.engine.gain())
        (rate, own), (plain, others) = found[ATTACHED], found[PLAIN]
        same = sum(a.tokens == b.tokens for a, b in zip(own, others, strict=True))
        accepted, control = sum(one.accepted for one in own), found[CONTROL][0] if CONTROL in found else None
        self.blocks.append(AttachedBlock(rate, plain, same, accepted, self._learn(), told, control))

    def warm(self, prompts: Sequence[Tokens]) -> None:
        """Have both answer what is not measured, for their first passes take longer."""
        for up in self.up.values():
            with awake(up.process):
                self._ask(up.address.url, prompts)

    def _ask(self, url: str, prompts: Sequence[Tokens]) -> tuple[float, list[TokenAnswer]]:
        begun = time.perf_counter()
        with ThreadPoolExecutor(self.plan.clients) as pool:
            answers = list(pool.map(lambda prompt: complete(url, prompt, self.plan.max_tokens, GREEDY), prompts))
        return sum(len(one.tokens) for one in answers) / (time.perf_counter() - begun), answers

    def _learn(self) -> float:
        """Let the trainer run until nothing is left to learn and the newest version serves; return the seconds."""
        if self.trainer is None:
            return 0.0
        begun, view = time.monotonic(), TrainerView(self.store, [DEFAULT_DRAFT])
        with awake(self.trainer), awake(self.up[ATTACHED].process):
            while not self._settled(view):
                if time.monotonic() - begun > LEARN_SECONDS:
                    raise StoreError(reason=f"a training run did not end in {LEARN_SECONDS:.0f} s")
                time.sleep(0.2)
        return time.monotonic() - begun

    def _settled(self, view: TrainerView) -> bool:
        view.look()
        serves = self.store.versions.serving(DEFAULT_DRAFT).get(server.ENGINE)
        return view.waiting < self.plan.interval and not view.busy and serves == view.current.get(DEFAULT_DRAFT)


def gain_of(gain: EngineGain | None) -> dict[str, Any]:
    """Return what an engine says of its gain, in short."""
    if gain is None:
        return {}
    lengths, awake = ({one.rows: getattr(one, name) for one in gain.batches} for name in ("length", "awake"))
    told = {"gain": gain.gain, "error": gain.error, "accepted": gain.accepted}
    return told | {"tokens_per_second": gain.tokens_per_second, "lengths": lengths, "awake": awake}


def bench_attached(plan: AttachedPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Start everything, take turns, and tell. Raises StoreError for a process that does not start."""
    target = str(Path(plan.target or settings.serve.target or TARGET).resolve())
    prompts = prompts_of(plan, target)
    make_new_folder(plan.out)
    turns = [prompts[at : at + plan.block] for at in range(0, len(prompts), plan.block)]
    with ExitStack() as stack:
        watch.at("starting two vLLMs")
        run = stack.enter_context(running_both(plan, settings, target))
        run.warm([prompt[::-1] for prompt in prompts[: 2 * plan.clients]])
        watch.begin(len(turns))
        with watch.until_ctrl_c():
            for turn, some in enumerate(turns):
                watch.at(f"answers {turn * plan.block} to {turn * plan.block + len(some)}")
                run.take(turn, some)
                watch.say(str(run.blocks[-1]))
                watch.did()
        versions = len(run.store.versions.list(DEFAULT_DRAFT)) - 1
    figures = figures_of(run.blocks, plan) | {"versions": versions}
    files = {"all numbers": save_json(plan.out / "summary.json", figures)}
    rows = [dict(row) for row in figures["hundreds"]]
    return BenchResult("attached", facts_of(plan, target=target), figures, {"÷ without": rows}, files, watch.stopped)


def prompts_of(plan: AttachedPlan, target: str) -> list[Tokens]:
    """Return the prompts that are asked, in turn."""
    count = min(plan.distinct or plan.answers, plan.answers)
    prompts = all_prompts(data_sets(plan, load_tokenizer(target), count, LONGEST))[:count]
    return list(islice(cycle(prompts), plan.answers)) if plan.distinct else prompts


@contextmanager
def running_both(plan: AttachedPlan, settings: Settings, target: str) -> Iterator[AttachedRun]:
    """Yield both vLLMs, stopped until their turn, with `osd attach` and a trainer that is stopped too."""
    out, token = plan.out.resolve(), secrets.token_hex(16)
    own = own_settings(
        settings, out / "data", attach={"host": "127.0.0.1", "port": 0, "admin_port": "off"}, serve={"target": target},
        learn={"teacher": "recompute", "interval_requests": max(1, plan.interval)},
    )  # fmt: skip
    config, secret = save_settings(own, out / "osd.toml"), {"OSD_VLLM_TOKEN": token}
    with ExitStack() as stack:
        store = stack.enter_context(open_store(own))
        made = None if plan.kind == "mtp" else new_feature_version(store, DEFAULT_DRAFT, target, plan.kind)
        draft = None if made is None else servable_folder(store, made)
        at = stack.enter_context(server.attach_process(config, out / "attach.log", secret))
        variables = server.plugin_variables(out, token, at) | {
            "OSD_VLLM_GAMMA": str(out / "gamma.json"), "PYTHONPATH": str(Path(osd_vllm.__file__).parents[1]),
        }  # fmt: skip
        options = {
            ATTACHED: (
                *server.speculation(draft, plan.kind), *server.PLUGIN, *server.WORKER,
                "--scheduler-cls", "osd_vllm.scheduler.OsdScheduler",
            ),
            PLAIN: (),
        }  # fmt: skip
        order = list(options)[:: -1 if plan.plain_first else 1] + [CONTROL] * plan.control
        up = {
            arm: stack.enter_context(
                server.vllm_process(plan.vllm, Path(target), out / f"{arm}.log", some, variables if some else {})
            )
            for arm, some in ((arm, options.get(arm, ())) for arm in order)
        }
        engine = VllmEngine(up[ATTACHED].address.url, token)
        add = server.osd_command(config, "engines", "add", engine.url, "--draft", DEFAULT_DRAFT)
        subprocess.run(add, env=environment() | secret, check=True)
        words = command("worker", "--config", config)
        trainer = stack.enter_context(running(words, out / "trainer.log")) if plan.interval else None
        for process in [one.process for one in up.values()] + ([trainer] if trainer else []):
            signal_group(process, signal.SIGSTOP)
        yield AttachedRun(plan, store, up, trainer, engine)


def figures_of(blocks: Sequence[AttachedBlock], plan: AttachedPlan) -> dict[str, Any]:
    """Return the ratios over about a hundred answers each and over all, the ids, and the gain that is told at the end
    beside that of the turns since then."""
    size = max(1, round(100 / plan.block))
    parts = [blocks[at : at + size] for at in range(0, len(blocks), size)]
    whole, control = ratio_of(blocks), ratio_of([one._replace(attached=one.control) for one in blocks if one.control])
    return {
        "ratio": whole[0], "ratio_error": whole[1], "control": control[0], "control_error": control[1],
        "hundreds": [_line(at * size * plan.block, part) for at, part in enumerate(parts)],
        "same_ids": sum(one.same for one in blocks), "answers": min(plan.answers, len(blocks) * plan.block),
        "trained_seconds": sum(one.trained for one in blocks), "blocks": [one._asdict() for one in blocks],
    }  # fmt: skip


def _line(begin: int, part: Sequence[AttachedBlock]) -> dict[str, Any]:
    value, error = ratio_of(part)
    gain = part[-1].gain
    return {
        "from": begin, "ratio": value, "error": error, "same": sum(one.same for one in part),
        "told": gain.get("gain"), "told_error": gain.get("error"), "accepted": gain.get("accepted"),
    }  # fmt: skip


def ratio_of(blocks: Sequence[AttachedBlock]) -> tuple[float | None, float | None]:
    """Return tokens a second ÷ those without, the mean of blocks and its standard error."""
    values = [one.attached / one.plain for one in blocks]
    if len(values) < 2:
        return (values[0] if values else None), None
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
