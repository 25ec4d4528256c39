"""What goes wrong in a vLLM whose draft is exchanged by hand, each as it was met: osd refuses it and nothing changes,
or what comes of it is right. Nobody attends to the engine here: versions are published to it directly."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.vllm.server import PLUGIN, WORKER, plugin_variables, speculation
from benchmarks.vllm.server import vllm_server as server
from osd.attached.base import EngineRefused, EngineUnsuited
from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.demo import DRAFT, TARGET
from osd.models.weights import read_weights
from tests.integration.vllm.conftest import (
    KEY,
    TOKEN,
    Reply,
    Serving,
    acceptance,
    ask,
    ids_of,
    some_prompts,
    steps_of,
)  # fmt: skip

pytestmark = pytest.mark.vllm
GAMMA = 4


@pytest.fixture(scope="module")
def trained(vllm: Serving) -> Iterator[Path]:
    """The draft that ships with osd, where vLLM may load it; the one with random weights is put back at the end."""
    folder = vllm.folder / "trained"
    shutil.copytree(DRAFT, folder)
    yield folder
    publish(vllm, vllm.draft)


def publish(vllm: Serving, folder: Path) -> None:
    digest = weights_digest(folder)
    assert [rank.sha256 for rank in vllm.engine.publish(folder, digest, folder.name)] == [digest]


def steps_by_hand(folder: Path, replies: Sequence[Reply]) -> list[list[int]]:
    """Return what each step accepts by the plain rule: as many of the draft's likeliest tokens as were emitted."""
    module: Any = read_weights(folder, torch.float32)
    found = []
    for reply in replies:
        choice = reply["choices"][0]
        text, begin = [*choice["prompt_token_ids"], *choice["token_ids"]], len(choice["prompt_token_ids"])
        with torch.inference_mode():
            guessed = module(torch.tensor([text])).logits[0].argmax(-1).tolist()
        steps, place = [], begin + 1
        while place < len(text):
            kept = 0
            while kept < GAMMA and place + kept < len(text) and guessed[place + kept - 1] == text[place + kept]:
                kept += 1
            steps.append(kept)
            place += kept + 1
        found.append(steps)
    return found


def agreeing(folder: Path, replies: Sequence[Reply]) -> float:
    """Return the share of steps that accepted what they do by the plain rule; an answer's last one may be cut."""
    pairs = [
        (theirs, ours)
        for reply, steps in zip(replies, steps_by_hand(folder, replies), strict=True)
        for theirs, ours in zip(steps_of(reply)[0][:-1], steps[:-1], strict=False)
    ]
    return sum(theirs == ours for theirs, ours in pairs) / len(pairs)


def test_requests_between_the_beginning_and_the_end_of_an_exchange_are_served(vllm: Serving, trained: Path) -> None:
    prompts = some_prompts("sql", 24)
    before = ids_of(vllm.ask(prompts))
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(vllm.ask, prompts)
        exchanged = 0
        while not asked.done() or exchanged < 2:
            publish(vllm, (trained, vllm.draft)[exchanged % 2])
            exchanged += 1
        assert ids_of(asked.result()) == before


def test_packed_and_tied_weights_are_those_that_were_published(vllm: Serving, trained: Path) -> None:
    """Plain loading fails midway over packed weights, and leaves a tied output layer as it was: nothing is accepted."""
    prompts = some_prompts("sql", 12)
    publish(vllm, vllm.draft)
    random = vllm.ask(prompts)
    publish(vllm, trained)
    known = vllm.ask(prompts)
    publish(vllm, vllm.draft)
    again = vllm.ask(prompts)
    assert acceptance(random) < 0.05 < 0.3 < acceptance(known)
    assert agreeing(trained, known) > 0.99 and agreeing(vllm.draft, again) > 0.99
    assert ids_of(random) == ids_of(known) == ids_of(again)
    assert [steps_of(one) for one in random] == [steps_of(one) for one in again]


def test_a_prefix_that_another_version_has_read_is_read_anew(vllm: Serving, trained: Path) -> None:
    """Cached blocks hold the keys and values of the draft that read them."""
    shared = tuple(token for prompt in some_prompts("sql", 10) for token in prompt)
    prompts = [shared + prompt for prompt in some_prompts("sql", 8, skip=10)]
    untouched = {"X-OSD-Learn": "false"}  # osd leaves these requests alone, and so their cache is everybody's
    publish(vllm, vllm.draft)
    before = [vllm.ask(prompts), vllm.ask(prompts), vllm.ask(prompts, **untouched)]
    publish(vllm, trained)
    after = [vllm.ask(prompts), vllm.ask(prompts)]
    stale = vllm.ask(prompts, **untouched)
    assert all(agreeing(trained, some) > 0.99 for some in after) and agreeing(trained, stale) < 0.99
    assert all(ids_of(some) == ids_of(before[0]) for some in (*before, *after, stale))


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("not finite", lambda tensors: tensors["model.norm.weight"].view(-1)[:1].fill_(float("nan"))),
        ("that is loaded has", lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)})),
        ("model.more.weight", lambda tensors: tensors.update({"model.more.weight": torch.ones(3)})),
        ("missing", lambda tensors: tensors.pop("model.norm.weight")),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_and_nothing_changes(
    vllm: Serving, trained: Path, tmp_path: Path, what: str, change: Callable[[Any], object]
) -> None:
    publish(vllm, trained)
    served, said = vllm.engine.served(), vllm.ask(some_prompts("sql", 2))
    folder = vllm.folder / "wrong" / tmp_path.name
    shutil.copytree(DRAFT, folder)
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(EngineRefused, match=what):
        vllm.engine.publish(folder, weights_digest(folder), "wrong")
    assert vllm.engine.served() == served
    again = vllm.ask(some_prompts("sql", 2))
    assert ids_of(again) == ids_of(said) and [steps_of(one) for one in again] == [steps_of(one) for one in said]


