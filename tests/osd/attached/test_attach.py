"""The whole way over real HTTP: a fake vLLM with the real plugin, its replica, and what arrives in the store."""

from __future__ import annotations

import importlib
import json
import os
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from safetensors.torch import load_file, save_file

from osd.attached.attach import Attachment
from osd.attached.base import EngineRefused, EngineUnreachable, EngineUnsuited
from osd.attached.collector import make_collector
from osd.attached.intake import Intake, LateScoring
from osd.attached.passes import Scorer
from osd.attached.samples import HarvestedFrom
from osd.attached.trials import selftest
from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.plugin.osd_vllm.digests import weights_digest
from osd.models.model_digest import model_digest
from osd.models.pair import load_model
from storage.records import Route, TokenKind, VersionState
from storage.settings import Settings
from storage.store import Store
from tests.osd.attached.test_harvest import answer_of
from tests.support.fake_vllm import TOKEN, FakeEngine, make_app
from tests.support.settings import settings_of
from tests.support.waiting import until


class Running:
    """An ASGI application behind a port."""

    def __init__(self, app: Any, port: int = 0) -> None:
        self.server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        until(lambda: self.server.started)
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(
        storage__directory=str(tmp_path / "data"), storage__holdout=0.0, attach__poll_seconds=0.05,
        serve__swap_poll_seconds=0.05,
    )  # fmt: skip


@pytest.fixture
def collected(store: Store, settings: Settings) -> Iterator[tuple[Attachment, Running]]:
    """A running collector, and what it attends to."""
    attachment = Attachment(store, settings, lambda engine: VllmEngine(engine.url, TOKEN))
    collector = Running(make_collector(Intake(store, settings, attachment.followers), TOKEN, 1 << 20))
    yield attachment, collector
    attachment.close()
    collector.stop()


@pytest.fixture
def engine(
    fake: FakeEngine, collected: tuple[Attachment, Running], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Running]:
    """A running vLLM that hands over to the collector."""
    monkeypatch.setenv("OSD_VLLM_COLLECTOR", collected[1].url)
    monkeypatch.setattr(importlib.import_module("osd_vllm.sender"), "WAIT", 0.05)
    running = Running(make_app(fake))
    yield running
    running.stop()


def attach(store: Store, engine: Running, folders: dict[str, Path]) -> str:
    """Enter the draft, its route and the engine; return number 0."""
    facts = VllmEngine(engine.url, TOKEN).probe()
    assert facts.digest == model_digest(str(folders["target"]))
    root = store.versions.register_root("sql", folders["draft"], target=facts.digest)
    store.routes.add(Route("sql", "sql"))
    store.engines.add(facts.name, engine.url, "sql", {})
    return root.id


