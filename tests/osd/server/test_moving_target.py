"""POST /admin/target: a running server takes its target's successor, and refuses what is none by a sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest
import torch

from osd.demo import TARGET
from osd.models.pair import Pair
from osd.models.weights import read_weights
from tests.osd.server.conftest import Server, serving
from tests.osd.server.test_running import LONG, open_stream
from tests.support.models import noisy
from tests.support.waiting import PATIENCE

ASKED = LONG | {"max_tokens": 24, "prompt": "SELECT name"}


def move(server: Server, target: Path, requests: str = "wait") -> httpx.Response:
    body = {"target": str(target), "requests": requests}
    return httpx.post(f"{server.admin_url}/admin/target", json=body, timeout=PATIENCE)


def said(module: torch.nn.Module, pair: Pair) -> str:
    tokens = torch.tensor([pair.tokenizer.encode(ASKED["prompt"])])
    made = module.generate(  # type: ignore[operator]
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=24,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=-1,
    )
    return str(pair.tokenizer.decode(made[0, tokens.shape[1] :], skip_special_tokens=True))


@pytest.mark.long
def test_a_running_server_takes_new_weights_in_the_middle_of_a_stream(tmp_path: Path, pair: Pair) -> None:
    targets = {}
    for number in range(2):
        shutil.copytree(TARGET, tmp_path / f"step-{number}")
        targets[number] = noisy(read_weights(TARGET, torch.float32), 0.02, seed=number)
        targets[number].save_pretrained(tmp_path / f"step-{number}")
        for name in ("generation_config.json", "config.json"):
            shutil.copy(TARGET / name, tmp_path / f"step-{number}" / name)
    shutil.copytree(TARGET, tmp_path / "words")
    words = json.loads((tmp_path / "words" / "tokenizer.json").read_text())
    first, second = list(words["model"]["vocab"])[-2:]
    vocab = words["model"]["vocab"]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (tmp_path / "words" / "tokenizer.json").write_text(json.dumps(words))
    with serving(tmp_path / "server") as server:
        before = server.post("/v1/completions", ASKED).json()["choices"][0]["text"]
        with open_stream(server, max_tokens=200) as stream:
            moved = move(server, tmp_path / "step-0", "keep").json()
            assert moved["divergence"] and moved["draft_version"].startswith("default@")
            assert sum(1 for _ in stream) > 0
        after = server.post("/v1/completions", ASKED).json()["choices"][0]["text"]
        assert after == said(targets[0], pair) and before == said(pair.target.module, pair)
        refused = move(server, tmp_path / "words")
        assert refused.status_code == 400 and "its tokenizer is another" in refused.text
        assert "There is no such folder" in move(server, tmp_path / "nowhere").text
        assert server.post("/v1/completions", ASKED).json()["choices"][0]["text"] == after
        with open_stream(server, max_tokens=1800) as stream:
            assert move(server, tmp_path / "step-1", "abort").status_code == 200
            with pytest.raises(Exception, match=r"target_moved|exchanged"):
                list(stream)
        assert server.post("/v1/completions", ASKED).json()["choices"][0]["text"] == said(targets[1], pair)
        assert httpx.get(f"{server.admin_url}/metrics", timeout=PATIENCE).status_code == 200
        with server.store() as store:
            names = [one.digest for one in store.targets.served()]
            assert [store.targets.ancestors(name) for name in names[1:]] == [names[:1], names[1::-1]]
