"""A vLLM whose target sees images, which osd's engine does not serve: its text is learned from, images are counted."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from platformdirs import user_cache_path
from transformers import AutoConfig, LlamaConfig

from benchmarks.vllm.server import PLUGIN, WORKER, plugin_variables, random_draft, speculation, vllm_server
from osd.demo import TARGET
from osd.demo.prompts import prompts as shipped
from storage.records import RunState
from tests.integration.vllm.conftest import KEY, TOKEN, Serving, acceptance, free_port, home_of, until
from tests.support.other_targets import write_vision_language
from trainer.distil.loop import run_once

pytestmark = pytest.mark.vllm
SIDE, PARTS = 56, 4
"""Pixels of an image's side, and the positions that it takes."""
Reply = dict[str, Any]
TORCHVISION = "torchvision==0.28.0"
"""Goes with torch 2.13. vLLM's CPU build comes without it, and imports it for models that see."""
KNOWN = """
for _name in ("nms", "qnms"):  # which are in its library for GPUs alone
    torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


@pytest.fixture(scope="module")
def torchvision(python: Path) -> Path:
    """A folder with torchvision as far as it goes on a CPU: its functions in Python."""
    place = user_cache_path("osd") / "wheels" / TORCHVISION
    if not place.is_dir():
        command = [python, "-m", "pip", "install", "-q", "--no-deps", "--target", place, TORCHVISION]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{TORCHVISION} cannot be had: {done.stderr[-200:]}")
        file = place / "torchvision" / "extension.py"
        file.write_text(file.read_text() + KNOWN)
    return place


@pytest.fixture(scope="module")
def sees(folder: Path) -> tuple[Path, list[int]]:
    """The target's folder, and the ids that stand for what it sees."""
    return folder / "sees", write_vision_language(folder / "sees", TARGET)


@pytest.fixture(scope="module")
def seeing(
    python: Path, folder: Path, plugin: str, sees: tuple[Path, list[int]], torchvision: Path
) -> Iterator[Serving]:
    """The running vLLM, with a small text model of random weights for its draft."""
    target, like, port = sees[0], folder / "like", free_port()
    size = AutoConfig.from_pretrained(target).get_text_config().vocab_size
    LlamaConfig(
        vocab_size=size, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    ).save_pretrained(like)  # fmt: skip
    for file in target.glob("tokenizer*"):
        (like / file.name).write_bytes(file.read_bytes())
    draft = random_draft(like, folder / "reads")
    variables = plugin_variables(folder, TOKEN, f"http://127.0.0.1:{port}") | {
        "PYTHONPATH": f"{plugin}:{torchvision}", "OSD_VLLM_ENGINE": "sees", "OSD_VLLM_SPOOL": "",
    }  # fmt: skip
    options = (*speculation(draft), *PLUGIN, *WORKER, "--api-key", KEY)
    with vllm_server(python, target, folder / "sees.log", options, variables) as url:
        yield Serving(url, folder, draft, port)


def chat(url: str, text: str, images: Sequence[str] = ()) -> Reply:
    """Ask about images, given as colours."""
    shown = [{"type": "image_url", "image_url": {"url": _picture(colour)}} for colour in images]
    content = [*shown, {"type": "text", "text": text}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 32, "temperature": 0, "ignore_eos": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    asked = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked) as answer:
        return dict(json.load(answer))


def _picture(colour: str) -> str:
    kept = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), colour).save(kept, "PNG")
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode()


def test_its_text_is_learned_from_and_images_are_counted(seeing: Serving, sees: tuple[Path, list[int]]) -> None:
    texts = shipped("sql", 40)
    with home_of(seeing, "seeing", {"epochs": 8}) as home:
        done = home.osd("engines", "add", seeing.url, "--draft", "sql")
        assert done.returncode == 0 and "Its target sees more than text" in done.stderr, done.stderr
        until(lambda: home.store.versions.serving("sql"))
        before = [chat(seeing.url, text) for text in texts[:32]]
        colours = [["red"], ["red", "blue"]] * 4
        shown = [chat(seeing.url, *asked) for asked in zip(texts[32:], colours, strict=True)]
        until(lambda: len(home.store.outcomes.recent()) == 40)
        kept = list(home.store.samples.read([one.request_id for one in home.store.outcomes.recent()]))
        positions = sum(int((one.tokens == sees[1][0]).sum()) for one in kept)
        assert len(kept) == 40 and positions >= 4 * 3 * PARTS
        assert all(one.k == 20 and not set(one.tokens[one.positions].tolist()) & set(sees[1]) for one in kept)
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{seeing.port}/metrics").read().decode()
        assert f'osd_harvest_multimodal_positions_total{{engine="sees"}} {positions:.1f}' in metrics
        run = run_once(home.store, home.settings, "sql", "test")
        assert run is not None and run.state is RunState.PUBLISHED and not run.result["unusable"], run and run.result
        until(lambda: home.store.versions.serving("sql").get("sees") == home.store.versions.current("sql").id)
        after = [chat(seeing.url, text) for text in texts[:32]]
        home.osd("engines", "remove", "sees")
    said = [[one["choices"][0]["message"]["content"] for one in some] for some in (before, after)]
    assert said[0] == said[1] and len({one["choices"][0]["message"]["content"] for one in shown}) > 1
    print(f"acceptance: {acceptance(before):.3f} before, {acceptance(after):.3f} after")
    assert acceptance(after) > acceptance(before) + 0.1