def test_a_folder_of_another_form_or_place_is_refused(vllm: Serving, trained: Path) -> None:
    served = vllm.engine.served()
    other = vllm.folder / "other"
    shutil.copytree(TARGET, other)
    with pytest.raises(EngineRefused, match="hidden_size is 192"):
        vllm.engine.publish(other, weights_digest(other), "other")
    with pytest.raises(EngineUnsuited, match="below none of OSD_VLLM_FOLDERS"):
        vllm.engine.publish(DRAFT, weights_digest(DRAFT), "elsewhere")
    with pytest.raises(EngineUnsuited, match="sees no folder"):
        vllm.engine.publish(vllm.folder / "gone", weights_digest(DRAFT), "gone")
    with pytest.raises(EngineUnsuited, match="has the digest"):
        vllm.engine.publish(trained, "0" * 64, "changed")
    assert vllm.engine.served() == served


def test_no_route_of_osd_answers_without_a_key_and_a_token(vllm: Serving) -> None:
    """vLLM's key guards /v1 alone, where osd's routes are; the token is their own."""
    for method, path in [("GET", "info"), ("GET", "version"), ("POST", "publish"), ("PUT", "gamma")]:
        for headers in ({}, {"X-OSD-Token": TOKEN}, {"Authorization": f"Bearer {KEY}"}):
            request = urllib.request.Request(f"{vllm.url}/v1/osd/{path}", b"{}", headers, method=method)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            with refused.value:
                assert refused.value.code == 401, (path, headers)
    with pytest.raises(EngineUnsuited, match=r"attach\.api_key"):
        VllmEngine(vllm.url, TOKEN).probe()
    with pytest.raises(EngineUnsuited, match="OSD_VLLM_TOKEN"):
        VllmEngine(vllm.url, "another token", KEY).probe()


@pytest.fixture(scope="module")
def eagle(folder: Path) -> Path:
    """An EAGLE head with random weights and the target's embeddings, which vLLM therefore shares."""
    made = folder / "eagle"
    shutil.copytree(TARGET, made)
    config = json.loads((made / "config.json").read_text()) | {"num_hidden_layers": 1, "tie_word_embeddings": False}
    (made / "config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    size, inner = config["hidden_size"], config["intermediate_size"]
    shapes = {"fc": (size, 2 * size), "layers.0.mlp.down_proj": (size, inner)}
    shapes |= {f"layers.0.self_attn.{name}_proj": (size, size) for name in "qkvo"}
    shapes |= {f"layers.0.mlp.{name}_proj": (inner, size) for name in ("gate", "up")}
    tensors = {f"{name}.weight": 0.02 * torch.randn(*shape) for name, shape in shapes.items()}
    tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(size)
    tensors["embed_tokens.weight"] = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"].float()
    save_file(tensors, made / "model.safetensors", {"format": "pt"})
    return made


def test_what_an_eagle_head_shares_with_the_target_is_not_written(
    python: Path, folder: Path, plugin: str, eagle: Path
) -> None:
    variables = plugin_variables(folder, TOKEN, "http://127.0.0.1:1") | {"PYTHONPATH": plugin}
    options = (*speculation(eagle, "eagle"), *PLUGIN, *WORKER)
    with server(python, TARGET, folder / "eagle.log", options, variables) as url:
        engine, prompts = VllmEngine(url, TOKEN), some_prompts("sql", 4)
        said = ids_of(ask(url, prompts))
        with pytest.raises(EngineRefused, match="embed_tokens"):
            other = altered(eagle, folder / "eagle-own", keeps=True)
            engine.publish(other, weights_digest(other), "own")
        less = altered(eagle, folder / "eagle-less", keeps=False)
        for one in (less, eagle):  # what a published head has a copy of need not be there, nor is it written
            assert [rank.sha256 for rank in engine.publish(one, weights_digest(one), one.name)] == [weights_digest(one)]
            assert ids_of(ask(url, prompts)) == said


def altered(eagle: Path, folder: Path, *, keeps: bool) -> Path:
    """The head with other embeddings, or without any, as osd writes it."""
    shutil.copytree(eagle, folder)
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["EagleLlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    embeddings = tensors.pop("embed_tokens.weight")
    more = {"embed_tokens.weight": 3 * embeddings} if keeps else {}
    save_file(tensors | more, folder / "model.safetensors", {"format": "pt"})
    return folder
