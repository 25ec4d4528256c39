"""Where the trainer's target reads texts again an engine hands over texts alone: all of them, and it is asked for no
log-probabilities. What is harvested is said when an engine is added."""

from __future__ import annotations

import importlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from osd.attached import proxy as proxy_module
from osd.attached.collector import make_collector
from osd.attached.intake import Intake
from osd.attached.proxy import HarvestProxy
from osd.attached.vllm.plugin.osd_vllm.options import Options
from osd.cli.main import app
from storage.records import RunState, TokenKind
from storage.settings import Settings
from storage.store import Store
from tests.osd.attached.conftest import Attached, Running, ask, attached
from tests.support import fake_vllm
from tests.support.fake_stock_vllm import FakeStock
from tests.support.fake_vllm import TOKEN, FakeEngine, make_app
from tests.support.settings import changed
from tests.support.waiting import until
from trainer.distil.loop import run_once

COUNT = 16
BODIES: tuple[dict[str, Any], ...] = ({}, {"stream": True}, {"max_tokens": 30}, {"n": 2}, {"temperature": 0.7})


@pytest.fixture
def settings(settings: Settings, folders: dict[str, Path]) -> Settings:
    learn = {"learn__teacher": "recompute", "learn__epochs": 4, "learn__learning_rate": 1e-3}
    return changed(settings, serve__target=str(folders["target"]), trainer__device="cpu", **learn)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The bodies that vLLM is sent."""
    found: list[dict[str, Any]] = []
    answer = fake_vllm._answer

    def noted(engine: FakeEngine, body: dict[str, Any], *, chat: bool) -> Any:
        found.append(body)
        return answer(engine, body, chat=chat)

    monkeypatch.setattr(fake_vllm, "_answer", noted)
    return found


@pytest.fixture
def home(
    store: Store, settings: Settings, fake: FakeEngine, folders: dict[str, Path], asked: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Attached]:  # fmt: skip
    """A vLLM that may harvest five positions a second, and its collector."""
    monkeypatch.setenv("OSD_VLLM_POSITIONS", "5")
    with attached(store, settings, fake, folders, monkeypatch) as made:
        made.attend()
        until(lambda: sender_of().texts_alone)
        asked.clear()
        yield made


def sender_of() -> Any:
    """The sender of the fake vLLM's process."""
    return importlib.import_module("osd_vllm.sender").sender()


