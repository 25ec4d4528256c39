"""The whole way over real HTTP: a fake vLLM with the real plugin, what follows it, and what arrives in the store."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from osd.attached.attach import Attachment
from osd.attached.intake import LateScoring
from osd.attached.overview import engine_rows
from osd.attached.passes import Scorer
from osd.attached.samples import HarvestedFrom
from osd.attached.trials import selftest
from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.attached.vllm.stock import StockVllm
from osd.cli.engines import register_draft
from osd.models.pair import load_model
from storage.errors import BadInput, HubRefused
from storage.records import TokenKind, VersionState
from storage.settings import Settings
from storage.sql.tables import VersionRow
from storage.store import Store
from tests.architecture.test_imports import ABSENT, run_without
from tests.osd.attached.conftest import Attached, ask, attached, better, copy
from tests.osd.attached.test_samples import answer_of
from tests.support.fake_hub import fake_hub, use_hub
from tests.support.fake_vllm import TOKEN, FakeEngine
from tests.support.waiting import until


def test_what_is_answered_arrives_once_with_what_was_refused(home: Attached, fake: FakeEngine) -> None:
    home.attend()
    store, prompts = home.store, [[7 + n, 30, 41] for n in range(6)]
    answers = [ask(home.vllm, prompt) for prompt in prompts]
    until(lambda: len(home.request_ids()) == 6)  # outcomes come after samples
    found = {tuple(one.tokens[: one.prompt_len].tolist()): one for one in store.samples.read(home.request_ids())}
    for prompt, answer in zip(prompts, answers, strict=True):
        samples = found[tuple(prompt)]
        assert samples.tokens[3:].tolist() == answer and samples.draft_version == home.root and samples.route == "sql"
        assert samples.drafted[samples.kinds == TokenKind.REJECTED].tolist() == fake.refused[tuple(prompt)]
    until(lambda: store.outcomes.acceptance() and store.outcomes.acceptance()[0].requests == 6)
    assert store.outcomes.acceptance(by=["worker"])[0].by == {"worker": "gpu-1"}


def test_what_comes_without_distributions_is_read_by_the_target(
    store: Store, settings: Settings, fake: FakeEngine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the engine had given them: the target's own distributions, and what was refused."""
    monkeypatch.setenv("OSD_VLLM_TOP_K", "0")
    target = load_model(str(folders["target"]), torch.device("cpu"), "float32")
    with attached(store, settings, fake, folders, monkeypatch, Scorer(target, 6, 256)) as home:
        home.attend()
        prompts = [[7 + n, 30, 41] for n in range(4)]
        answers = {tuple(prompt): ask(home.vllm, prompt) for prompt in prompts}
        until(lambda: sum(one.requests for one in store.samples.stats()) == 4)
        for one in store.samples.read(home.request_ids()):
            prompt = tuple(one.tokens[:3].tolist())
            assert one.tokens[3:].tolist() == answers[prompt] and one.draft_version == home.root
            assert one.drafted[one.kinds == TokenKind.REJECTED].tolist() == fake.refused[prompt]
            logits = target.module(torch.tensor(one.tokens[None].astype("int64"))).logits[0, 2:-1]
            values, ids = logits.log_softmax(-1).topk(6)
            assert (one.topk_ids == ids.numpy()).all()
            assert torch.allclose(torch.tensor(one.topk_logprobs).float(), values, atol=2e-3)
        unread = home.intake.counts.registry.get_sample_value("osd_harvest_unread_outputs_total", {"engine": "gpu-1"})
        assert unread is None


def test_a_text_that_the_target_cannot_read_is_counted_and_left(
    store: Store, fake: FakeEngine, folders: dict[str, Path]
) -> None:
    target = load_model(str(folders["target"]), torch.device("cpu"), "float32")
    made: list[Any] = []
    late = LateScoring(store, Scorer(target, 6, 8), 6, "cpu", lambda *one: made.append(one))
    answer, origin = answer_of(fake, [5, 20, 33], 24), HarvestedFrom("r", "t", "v", True, True, str(target.digest))
    assert not late.read_later("gpu-1", answer, 0, origin), "27 tokens, of which 8 can be read"
    assert not late.read_later("gpu-1", answer_of(fake, [5, 20, 33], 4), 0, replace(origin, target="another"))
    adapted = answer_of(fake, [5, 20, 33], 4).model_copy(update={"adapter": "poet"})
    assert not late.read_later("gpu-1", adapted, 0, origin), "the target without its adapter says other things"
    assert late.read_later("gpu-1", answer_of(fake, [5, 20, 33], 4), 0, origin)
    until(lambda: made)
    late.close()
    assert len(made) == 1 and made[0][0] == "gpu-1"