def ask(engine: Running, prompt: list[int], key: str = "", **body: Any) -> list[int]:
    asked = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "return_token_ids": True, **body}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(engine.url + "/v1/completions", json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        ids: list[int] = json.loads(answer.read())["choices"][0]["token_ids"]
        return ids


def better(store: Store, folders: dict[str, Path], parent: str) -> str:
    """A newer version, current at once."""
    made = store.versions.stage("sql", parent, "full", lambda folder: _copy(folders["better"], folder))
    store.versions.promote(made.id)
    return made.id


def _copy(source: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())


def test_what_is_answered_arrives_once_with_what_was_refused(
    store: Store, fake: FakeEngine, engine: Running, collected: tuple[Attachment, Running], folders: dict[str, Path]
) -> None:
    root = attach(store, engine, folders)
    collected[0].start()
    until(lambda: "gpu-1" in collected[0].followers)
    prompts = [[7 + n, 30, 41] for n in range(6)]
    answers = [ask(engine, prompt) for prompt in prompts]
    until(lambda: len(ids_of(store)) == 6)  # outcomes come after samples
    found = {tuple(one.tokens[: one.prompt_len].tolist()): one for one in store.samples.read(ids_of(store))}
    for prompt, answer in zip(prompts, answers, strict=True):
        samples = found[tuple(prompt)]
        assert samples.tokens[3:].tolist() == answer and samples.draft_version == root and samples.route == "sql"
        assert samples.drafted[samples.kinds == TokenKind.REJECTED].tolist() == fake.refused[tuple(prompt)]
    until(lambda: store.outcomes.acceptance() and store.outcomes.acceptance()[0].requests == 6)
    assert store.outcomes.acceptance(by=["worker"])[0].by == {"worker": "gpu-1"}


def test_what_comes_without_distributions_is_read_by_the_target(
    store: Store, settings: Settings, fake: FakeEngine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the engine had given them: the target's own distributions, and what was refused."""
    attachment = Attachment(store, settings, lambda engine: VllmEngine(engine.url, TOKEN))
    target = load_model(str(folders["target"]), torch.device("cpu"), "float32")
    intake = Intake(store, settings, attachment.followers, scorer=Scorer(target, 6, 256))
    collector = Running(make_collector(intake, TOKEN, 1 << 20))
    monkeypatch.setenv("OSD_VLLM_COLLECTOR", collector.url)
    monkeypatch.setenv("OSD_VLLM_TOP_K", "0")
    monkeypatch.setattr(importlib.import_module("osd_vllm.sender"), "WAIT", 0.05)
    engine = Running(make_app(fake))
    try:
        root = attach(store, engine, folders)
        attachment.start()
        until(lambda: "gpu-1" in attachment.followers)
        prompts = [[7 + n, 30, 41] for n in range(4)]
        answers = {tuple(prompt): ask(engine, prompt) for prompt in prompts}
        until(lambda: sum(one.requests for one in store.samples.stats()) == 4)
        for one in store.samples.read(ids_of(store)):
            prompt = tuple(one.tokens[:3].tolist())
            assert one.tokens[3:].tolist() == answers[prompt] and one.draft_version == root
            assert one.drafted[one.kinds == TokenKind.REJECTED].tolist() == fake.refused[prompt]
            logits = target.module(torch.tensor(one.tokens[None].astype("int64"))).logits[0, 2:-1]
            values, ids = logits.log_softmax(-1).topk(6)
            assert (one.topk_ids == ids.numpy()).all()
            assert torch.allclose(torch.tensor(one.topk_logprobs).float(), values, atol=2e-3)
        assert intake.counts.registry.get_sample_value("osd_harvest_unread_outputs_total", {"engine": "gpu-1"}) is None
    finally:
        intake.close()
        attachment.close()
        engine.stop()
        collector.stop()


def test_a_text_that_the_target_cannot_read_is_counted_and_left(
    store: Store, settings: Settings, fake: FakeEngine, folders: dict[str, Path]
) -> None:
    target = load_model(str(folders["target"]), torch.device("cpu"), "float32")
    made: list[Any] = []
    late = LateScoring(store, Scorer(target, 6, 8), 6, "cpu", lambda *one: made.append(one))
    answer, origin = answer_of(fake, [5, 20, 33], 24), HarvestedFrom("r", "t", "v", True, True, str(target.digest))
    assert not late.put("gpu-1", answer, 0, origin), "27 tokens, of which 8 can be read"
    assert not late.put("gpu-1", answer_of(fake, [5, 20, 33], 4), 0, replace(origin, target="another"))
    assert late.put("gpu-1", answer_of(fake, [5, 20, 33], 4), 0, origin)
    until(lambda: made)
    late.close()
    assert len(made) == 1 and made[0][0] == "gpu-1"


def ids_of(store: Store) -> list[str]:
    return [one.request_id for one in store.outcomes.recent()]


def test_a_newer_version_is_published_and_named_in_the_ledger(
    store: Store, fake: FakeEngine, engine: Running, collected: tuple[Attachment, Running], folders: dict[str, Path]
) -> None:
    root = attach(store, engine, folders)
    collected[0].start()
    until(lambda: store.versions.serving("sql") == {"gpu-1": root})
    before = ask(engine, [9, 9, 9])
    newer = better(store, folders, root)
    until(lambda: store.versions.serving("sql") == {"gpu-1": newer})
    assert VllmEngine(engine.url, TOKEN).served()[0].sha256 == weights_digest(folders["better"])
    assert fake.weight_version == newer and ask(engine, [9, 9, 9]) == before
    assert [worker.id for worker in store.workers.list()] == ["gpu-1"]


def test_an_engine_that_was_started_again_gets_the_current_version_anew(
    store: Store, fake: FakeEngine, engine: Running, collected: tuple[Attachment, Running], folders: dict[str, Path]
) -> None:
    newer = better(store, folders, attach(store, engine, folders))
    collected[0].start()
    until(lambda: fake.weight_version == newer)
    fake.weight_version = ""
    fake.restart(folders["draft"])
    until(lambda: fake.weight_version == newer)
    assert VllmEngine(engine.url, TOKEN).served()[0].version == newer


def test_what_an_engine_refuses_leaves_it_as_it_was(
    store: Store, engine: Running, folders: dict[str, Path], tmp_path: Path
) -> None:
    client = VllmEngine(engine.url, TOKEN)
    before = client.served()
    weights = load_file(folders["better"] / "model.safetensors")
    name = next(iter(weights))
    broken: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
        "missing": lambda tensors: tensors.pop(name),
        "not finite": lambda tensors: tensors[name].view(-1)[0].fill_(float("nan")),
        "another shape": lambda tensors: tensors.update({name: tensors[name][:1].clone()}),
        "an unknown one": lambda tensors: tensors.update(more=torch.zeros(2)),
    }
    for what, change in broken.items():
        folder = tmp_path / what
        _copy(folders["better"], folder)
        tensors = {key: value.clone() for key, value in weights.items()}
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(EngineRefused, match=r".") as refused:
            client.publish(folder, weights_digest(folder), "v")
        assert name in str(refused.value) or "more" in str(refused.value)
    with pytest.raises(EngineUnsuited, match="digest"):
        client.publish(folders["better"], "0" * 64, "v")
    with pytest.raises(EngineUnsuited, match="OSD_VLLM_FOLDERS"):
        client.publish(Path("/etc"), "0" * 64, "v")
    with pytest.raises(EngineUnsuited, match="sees no folder"):
        client.publish(tmp_path / "nowhere", "0" * 64, "v")
    assert client.served() == before


def test_a_wrong_token_is_told_from_an_engine_without_the_plugin(engine: Running) -> None:
    with pytest.raises(EngineUnsuited, match="OSD_VLLM_TOKEN"):
        VllmEngine(engine.url, "another token").probe()
    from fastapi import FastAPI

    bare = Running(FastAPI())
    with pytest.raises(EngineUnsuited, match="osd-llm-vllm"):
        VllmEngine(bare.url, TOKEN).probe()
    bare.stop()
    with pytest.raises(EngineUnreachable, match="does not answer"):
        VllmEngine(bare.url, TOKEN).probe()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda config: setattr(config, "speculative_config", None), "--speculative-config"),
        (lambda config: setattr(config.speculative_config, "method", "ngram"), "ngram"),
        (lambda config: setattr(config.model_config, "logprobs_mode", "processed_logprobs"), "raw_logprobs"),
    ],
)
def test_an_unsuited_engine_is_refused_with_what_to_do(
    fake: FakeEngine, engine: Running, change: Callable[[Any], None], says: str
) -> None:
    change(fake.vllm_config)
    with pytest.raises(EngineUnsuited, match=says):
        VllmEngine(engine.url, TOKEN).probe()