def asks(engine: Running, prompt: list[int], **body: Any) -> None:
    """Ask as a client does, who reads the answer whole."""
    told = json.dumps({"prompt": prompt, "max_tokens": 12, "temperature": 0, **body}).encode()
    request = urllib.request.Request(engine.url + "/v1/completions", told, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        assert b'"logprobs":null' in answer.read().replace(b" ", b"")


def names_logprobs(body: dict[str, Any]) -> bool:
    return any(body.get(name) is not None for name in ("logprobs", "top_logprobs"))


def test_every_answer_arrives_whole_and_vllm_is_asked_for_no_log_probabilities(
    home: Attached, fake: FakeEngine, asked: list[dict[str, Any]], settings: Settings
) -> None:
    prompts = [[7 + n, 30, 41] for n in range(COUNT)]
    for n, prompt in enumerate(prompts):
        asks(home.vllm, prompt, **BODIES[n % len(BODIES)])
    bodies = {tuple(body["prompt"]): body for body in asked}
    assert len(asked) == COUNT and not any(map(names_logprobs, asked))
    outputs = sum(body.get("n") or 1 for body in asked)
    until(lambda: sum(one.requests for one in home.store.samples.stats()) == outputs)
    kept = home.store.samples.read(home.store.samples.recent(limit=100))
    assert len(kept) == outputs > COUNT
    for one in kept:
        prompt = tuple(one.tokens[:3].tolist())
        tokens, _, accepted, _ = fake.decode(list(prompt), bodies[prompt]["max_tokens"])
        assert (
            one.k == 0 and one.tokens[3:].tolist() == tokens and one.positions.tolist() == [*range(3, 3 + len(tokens))]
        )
        if "n" not in bodies[prompt]:  # of several answers vLLM says no steps
            assert one.drafted[one.kinds == TokenKind.REJECTED].tolist() == fake.refused[prompt]
            assert (one.kinds == TokenKind.ACCEPTED).sum() == sum(accepted)
    assert sender_of().counts["taken"] == COUNT and not sender_of().counts["counted"]
    unread = home.intake.counts.registry.get_sample_value("osd_harvest_unread_outputs_total", {"engine": "gpu-1"})
    assert unread is None
    run = run_once(home.store, settings, "sql", "a trainer")
    assert run is not None and run.state in (RunState.PUBLISHED, RunState.REJECTED), run
    assert (run.result["claimed"], run.result["unusable"]) == (outputs, 0)
    assert run.result["loss_last"] < run.result["loss_first"]


def test_a_client_that_asks_for_log_probabilities_gets_its_own_and_its_text_is_kept(home: Attached) -> None:
    ask(home.vllm, [9, 9, 9], logprobs=3)
    until(home.request_ids)  # outcomes come after samples
    (one,) = home.store.samples.read(home.request_ids())
    assert one.k == 0 and len(one) == 12 and not sender_of().counts["counted"]


def test_a_collector_with_other_settings_is_heeded_without_a_restart(
    home: Attached, asked: list[dict[str, Any]]
) -> None:
    home.intake.texts_alone = False
    until(lambda: not sender_of().texts_alone)
    ask(home.vllm, [5, 6])
    assert asked[-1]["logprobs"] == 20
    until(home.request_ids)  # outcomes come after samples
    assert home.store.samples.read(home.request_ids())[0].k == 20


@pytest.mark.parametrize("teacher", ["recompute", "recorded"])
def test_the_proxy_is_told_too(
    store: Store, settings: Settings, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, teacher: str
) -> None:
    monkeypatch.setattr(proxy_module, "POLL_SECONDS", 0.05)
    stock = FakeStock(fake)
    vllm = Running(stock.app())
    intake = Intake(store, changed(settings, learn__teacher=teacher), {})
    collector = Running(make_collector(intake, TOKEN, 1 << 20))
    before = HarvestProxy(vllm.url, Options(TOKEN, "gpu-1", collector.url, (), 20, 64, None, 0, "", False, None))
    proxy = Running(before)
    until(lambda: before.sender.texts_alone is (teacher == "recompute"))
    ask(proxy, [5, 6])
    assert names_logprobs(stock.asked[-1]) is (teacher == "recorded")
    for running in (proxy, collector, vllm):
        running.stop()


@pytest.mark.parametrize(
    ("method", "teacher", "says"),
    [
        ("draft_model", "recorded", ["20 likeliest tokens", "1.5 %", "10 %"]),
        ("draft_model", "recompute", ["texts alone are harvested, of all answers", "next to no cost"]),
        ("eagle3", "recompute", ["hidden states", "does not hand over", "texts alone", "target reads them again"]),
        ("medusa", "recorded", ["hidden states", "With learn.teacher = recompute", "nothing is learned until then"]),
    ],
)
def test_what_is_harvested_and_costs_is_said_when_an_engine_is_added(
    fake: FakeEngine, tmp_path: Path, method: str, teacher: str, says: list[str]
) -> None:
    fake.vllm_config.speculative_config.method = method
    vllm = Running(make_app(fake))
    surroundings = {"OSD_STORAGE__DIRECTORY": str(tmp_path / "own"), "OSD_LEARN__TEACHER": teacher}
    done = CliRunner().invoke(app, ["engines", "add", vllm.url, "--draft", "sql"], env=surroundings)
    vllm.stop()
    said = " ".join(done.stderr.split())
    assert done.exit_code == 0 and all(part in said for part in says), said


@pytest.mark.parametrize("given", [True, False])
def test_a_vllm_without_speculation_needs_a_draft_that_learns(
    fake: FakeEngine, folders: dict[str, Path], tmp_path: Path, given: bool
) -> None:
    fake.restart(None)
    vllm = Running(make_app(fake))
    options = ["--draft-folder", str(folders["draft"])] if given else []
    surroundings = {"OSD_STORAGE__DIRECTORY": str(tmp_path / "own")}
    done = CliRunner().invoke(app, ["engines", "add", vllm.url, "--draft", "sql", *options], env=surroundings)
    vllm.stop()
    said = " ".join(done.stderr.split())
    tells = "the draft learns beside it" if given else "no draft sql learns for its target yet; give one with --draft"
    assert done.exit_code == (0 if given else 2) and tells in said, said
