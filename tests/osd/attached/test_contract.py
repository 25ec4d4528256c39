"""What every serving engine must do, whichever it is: held by the fakes of vLLM with the plugin and of SGLang alike.

The stock vLLM behind the proxy has its own page (test_proxied.py): it is published to by a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from osd.attached.base import EngineRefused, EngineUnreachable, EngineUnsuited, ServingEngine
from osd.attached.sglang import LOADING, SglangEngine, payloads
from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.models.model_digest import model_digest
from tests.osd.attached.conftest import Running, copy
from tests.support.fake_sglang import FakeSglang
from tests.support.fake_vllm import TOKEN, FakeEngine, make_app


@dataclass
class Served:
    """A running fake, its client, and how it is started again."""

    client: ServingEngine
    server: Running
    restart: Callable[[], None]
    draft: Callable[[], dict[str, torch.Tensor]]
    """The draft's tensors as the engine has them."""


@pytest.fixture
def sglang(folders: dict[str, Path]) -> FakeSglang:
    return FakeSglang(folders["target"], folders["draft"], tp=2)


@pytest.fixture(params=["vllm", "sglang"])
def served(
    request: pytest.FixtureRequest, fake: FakeEngine, sglang: FakeSglang, folders: dict[str, Path]
) -> Iterator[Served]:
    if request.param == "vllm":
        server = Running(make_app(fake))
        client: ServingEngine = VllmEngine(server.url, TOKEN)
        made = Served(client, server, lambda: fake.restart(folders["draft"]), lambda: dict(fake.draft.state_dict()))
    else:
        server = Running(sglang.app())
        made = Served(SglangEngine(server.url, None), server, sglang.restart, lambda: sglang.draft)
    yield made
    server.stop()


def test_what_is_published_is_what_it_has_until_it_is_started_again(served: Served, folders: dict[str, Path]) -> None:
    facts = served.client.probe()
    assert facts.digest == model_digest(str(folders["target"])) and facts.draft == str(folders["draft"])
    assert facts.serves == weights_digest(folders["draft"]) and facts.gamma == 3 and facts.greedy_drafts
    assert facts.max_num_seqs == 16 and not facts.live_gamma and facts.kind in ("vllm", "sglang")
    digest, before = weights_digest(folders["better"]), served.client.served()
    assert {rank.version for rank in before} == {None}
    ranks = served.client.publish(folders["better"], digest, "sql-000001")
    assert list(ranks) == list(served.client.served())
    assert ranks[0].sha256 == digest and ranks[0].version == "sql-000001"
    wanted = load_file(folders["better"] / "model.safetensors")
    assert all(torch.equal(served.draft()[name], tensor) for name, tensor in wanted.items())
    served.restart()
    (again,) = served.client.served()
    assert again.version is None and again.sha256 == weights_digest(folders["draft"]) and again != ranks[0]
    served.server.stop()
    with pytest.raises(EngineUnreachable, match="does not answer"):
        served.client.probe()


def test_a_draft_that_is_no_good_is_refused_and_nothing_changes(
    served: Served, folders: dict[str, Path], tmp_path: Path
) -> None:
    weights = load_file(folders["better"] / "model.safetensors")
    name, before = next(iter(weights)), served.client.served()
    changes: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
        "missing": lambda tensors: tensors.pop(name),
        "not finite": lambda tensors: tensors[name].view(-1)[0].fill_(float("nan")),
        "another shape": lambda tensors: tensors.update({name: tensors[name][:1].clone()}),
        "an unknown one": lambda tensors: tensors.update(more=torch.zeros(2)),
    }
    for what, change in changes.items():
        folder = tmp_path / what
        copy(folders["better"], folder)
        tensors = {key: value.clone() for key, value in weights.items()}
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(EngineRefused, match=rf"{name}|more"):
            served.client.publish(folder, weights_digest(folder), "v")
    with pytest.raises(EngineUnsuited, match="digest"):
        served.client.publish(folders["better"], "0" * 64, "v")
    assert served.client.served() == before


@pytest.fixture
def running(sglang: FakeSglang) -> Iterator[SglangEngine]:
    server = Running(sglang.app())
    yield SglangEngine(server.url, "a key")
    server.stop()


def test_sglang_is_paused_in_place_and_its_target_never_touched(
    sglang: FakeSglang, running: SglangEngine, folders: dict[str, Path]
) -> None:
    before = {name: tensor.clone() for name, tensor in sglang.target.items()}
    running.publish(folders["better"], weights_digest(folders["better"]), "v1")
    assert not sglang.unpaused and not sglang.paused and sglang.session is None
    assert "/update_weights_from_disk" not in sglang.calls
    assert all(torch.equal(sglang.target[name], tensor) for name, tensor in before.items())


def test_sglang_that_refuses_half_way_has_its_launch_draft_back(
    sglang: FakeSglang, running: SglangEngine, folders: dict[str, Path]
) -> None:
    sglang.fails = list(sglang.draft)[-1]
    with pytest.raises(EngineRefused, match="partially"):
        running.publish(folders["better"], weights_digest(folders["better"]), "v1")
    wanted = load_file(folders["draft"] / "model.safetensors")
    assert all(torch.equal(sglang.draft[name], tensor) for name, tensor in wanted.items())
    assert running.served()[0].sha256 == weights_digest(folders["draft"]) and not sglang.paused


def test_sglang_in_which_a_publication_broke_off_is_let_go_on(
    sglang: FakeSglang, running: SglangEngine, folders: dict[str, Path]
) -> None:
    sglang.label, sglang.session, sglang.paused = LOADING, "draft", True
    assert running.served()[0].sha256 is None
    assert sglang.session is None and not sglang.paused
    running.publish(folders["better"], weights_digest(folders["better"]), "v1")
    assert running.served()[0].version == "v1"


def test_an_sglang_that_does_not_suit_is_told_what_to_do(sglang: FakeSglang, running: SglangEngine) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"version": "0.4.9"}, "0.4.9"),
        ({"speculative_algorithm": "EAGLE3"}, "STANDALONE"),
        ({"speculative_algorithm": None}, "STANDALONE"),
        ({"dp_size": 2}, "--dp-size 1"),
        ({"model_path": "/nowhere"}, "--target"),
        ({"speculative_draft_model_path": "/nowhere"}, "--draft-folder"),
        ({"tp_size": None}, "none of its answers"),
    ]
    for info, says in wrong:
        sglang.info = info
        with pytest.raises(EngineUnsuited, match=says):
            running.probe()
    sglang.key = "another key"
    with pytest.raises(EngineUnsuited, match=r"attach\.api_key"):
        running.probe()


def test_large_drafts_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osd.attached.sglang.CHUNK", 64)
    parts = list(payloads({str(n): torch.full((8,), float(n)) for n in range(5)}))
    assert len(parts) == 3
