"""``python -m benchmarks vllm``: the draft of a running vLLM learns from what vLLM answers.

It begins with random weights, `osd attach` and a worker beside it, and is asked one data set after another. Then a
draft is distilled offline on all answers to the first set and published to the same vLLM, which is asked the set's last
prompts again. A vLLM without speculation answers everything once more: its token ids must be the same.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from benchmarks.vllm import server
from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.bench.harness.plan import Count, PairPlan, SampledPlan, body_of, data_sets, facts_of
from osd.bench.harness.prompts import Tokens
from osd.bench.harness.report import BenchResult, save_json
from osd.bench.harness.watch import Watch
from osd.demo.runner.circle import make_new_folder, own_settings
from osd.demo.runner.measure import WINDOW, moving_share
from osd.demo.runner.process import distil_offline, environment, save_settings, worker_beside
from osd.demo.runner.run import EPOCHS
from osd.models.vocabulary import load_tokenizer
from osd.server.start import choose_pair
from storage.errors import StoreError
from storage.records import DEFAULT_DRAFT, Route, ratio
from storage.sampling import Sampling
from storage.settings import Settings
from storage.store import Store, open_store

LONGEST = 512
"""Tokens of a prompt."""
FEWEST = 10
"""Requests after which the curve begins: an average over one or two says nothing."""
HARVEST_SECONDS = 120.0
"""Until the last answers must be in the store."""


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """What vLLM answered, and how it came to it."""

    tokens: tuple[int, ...]
    accepted: int = 0
    refused: int = 0
    """Rounds that refused a drafted token."""


@dataclass
class LearningRun:
    """What was seen of a run, as far as it came."""

    answers: dict[str, list[TokenAnswer]] = field(default_factory=dict)
    """By data set, in the order in which they were asked."""
    swaps: list[tuple[int, str]] = field(default_factory=list)
    """Answers that were there when vLLM was first seen to draft with a version; the first is the random one."""
    offline: list[TokenAnswer] = field(default_factory=list)
    """Answers to the last prompts of the first set, with the draft that was distilled offline."""
    plain: dict[str, list[TokenAnswer]] = field(default_factory=dict)
    """Without speculation."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class VllmPlan(SampledPlan, PairPlan):
    """A vLLM whose draft has random weights, `osd attach` and a worker beside it: does the draft learn, and are answers
    those of a vLLM without speculation? Sampled answers are not asked for again: they differ.

    Only the form of the draft is taken from --draft. On two cores 600 prompts take ten minutes.

    Example: `python -m benchmarks vllm --vllm .venv-vllm/bin/python --count 400,200 --out /tmp/learns`
    """

    resumes: ClassVar[bool] = False
    vllm: Path
    """Python of an environment that has vLLM and osd's plugin."""
    out: Path
    """A new folder for all that comes of it."""
    count: tuple[Count, ...] = (400, 200)
    """Prompts of each data set, in turn."""
    clients: Count = 4
    """Clients at a time."""
    max_tokens: Annotated[int, Ge(2)] = 64
    """Tokens of an answer at most."""


def bench_vllm(plan: VllmPlan, settings: Settings, watch: Watch) -> BenchResult:
    """Run it, and draw what was seen."""
    pair, out = choose_pair(settings.serve, plan.target, plan.draft), plan.out
    found = data_sets(plan, load_tokenizer(pair.target), max(plan.count), LONGEST)
    sets = {name: texts[:n] for (name, texts), n in zip(found.items(), plan.count, strict=False)}
    make_new_folder(out)
    learned = LearningRun()
    run = VllmRun(plan, settings, Path(pair.target), Path(pair.draft), out.resolve(), sets)
    watch.begin((1 + plan.sampling.greedy) * sum(map(len, sets.values())) + WINDOW)
    with watch.until_ctrl_c():
        run.go(learned, watch)
    figures = figures_of(learned, plan.clients)
    facts = facts_of(
        plan, target=pair.target, draft=f"{pair.draft}, random weights",
        prompts={name: len(texts) for name, texts in sets.items()},
    )  # fmt: skip
    files = {"all numbers": save_json(out / "summary.json", figures | {"settings": facts})}
    if learned.answers:
        files["acceptance"] = draw(learned.answers, [place for place, _ in learned.swaps], figures, out)
    rows = [{"prompts": name} | dict(part) for name, part in figures["sets"].items()]
    return BenchResult("vllm", facts, figures, {"Acceptance": rows}, files, watch.stopped)