def test_a_newer_version_is_published_named_in_the_ledger_and_published_anew_after_a_restart(
    home: Attached, fake: FakeEngine
) -> None:
    home.attend()
    fake.weight_version = "the trainer's"
    before = ask(home.vllm, [9, 9, 9])
    newer = better(home.store, home.folders, home.root)
    until(lambda: home.store.versions.serving("sql") == {"gpu-1": newer})
    assert home.client.served()[0].sha256 == weights_digest(home.folders["better"])
    assert fake.weight_version == "the trainer's" and ask(home.vllm, [9, 9, 9]) == before
    assert [worker.id for worker in home.store.servers.list()] == ["gpu-1"]
    fake.restart(home.folders["draft"])
    until(lambda: home.client.served()[0].version == newer)


def test_a_version_whose_weights_were_deleted_is_not_read_to_tell_what_serves(home: Attached, fake: FakeEngine) -> None:
    home.attend()
    ended = home.store.versions.stage("sql", home.root, "full", lambda folder: copy(home.folders["target"], folder))
    home.store.versions.reject(ended.id, {})
    newer = better(home.store, home.folders, home.root)
    until(lambda: home.store.versions.serving("sql") == {"gpu-1": newer})
    with home.store.db.session() as session:
        session.get_one(VersionRow, ended.id).deleted_at = 1.0
        session.get_one(VersionRow, ended.id).state = VersionState.RETIRED.value
    fake.restart(home.folders["draft"])
    until(lambda: home.client.served()[0].version == newer)
    follower = next(iter(home.attachment.followers.values()))
    root = follower.version_of(weights_digest(home.folders["draft"]))
    assert root is not None and root.id == home.root


def test_a_draft_learns_beside_a_vllm_without_speculation_and_is_published_once_it_was_started_with_one(
    home: Attached, fake: FakeEngine
) -> None:
    fake.restart(None)
    home.enter()
    home.attachment.start()
    answer = ask(home.vllm, [7, 30, 41])
    until(home.request_ids)
    (kept,) = home.store.samples.read(home.request_ids())
    assert kept.draft_version == home.root and kept.tokens[3:].tolist() == answer and kept.k == 20
    assert (kept.kinds == TokenKind.UNDRAFTED).all() and home.store.outcomes.recent()[0].drafted == 0
    newer = better(home.store, home.folders, home.root)
    ask(home.vllm, [8, 30, 41])
    until(lambda: home.store.outcomes.recent()[0].draft_version == newer)  # the version that it would draft with
    assert not home.store.versions.serving("sql") and not home.trouble() and engine_rows(home.store)[0]["up"]
    fake.restart(home.folders["draft"])
    until(lambda: home.store.versions.serving("sql") == {"gpu-1": newer})
    assert home.store.engines.get("gpu-1").facts["method"] == "draft_model" and ask(home.vllm, [7, 30, 41]) == answer


