"""Parts of vLLM's plugin, each by itself: what may be loaded, what is remembered of tokens, how a schedule is read."""

from __future__ import annotations

import asyncio
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import save_file

from osd.attached.vllm.engine import wrong_with
from osd.attached.vllm.plugin.osd_vllm.lengths import lookup
from osd.attached.vllm.plugin.osd_vllm.options import absolute
from osd.attached.vllm.plugin.osd_vllm.routes import remember_tokens
from osd.attached.vllm.plugin.osd_vllm.weights import Refused, check, shapes, weights_digest
from osd.demo import TARGET
from osd.models.vocabulary import load_tokenizer
from tests.support.fake_vllm import PLUGIN_FOLDER, TOKEN, FakeEngine, make_app

EMBEDDINGS = torch.arange(12.0).view(6, 2)
SHARED = {"model.embed_tokens.weight": EMBEDDINGS}
OWN = {"fc.weight": torch.ones(2, 4)}


def head(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["EagleLlamaForCausalLM"], **config}))
    return folder


def checked(folder: Path, loaded: Path, **config: Any) -> dict[str, torch.Tensor]:
    ours = SimpleNamespace(architectures=["EagleLlamaForCausalLM"], **config)
    return check(folder, weights_digest(folder), ours, shapes(loaded), SHARED)


@pytest.mark.parametrize("first", [True, False])
def test_a_copy_of_the_target_s_parameter_may_be_there_or_not(tmp_path: Path, first: bool) -> None:
    more, less = head(tmp_path / "more", OWN | {"embed_tokens.weight": EMBEDDINGS}), head(tmp_path / "less", OWN)
    given, loaded = (more, less) if first else (less, more)
    assert checked(given, loaded).keys() == OWN.keys()


def test_another_tensor_in_its_place_is_refused(tmp_path: Path) -> None:
    other = head(tmp_path / "other", OWN | {"embed_tokens.weight": 3 * EMBEDDINGS})
    with pytest.raises(Refused, match=r"embed_tokens\.weight would be written into the target's own"):
        checked(other, head(tmp_path / "loaded", OWN))


def test_published_heads_call_themselves_otherwise(tmp_path: Path) -> None:
    """vLLM puts Eagle before the architecture that their config.json names."""
    loaded = head(tmp_path / "loaded", OWN, architectures=["LlamaForCausalLM"])
    assert checked(loaded, loaded)
    with pytest.raises(Refused, match="architectures is"):
        checked(head(tmp_path / "other", OWN, architectures=["EagleQwen2ForCausalLM"]), loaded)