def post(url: str, data: bytes, token: str = TOKEN) -> int:
    request = urllib.request.Request(url + "/v1/osd/harvest", data, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_collector_takes_batches_once_and_refuses_what_is_none(
    store: Store, engine: Running, collected: tuple[Attachment, Running], folders: dict[str, Path]
) -> None:
    import gzip

    attach(store, engine, folders)
    collected[0].start()
    until(lambda: "gpu-1" in collected[0].followers)
    url, digest = collected[1].url, weights_digest(folders["draft"])
    choice = {"tokens": [5, 6], "top_ids": [[5], [6]], "top_logprobs": [[-0.1], [-0.1]], "finish_reason": "stop"}
    answer = {
        "id": os.urandom(16).hex(), "prompt": [3, 4], "choices": [choice], "accepted": [0], "drafted": [3],
        "version": digest, "version_after": digest, "temperature": 0, "began": 1.0, "ended": 2.0,
    }  # fmt: skip
    batch = {"batch": "b" * 32, "engine": "gpu-1", "answers": [answer]}
    packed = gzip.compress(json.dumps(batch).encode())
    assert [post(url, packed) for _ in range(3)] == [200, 200, 200]
    assert store.outcomes.acceptance()[0].requests == 1 and store.samples.stats()[0].requests == 1
    assert post(url, packed, "wrong token") == 401
    assert post(url, b"no gzip") == 422
    assert post(url, gzip.compress(json.dumps({**batch, "answers": [{**answer, "accepted": [4]}]}).encode())) == 422
    assert post(url, gzip.compress(b"0" * (2 << 20))) == 413
    assert post(url, gzip.compress(json.dumps({**batch, "engine": "somebody"}).encode())) == 503
    assert (
        post(
            url,
            gzip.compress(
                json.dumps({**batch, "batch": "c" * 32, "answers": [{**answer, "version_after": "f" * 64}]}).encode()
            ),
        )
        == 200
    )
    assert store.outcomes.acceptance()[0].requests == 1
    assert store.outcomes.acceptance(by=["engine"])[0].by == {"engine": "gpu-1"}
    with urllib.request.urlopen(url + "/metrics") as said:
        metrics = said.read().decode()
    for name, value in {"batches": 2, "answers": 1, "unknown_answers": 1, "positions": 2}.items():
        assert f'osd_harvest_{name}_total{{engine="gpu-1"}} {value:.1f}' in metrics


def test_one_process_attends_to_an_engine_at_a_time(
    store: Store, settings: Settings, engine: Running, collected: tuple[Attachment, Running], folders: dict[str, Path]
) -> None:
    attach(store, engine, folders)
    first = collected[0]
    first.look_for_engines()
    second = Attachment(store, settings, lambda engine: VllmEngine(engine.url, TOKEN))
    second.holder = "another process"
    second.look_for_engines()
    assert "gpu-1" in first.followers and not second.followers
    first.close()
    second.look_for_engines()
    assert "gpu-1" in second.followers
    store.engines.remove("gpu-1")
    second.look_for_engines()
    assert not second.followers and not store.workers.list()
    second.close()


def test_a_selftest_changes_nothing(engine: Running, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osd.attached.vllm.engine.VllmEngine.counters", lambda self: {})
    found = selftest(VllmEngine(engine.url, TOKEN))
    assert found.same_ids and found.tokens > 0


def test_a_version_is_quarantined_for_its_own_faults_alone(
    store: Store,
    engine: Running,
    collected: tuple[Attachment, Running],
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = attach(store, engine, folders)
    collected[0].start()
    until(lambda: store.versions.serving("sql") == {"gpu-1": root})
    options = importlib.import_module("osd_vllm.options").options()
    monkeypatch.setattr(importlib.import_module("osd_vllm.routes"), "options", lambda: replace(options, folders=()))
    newer = better(store, folders, root)
    until(lambda: "OSD_VLLM_FOLDERS" in (store.workers.list()[0].trouble or ""))
    assert store.versions.get(newer).state is VersionState.READY
    monkeypatch.undo()
    until(lambda: store.versions.serving("sql") == {"gpu-1": newer})
    unsound = store.versions.stage("sql", newer, "full", lambda folder: _damaged(folders["better"], folder))
    store.versions.promote(unsound.id)
    until(lambda: store.versions.get(unsound.id).state is VersionState.QUARANTINED)
    until(lambda: store.versions.current("sql").id == newer)
    assert VllmEngine(engine.url, TOKEN).served()[0].version == newer


def _damaged(source: Path, folder: Path) -> None:
    _copy(source, folder)
    tensors = {name: tensor.clone() for name, tensor in load_file(source / "model.safetensors").items()}
    next(iter(tensors.values())).view(-1)[0] = float("inf")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