@dataclass(frozen=True, slots=True)
class VllmRun:
    """One run."""

    plan: VllmPlan
    settings: Settings
    target: Path
    draft: Path
    out: Path
    sets: Mapping[str, Sequence[Tokens]]
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    def go(self, learned: LearningRun, watch: Watch) -> None:
        """Run all of it; ``learned`` fills as it goes. Raises StoreError for a process that does not start."""
        attach = {"host": "127.0.0.1", "port": 0, "admin_port": "off"}
        own = own_settings(self.settings, self.out / "data", attach=attach)
        config = save_settings(own, self.out / "osd.toml")
        start = server.random_draft(self.draft, self.out / "draft")
        first, prompts = next(iter(self.sets.items()))
        with ExitStack() as serving:
            secret = {"OSD_VLLM_TOKEN": self.token}
            with ExitStack() as learning:
                watch.at("starting osd attach and vLLM")
                at = learning.enter_context(server.attach_process(config, self.out / "attach.log", secret))
                variables = server.plugin_variables(self.out, self.token, at)
                options = (*server.speculation(start), *server.PLUGIN, *server.WORKER)
                up = server.vllm_server(self.plan.vllm, self.target, self.out / "vllm.log", options, variables)
                url = serving.enter_context(up)
                store = learning.enter_context(open_store(own))
                self._attach(config, url, store)
                learning.enter_context(worker_beside(config, self.out / "worker.log"))
                self._learn(url, store, learned, watch)
            watch.at("distilling offline")
            log, place = self.out / "worker.log", self.out / "offline"
            distil_offline(config, log, draft=start, route=first, out=place, epochs=EPOCHS)
            VllmEngine(url, self.token).publish(place, weights_digest(place), "offline")
            learned.offline = self._ask(url, first, prompts[-WINDOW:], watch, "offline: ")
        if not self.plan.sampling.greedy:
            return
        with server.vllm_server(self.plan.vllm, self.target, self.out / "plain.log") as url:
            for name, prompts in self.sets.items():
                learned.plain[name] = self._ask(url, name, prompts, watch, "without speculation: ")

    def _attach(self, config: Path, url: str, store: Store) -> None:
        """Attach the engine; each data set is a route, so that it can be told from the others."""
        words = server.osd_command(config, "engines", "add", url, "--draft", DEFAULT_DRAFT)
        secret = environment() | {"OSD_VLLM_TOKEN": self.token}
        done = subprocess.run(words, env=secret, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StoreError(reason=f"vLLM could not be attached: {done.stderr.strip()}")
        for name in self.sets:
            store.routes.add(Route(name, DEFAULT_DRAFT))

    def _learn(self, url: str, store: Store, learned: LearningRun, watch: Watch) -> None:
        began, done = time.monotonic(), 0

        def look() -> None:
            nonlocal done
            done += 1
            version = store.versions.serving(DEFAULT_DRAFT).get(server.ENGINE)
            if version and (not learned.swaps or learned.swaps[-1][1] != version):
                learned.swaps.append((done, version))

        for name, prompts in self.sets.items():
            learned.answers[name] = self._ask(url, name, prompts, watch, "", look)
        learned.seconds = time.monotonic() - began
        end = time.monotonic() + HARVEST_SECONDS
        while sum(row.requests for row in store.outcomes.acceptance()) < done:
            if time.monotonic() > end:
                raise StoreError(reason=f"the last answers have not come into the store in {HARVEST_SECONDS:.0f} s")
            time.sleep(0.2)

    def _ask(
        self, url: str, name: str, prompts: Sequence[Tokens], watch: Watch, what: str,
        look: Callable[[], object] = lambda: None,
    ) -> list[TokenAnswer]:  # fmt: skip
        watch.at(f"{what}{name}")
        with ThreadPoolExecutor(self.plan.clients) as pool:
            plan = self.plan
            asked = [pool.submit(complete, url, one, plan.max_tokens, plan.sampling, name) for one in prompts]
            try:
                for one in as_completed(asked):
                    one.result()
                    look()
                    watch.did()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return [one.result() for one in asked]


def complete(url: str, prompt: Tokens, max_tokens: int, sampling: Sampling, route: str | None = None) -> TokenAnswer:
    """Ask a vLLM for one answer."""
    body = {"prompt": list(prompt), "max_tokens": max_tokens, "return_token_ids": True} | body_of(sampling)
    headers = {"Content-Type": "application/json"} | ({"X-OSD-Route": route} if route else {})
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as said:
        answer: dict[str, Any] = json.load(said)
    spec = (answer.get("metrics") or {}).get("speculative_decoding") or {}
    steps = list(zip(spec.get("per_step_accepted") or (), spec.get("per_step_drafted") or (), strict=True))
    refused = sum(accepted < drafted for accepted, drafted in steps)
    return TokenAnswer(tuple(answer["choices"][0]["token_ids"]), sum(accepted for accepted, _ in steps), refused)


def alpha(answers: Sequence[TokenAnswer]) -> float | None:
    """Return accepted ÷ (accepted + rejections); None where nothing was drafted."""
    accepted = sum(one.accepted for one in answers)
    return ratio(accepted, accepted + sum(one.refused for one in answers))


def figures_of(learned: LearningRun, clients: int) -> dict[str, Any]:
    """Return acceptance by data set, with random weights, and of the draft distilled offline; what was published, and
    how many answers have the ids of a vLLM without speculation."""
    plain = {name: learned.plain.get(name, ()) if learned.plain else None for name in learned.answers}
    sets = {name: _of_set(answers, plain[name]) for name, answers in learned.answers.items()}
    first, offline = next(iter(sets.values()), {}), alpha(learned.offline)
    served = [one for answers in learned.answers.values() for one in answers]
    tokens = sum(len(one.tokens) for one in served)
    random = served[: learned.swaps[1][0] - clients] if len(learned.swaps) > 1 else served
    return {
        "sets": sets, "alpha_random": alpha(random), "alpha_offline": offline,
        "published": max(0, len(learned.swaps) - 1),
        "online_over_offline": first["alpha_last"] / offline if first and first["alpha_last"] and offline else None,
        "tokens_per_s": ratio(tokens, learned.seconds), "window": WINDOW,
    }  # fmt: skip


def _of_set(answers: Sequence[TokenAnswer], plain: Sequence[TokenAnswer] | None) -> dict[str, Any]:
    same = sum(one.tokens == other.tokens for one, other in zip(answers, plain or (), strict=False))
    ends = {"alpha_first": alpha(answers[:WINDOW]), "alpha_last": alpha(answers[-WINDOW:])}
    return {"requests": len(answers), **ends, "same_ids": None if plain is None else same}


def draw(answers: Mapping[str, Sequence[Any]], swaps: Sequence[int], figures: Mapping[str, Any], out: Path) -> Path:
    """Draw acceptance over the requests, when versions came, and where offline distillation would have brought it."""
    from osd.bench.harness.picture import BLUE, FAINT, INK, ORANGE, dress, make_panels, save

    figure, (axes,) = make_panels(1, width=8.6, height=3.6)
    served = [one for part in answers.values() for one in part]
    curve = moving_share([one.accepted for one in served], [one.accepted + one.refused for one in served])
    axes.plot(range(FEWEST, len(curve) + 1), curve[FEWEST - 1 :], color=BLUE, lw=2.2, label="draft that learns")
    start = 0
    for name, part in answers.items():
        if start:
            axes.axvline(start, color=INK, lw=1.0, alpha=0.6)
        elif figures["alpha_offline"] is not None:
            label, begin = "draft distilled offline", max(0, len(part) - WINDOW)
            axes.hlines(figures["alpha_offline"], begin, len(part), color=ORANGE, lw=2.0, ls="--", label=label)
        axes.text(start + len(part) / 2, 1.015, name, ha="center", va="bottom", fontsize=11, color=INK)
        start += len(part)
    later = swaps[1:]
    label = f"version published ({len(later)})"
    axes.plot(later, [0.012] * len(later), ls="", marker="|", ms=9, mew=1.4, color=INK, label=label)
    axes.set(xlim=(0, max(1, len(served))), ylim=(0, 1), xlabel="requests answered by vLLM")
    axes.set_ylabel(f"acceptance rate α, last {WINDOW} requests")
    axes.grid(axis="y", color=FAINT, lw=0.6, alpha=0.6)
    dress(axes)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return save(figure, out, "acceptance")