def test_a_head_that_reads_other_hidden_states_is_refused(tmp_path: Path) -> None:
    other = head(tmp_path / "other", OWN, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    with pytest.raises(Refused, match="eagle_aux_hidden_state_layer_ids"):
        checked(other, other, eagle_aux_hidden_state_layer_ids=[2, 4, 5])


def test_every_token_s_text_is_the_tokenizer_s() -> None:
    plain: Any = load_tokenizer(TARGET)
    tokenizer: Any = load_tokenizer(TARGET)
    remember_tokens(tokenizer)
    ids = range(len(plain))
    expected = [plain.decode([token]) for token in ids]
    assert [tokenizer.decode([token]) for token in ids] == expected
    assert [tokenizer.decode([token]) for token in ids] == expected
    some = [5, 600, 70, 9]
    assert tokenizer.decode(some) == plain.decode(some)
    special = tokenizer.all_special_ids[:1]
    assert tokenizer.decode(special, skip_special_tokens=True) == ""
    assert tokenizer.decode(special) == plain.decode(special) != ""


def test_a_token_is_decoded_once() -> None:
    asked: list[list[int]] = []
    tokenizer = SimpleNamespace(decode=lambda ids: asked.append(ids) or "text")
    remember_tokens(tokenizer)
    assert [tokenizer.decode([7]) for _ in range(3)] == ["text"] * 3 and asked == [[7]]
    tokenizer.decode([7, 8])
    tokenizer.decode([7, 8])
    assert asked == [[7], [7, 8], [7, 8]]


def test_vllm_s_tokenizer_is_the_one_that_remembers(fake: FakeEngine) -> None:
    asked: list[list[int]] = []
    fake.tokenizer = SimpleNamespace(decode=lambda ids: asked.append(ids) or "text")
    with TestClient(make_app(fake)):
        assert [fake.tokenizer.decode([7]) for _ in range(3)] == ["text"] * 3
    assert asked == [[7]]


def test_the_plugins_lookup_reads_a_schedule_as_vllm_does() -> None:
    assert lookup([(1, 2, 4), (3, 4, 0)], 6, 3) == [0, 3, 3, 0, 0, 0, 0]


def test_the_plugin_says_at_start_what_it_is_and_names_folders_as_they_are_found_from_anywhere(
    fake: FakeEngine, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(folders["root"])
    fake.vllm_config.speculative_config.model = "draft"
    fake.worker.vllm_config.speculative_config.draft_model_config.model = "draft"
    fake.target.name_or_path = "target"
    with caplog.at_level("INFO", "vllm.osd"), TestClient(make_app(fake), headers={"X-OSD-Token": TOKEN}) as client:
        found = client.get("/v1/osd/info").json()
    assert f"osd_vllm {found['plugin']} from {PLUGIN_FOLDER / 'osd_vllm'}" in caplog.text and "gpu-1" in caplog.text
    named = found["target"]["name"], found["speculation"]["draft"], found["workers"][0]["folder"]
    assert named == tuple(str(folders[name]) for name in ("target", "draft", "draft"))


def test_a_hub_name_is_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("somebody/a-model") == "somebody/a-model"
    (tmp_path / "somebody" / "a-model").mkdir(parents=True)
    assert absolute("somebody/a-model") == str(tmp_path / "somebody" / "a-model")


def test_each_data_parallel_engine_is_asked_and_takes_a_version_or_none_does(
    fake: FakeEngine, folders: dict[str, Path]
) -> None:
    """vLLM's own call gives the first engine's answers alone."""
    engines = [fake, FakeEngine(folders["target"], folders["draft"], 3)]

    async def ask_all(_: str, method: str, __: None, args: tuple[Any, ...], ___: None) -> list[list[Any]]:
        return [await one.collective_rpc(method, args) for one in engines]

    fake.engine_core = SimpleNamespace(call_utility_all_async=ask_all)  # type: ignore[attr-defined]
    digest = weights_digest(folders["better"])
    asked = {"folder": str(folders["better"]), "sha256": digest, "version": "v1"}
    with TestClient(make_app(fake), headers={"X-OSD-Token": TOKEN}) as client:
        second, check_second = engines[1].worker, engines[1].worker.osd_draft_check
        second.osd_draft_check = lambda *_: {"refused": "no such folder here", "unseen": True}
        assert client.post("/v1/osd/publish", json=asked).status_code == 409
        assert {one["version"] for one in client.get("/v1/osd/version").json()} == {None}
        second.osd_draft_check = check_second
        assert client.post("/v1/osd/publish", json=asked).status_code == 200
        found = [(one["rank"], one["version"], one["sha256"]) for one in client.get("/v1/osd/version").json()]
    assert found == [(0, "v1", digest), (1, "v1", digest)]


@pytest.mark.parametrize(("field", "value"), [("draft_lm_head_quantization", "fp8")])
def test_what_cannot_be_published_to_is_named(fake: FakeEngine, field: str, value: str) -> None:
    setattr(fake.vllm_config.speculative_config, field, value)
    with TestClient(make_app(fake), headers={"X-OSD-Token": TOKEN}) as client:
        assert field in str(wrong_with(client.get("/v1/osd/info").json()))


def test_workers_that_know_none_of_our_calls_are_asked_ever_more_seldom(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM logs a traceback of each."""
    pauses = list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            raise asyncio.CancelledError

    def unknown(*_: str) -> None:
        raise AttributeError("no such method")

    routes = importlib.import_module("osd_vllm.routes")
    monkeypatch.setattr(routes.asyncio, "sleep", sleep)
    monkeypatch.setattr(fake.worker, "osd_draft_info", unknown, raising=False)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(routes._follow_workers(fake))
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
