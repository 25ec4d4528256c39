"""`osd serve`, `osd generate` and `osd doctor` with an encoder-decoder pair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from osd.server.start import SHIPPED
from tests.osd.server.conftest import serving
from tests.support import launch
from tests.support.encoder_decoders import generated, random_encoder_decoder
from tests.support.models import noisy
from tests.support.waiting import until

QUESTION = "how many users are there?"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    tokenizer = AutoTokenizer.from_pretrained(str(SHIPPED / "target"))
    tokenizer.chat_template = None
    target = random_encoder_decoder("t5, gated", vocabulary=len(tokenizer))
    for name, module in (("target", target), ("draft", noisy(target))):
        module.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def said(pair: Path, count: int) -> str:
    """What ``generate`` says, as text."""
    tokenizer = AutoTokenizer.from_pretrained(str(pair / "target"))
    module = random_encoder_decoder("t5, gated", vocabulary=len(tokenizer))
    tokens = generated(module, tuple(tokenizer.encode(QUESTION)), count)
    assert tokenizer.eos_token_id not in tokens
    return str(tokenizer.decode(tokens, skip_special_tokens=True))


def test_completions_are_those_of_generate_and_chats_are_refused(pair: Path, tmp_path: Path) -> None:
    named = ("--target", str(pair / "target"), "--draft", str(pair / "draft"))
    asked = {"model": "target", "prompt": QUESTION, "max_tokens": 16, "temperature": 0}
    with serving(tmp_path, *named) as made:
        answer = made.post("/v1/completions", asked).json()
        assert answer["choices"][0]["text"] == said(pair, 16)
        assert answer["usage"]["completion_tokens"] == 16
        chat = made.post("/v1/chat/completions", {"model": "target", "messages": [{"role": "user", "content": "hi"}]})
        assert chat.status_code == 400 and chat.json()["error"]["code"] == "no_chat_template"
        scored = made.post("/v1/completions", {**asked, "prompt_logprobs": 1})
        assert scored.status_code == 400 and "an encoder reads the prompt" in scored.text
        with made.store() as store:
            until(lambda: len(store.samples.recent(limit=9)) == 1, "it is kept")


def test_generate_and_doctor(pair: Path, tmp_path: Path) -> None:
    def osd(*words: str) -> subprocess.CompletedProcess[str]:
        surroundings = {**os.environ, "OSD_STORAGE__DIRECTORY": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
        named = ("--target", str(pair / "target"), "--draft", str(pair / "draft"))
        command = [sys.executable, "-m", "osd.cli.main", *words, *named]
        return launch.run(command, env=surroundings, cwd=tmp_path)

    done = osd("generate", QUESTION, "--max-tokens", "16", "--no-learn")
    assert done.stdout.rstrip("\n") == said(pair, 16).rstrip("\n"), done.stderr
    found = {each["part"]: each for each in json.loads(osd("doctor", "--json").stdout)}
    assert found["pair"]["state"] == "ok" and "an encoder's and a decoder's" in found["pair"]["found"]
    assert found["trees"]["state"] == "warning" and "Encoder-decoder targets draft chains" in found["trees"]["found"]
    refused = osd("generate", QUESTION, "--drafter", "lookup")
    assert refused.returncode == 4 and "draft chains" in refused.stderr
