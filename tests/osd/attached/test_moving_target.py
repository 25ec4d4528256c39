"""A vLLM whose target's weights are replaced in place: its new state has a name at once, and answers teach under the
name of the weights that wrote them, or not at all."""

from __future__ import annotations

import asyncio
import importlib
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from osd.attached.vllm.plugin.osd_vllm.worker import CHANGES, _counted, weights_state
from storage.errors import BadInput
from storage.records import VersionState
from storage.settings import Settings
from storage.store import Store
from tests.osd.attached.conftest import Attached, ask, attached, better
from tests.support.fake_vllm import FakeEngine
from tests.support.models import noisy, random_module
from tests.support.random_tokenizers import random_tokenizer
from tests.support.waiting import until


def test_replaced_weights_have_a_name_and_a_line_and_teach_under_it(home: Attached, fake: FakeEngine) -> None:
    old = home.client.probe().digest
    home.store.targets.arrive(old, "target")
    home.attend()
    learned = better(home.store, home.folders, home.root)
    until(lambda: home.store.versions.serving("sql") == {"gpu-1": learned})
    prompts = [[7 + n, 30, 41] for n in range(4)]
    before = {tuple(prompt): ask(home.vllm, prompt) for prompt in prompts}
    until(lambda: sum(one.requests for one in home.store.samples.stats()) == 4)  # else nobody knows whose they are
    first, second = fake.target, noisy(fake.target, 0.3, seed=7)
    fake.target = second
    until(lambda: home.client.probe().digest != old)
    new = home.client.probe().digest
    until(lambda: home.store.versions.find("sql", new))
    line = home.store.versions.current("sql", new).draft
    until(lambda: home.store.versions.serving(line))
    assert home.store.targets.ancestors(new) == [old]
    assert home.store.versions.serving(line) == {"gpu-1": home.store.versions.list(line)[0].id}, "unjudged, it serves"
    after = {tuple(prompt): ask(home.vllm, prompt) for prompt in prompts}
    assert before != after
    until(lambda: sum(one.requests for one in home.store.samples.stats()) == 8)
    for one in home.store.samples.read(home.request_ids()):
        said, module = (before, first) if one.target == old else (after, second)
        assert one.target in (old, new) and one.tokens[3:].tolist() == said[tuple(one.tokens[:3].tolist())]
        logits = module(torch.tensor(one.tokens[None].astype("int64"))).logits[0, 2:-1]
        assert one.topk_ids[:, 0].tolist() == logits.argmax(-1).tolist()
    assert all(version.state is not VersionState.QUARANTINED for version in home.store.versions.list())


def test_any_change_of_weights_has_another_name() -> None:
    module = random_module("llama")
    names = [weights_state(module)]
    for parameter in list(module.parameters())[:4]:
        parameter.mul_(1.0001)
        names.append(weights_state(module))
    assert len(set(names)) == 5 and weights_state(module) == names[-1]
    counted, had = _counted("reload_weights", lambda path: path), CHANGES["reload_weights"]
    assert counted("there") == "there" and CHANGES["reload_weights"] == had + 1


def test_looks_that_take_long_are_rare_but_for_a_call_that_replaces_the_weights(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And a scheduler that chooses lengths is told that what it knows of acceptance counts little."""
    routes = importlib.import_module("osd_vllm.routes")
    monkeypatch.setattr(routes, "LOOK", 0.005)
    monkeypatch.setattr(routes, "options", lambda: SimpleNamespace(gamma=tmp_path / "gamma"))
    told_of = routes.draft_file(tmp_path / "gamma")
    asked, changes = Counter[str](), 0

    async def told(method: str, args: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        asked[method] += 1
        return [{"rank": 0, "state": f"{changes}", "changes": changes, "seconds": 10.0}]

    async def watched() -> None:
        nonlocal changes
        watch = asyncio.create_task(routes._follow_target(fake))
        for looks in (1, 2):
            before = asked["osd_target_changes"]
            while asked["osd_target_changes"] < before + 6:
                await asyncio.sleep(0.005)
            assert asked["osd_target_state"] == looks and told_of.is_file() is (looks == 2)
            changes += 1
        watch.cancel()

    monkeypatch.setattr(fake, "collective_rpc", told)
    asyncio.run(watched())


def test_a_restart_with_another_folder_is_a_successor_where_the_settings_say_so(
    store: Store, settings: Settings, fake: FakeEngine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    for name in ("target", "tonight"):
        shutil.copytree(folders["target"], tmp_path / name)
        random_tokenizer("byte_level", 1).save_pretrained(tmp_path / name)
    noisy(fake.target, 0.1).save_pretrained(tmp_path / "tonight")
    follows, mine = settings.changed(attach={"successors": True}), {**folders, "target": tmp_path / "target"}
    with attached(store, follows, FakeEngine(mine["target"], mine["draft"], 3), mine, monkeypatch) as home:
        old = home.client.probe().digest
        home.attend()
        engine = store.engines.get("gpu-1")
        facts = replace(home.client.probe(), target=str(tmp_path / "tonight"), files="f" * 64, digest="f" * 64)
        home.attachment._open_line(engine, facts)
        assert store.targets.ancestors("f" * 64) == [old]
        assert store.versions.current("sql", "f" * 64).number == 0
        store.targets.arrive("e" * 64, "other", {"architecture": "LlamaForCausalLM", "vocabulary": "other"})
        with pytest.raises(BadInput, match="its tokenizer is another"):
            store.targets.succeed(old, "e" * 64)