def post(url: str, data: bytes, token: str = TOKEN) -> int:
    request = urllib.request.Request(url + "/v1/osd/harvest", data, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_collector_takes_batches_once_and_refuses_what_is_none(home: Attached) -> None:
    home.attend()
    store, url, digest = home.store, home.collector.url, weights_digest(home.folders["draft"])
    state = home.client.served()[0].target
    choice = {"tokens": [5, 6], "top_ids": [[5], [6]], "top_logprobs": [[-0.1], [-0.1]], "finish_reason": "stop"}
    answer = {
        "id": os.urandom(16).hex(), "prompt": [3, 4], "choices": [choice], "accepted": [0], "drafted": [3],
        "version": digest, "version_after": digest, "temperature": 0, "began": 1.0, "ended": 2.0,
        "target": state, "target_after": state,
    }  # fmt: skip

    def packed(answers: Any = answer, **changes: Any) -> bytes:
        batch = {"batch": "b" * 32, "engine": "gpu-1", "answers": [answers], **changes}
        return gzip.compress(json.dumps(batch).encode())

    assert [post(url, packed()) for _ in range(3)] == [200, 200, 200]
    assert store.outcomes.acceptance()[0].requests == 1 and store.samples.stats()[0].requests == 1
    assert post(url, packed(), "wrong token") == 401
    assert post(url, b"no gzip") == 422
    assert post(url, packed({**answer, "accepted": [4]}, batch="d" * 32)) == 200, "a bad answer costs itself alone"
    assert post(url, gzip.compress(b"0" * (2 << 20))) == 413
    assert post(url, packed(engine="somebody")) == 503
    assert post(url, packed({**answer, "version_after": "f" * 64}, batch="c" * 32)) == 200
    assert store.outcomes.acceptance()[0].requests == 1
    assert store.outcomes.acceptance(by=["engine"])[0].by == {"engine": "gpu-1"}
    with urllib.request.urlopen(url + "/metrics") as said:
        metrics = said.read().decode()
    for name, value in {"batches": 3, "answers": 1, "bad_answers": 1, "unknown_answers": 1, "positions": 2}.items():
        assert f'osd_harvest_{name}_total{{engine="gpu-1"}} {value:.1f}' in metrics


def test_one_process_attends_to_an_engine_at_a_time(home: Attached, settings: Settings) -> None:
    home.enter()
    first = home.attachment
    first.look_for_engines()
    second = Attachment(home.store, settings, lambda settings, url, facts: VllmEngine(url, TOKEN))
    second.holder = "another process"
    second.look_for_engines()
    assert "gpu-1" in first.followers and not second.followers
    first.close()
    second.look_for_engines()
    assert "gpu-1" in second.followers
    home.store.engines.remove("gpu-1")
    second.look_for_engines()
    assert not second.followers and not home.store.servers.list()
    second.close()


def test_a_process_may_attend_to_one_engine_alone(home: Attached, settings: Settings) -> None:
    home.enter()
    for name, attended in (("gpu-2", set[str]()), ("gpu-1", {"gpu-1"})):
        alone = settings.model_copy(update={"attach": settings.attach.model_copy(update={"engine": name})})
        attachment = Attachment(home.store, alone, lambda settings, url, facts: VllmEngine(url, TOKEN))
        attachment.look_for_engines()
        assert set(attachment.followers) == attended
        attachment.close()


def test_a_draft_by_a_hub_name_is_fetched_and_becomes_number_0(
    home: Attached, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with fake_hub() as hub:
        use_hub(hub, tmp_path / "hub", monkeypatch)
        hub.repos["me/draft"] = {path.name: path.read_bytes() for path in home.folders["draft"].iterdir()}
        for name, refused in (("me/nothing", HubRefused), ("/no/such/folder", BadInput)):
            with pytest.raises(refused):
                register_draft(home.store, "sql", replace(home.client.probe(), draft=name))
        register_draft(home.store, "sql", replace(home.client.probe(), draft="me/draft"))
    assert home.store.versions.current("sql").number == 0 and home.store.routes.list()[-1].name == "sql"


def test_a_selftest_changes_nothing(home: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osd.attached.vllm.engine.VllmEngine.counters", lambda self: {})
    found = selftest(home.client)
    assert found.same_ids and found.tokens > 0


def test_a_version_is_quarantined_for_its_own_faults_alone(home: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    home.attend()
    versions = home.store.versions
    options = importlib.import_module("osd_vllm.options").options()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("osd_vllm.routes"), "options", lambda: replace(options, folders=()))
        newer = better(home.store, home.folders, home.root)
        until(lambda: "OSD_VLLM_FOLDERS" in home.trouble())
        assert versions.get(newer).state is VersionState.READY
    until(lambda: versions.serving("sql") == {"gpu-1": newer})
    unsound = versions.stage("sql", newer, "full", lambda folder: _damaged(home.folders["better"], folder))
    versions.promote(unsound.id)
    until(lambda: versions.get(unsound.id).state is VersionState.QUARANTINED)
    until(lambda: versions.current("sql").id == newer)
    assert home.client.served()[0].version == newer


def _damaged(source: Path, folder: Path) -> None:
    copy(source, folder)
    tensors = {name: tensor.clone() for name, tensor in load_file(source / "model.safetensors").items()}
    next(iter(tensors.values())).view(-1)[0] = float("inf")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_an_engine_that_turns_to_garbage_is_not_attended_to_and_says_why(home: Attached, fake: FakeEngine) -> None:
    home.attend()
    worker = fake.worker
    fake.worker = SimpleNamespace(osd_draft_info=lambda: {"rank": "?"})
    until(lambda: "--worker-extension-cls" in home.trouble())
    fake.worker = worker
    until(lambda: home.store.servers.list() and not home.trouble())


def test_a_key_that_is_revoked_in_mid_stream_still_tells_whose_the_answer_is(home: Attached) -> None:
    """vLLM looks at keys when a request comes, and lets its stream end; so the answer has its owner's permissions."""
    home.attend()
    store = home.store
    secret, key = store.keys.create("acme")
    store.keys.revoke(key.id)
    ask(home.vllm, [5, 6], secret)
    until(lambda: store.outcomes.recent())
    assert store.outcomes.recent()[0].tenant == "acme"
    store.tenants.allow("acme", learn=False)
    ask(home.vllm, [7, 8], secret)
    until(lambda: len(store.outcomes.recent()) == 2)
    assert sum(row.requests for row in store.samples.stats()) == 1


def test_a_wrong_token_keeps_answers_out_and_the_plugin_says_so(
    home: Attached, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = importlib.import_module("osd_vllm.sender").sender()
    monkeypatch.setattr(sender, "options", replace(sender.options, token="another token of a test"))
    ask(home.vllm, [5, 6])
    until(lambda: sender.counts["failures"])
    assert sender.counts["sent"] == 0


def test_a_selftest_publishes_again_what_was_published_last(home: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osd.attached.vllm.engine.VllmEngine.counters", lambda self: {})
    home.attend()
    newer = better(home.store, home.folders, home.root)
    until(lambda: home.store.versions.serving("sql") == {"gpu-1": newer})
    (before,) = home.client.served()
    assert before.folder == str(home.store.versions.folder(home.store.versions.get(newer)))
    assert selftest(home.client).same_ids
    assert home.client.served() == [before] and before.version == newer
    assert not home.trouble()


def test_the_list_of_engines_says_what_each_answered(home: Attached) -> None:
    home.attend()
    home.store.engines.add("gpu-2", "http://127.0.0.1:9", "sql", {})
    for n in range(4):
        ask(home.vllm, [7 + n, 30, 41])
    until(lambda: home.store.outcomes.acceptance() and home.store.outcomes.acceptance()[0].requests == 4)
    (total,) = home.store.outcomes.acceptance()
    mine, other = engine_rows(home.store)
    assert (mine["requests"], mine["alpha"]) == (4, total.alpha) and 0 <= mine["age"] < 60
    assert (other["requests"], other["alpha"], other["age"]) == (0, None, None)


def test_an_engine_is_probed_and_added_without_what_decodes(home: Attached, tmp_path: Path) -> None:
    """Each command runs in a process that would fail if it imported torch."""
    url = home.vllm.url
    commands = f"probe {url}", f"add {url} --draft sql", "list", "show gpu-1", "remove gpu-1"
    code = (
        "import os\n"
        "from osd.cli.main import app\n"
        f"os.environ['OSD_VLLM_TOKEN'] = {TOKEN!r}\n"
        f"for words in {commands!r}:\n"
        "    app(['engines', *words.split()], prog_name='osd', standalone_mode=False)\n"
    )
    run_without((*ABSENT, "huggingface_hub"), code, tmp_path / "another store")


def test_the_facts_of_an_earlier_release_are_read(folders: dict[str, Path]) -> None:
    noted = {"rank": 0, "process": "1.0", "version": None, "sha256": "f" * 64}
    vllm = StockVllm("http://127.0.0.1:9", None, None, str(folders["draft"]), None, [noted])
    assert vllm._rank is not None and vllm._rank.folder is None
