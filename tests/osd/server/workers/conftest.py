"""`osd serve --processes 2` over a tiny random pair; each is stopped by Ctrl-C, in order, with nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from storage.insights.roster import roster
from tests.osd.server.conftest import Server, serving
from tests.support.models import VOCABULARY, noisy, random_module
from tests.support.waiting import until

OPTIONS = {
    "OSD_SERVE__MAX_LENGTH": "2000", "OSD_STORAGE__FLUSH_SECONDS": "0.2", "OSD_FLEET__HEARTBEAT_SECONDS": "0.2",
    "OSD_FLEET__GONE_SECONDS": "5", "OSD_SERVE__SWAP_POLL_SECONDS": "0.1", "OSD_SERVE__RECORD": "verified",
}  # fmt: skip
LONG = {"prompt": "t5 t6 t7", "max_tokens": 1500, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Target and draft of random weights, 97 words."""
    target = random_module("llama")
    return write_pair(tmp_path_factory.mktemp("pair"), target, noisy(target, 0.3), range(VOCABULARY))


def write_pair(folder: Path, target: Any, draft: Any, ids: Sequence[int]) -> Path:
    """Write target and draft; ``ids``: what the draft calls the target's words."""
    for name, module, words in (("target", target, range(VOCABULARY)), ("draft", draft, ids)):
        known = Tokenizer(models.WordLevel({f"t{i}": token for i, token in enumerate(words)}, unk_token="t0"))
        known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=known, unk_token="t0", eos_token="t1", pad_token="t0")
        module.config.max_position_embeddings = 2048  # answers that take seconds
        module.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@contextmanager
def fleet(folder: Path, pair: Path, *options: str, workers: int = 2, **variables: str) -> Iterator[Server]:
    """A server of several processes, all of which are listed."""
    named = ["--target", str(pair / "target"), "--draft", str(pair / "draft"), "--processes", str(workers), *options]
    with serving(folder, *named, **{**OPTIONS, **variables}) as made:
        until(lambda: len(alive(made)) == workers, "all workers are listed")
        yield made
        pids = [row["pid"] for row in listed(made)]
        made.process.send_signal(signal.SIGINT)
        assert made.process.wait(60) == 0, made.log
        assert not any(map(is_running, pids)) and listed(made) == [] and "Traceback" not in made.log


def listed(server: Server) -> list[dict[str, Any]]:
    """The processes as the store knows them."""
    with server.store() as store:
        return roster(store)


def alive(server: Server) -> dict[str, dict[str, Any]]:
    """By name, those that take requests."""
    return {row["id"]: row for row in listed(server) if row["state"] == "serving" and not row["drains"]}


def is_running(pid: int) -> bool:
    """Whether there is a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ask(server: Server, **changes: object) -> dict[str, Any]:
    """One whole answer, over a connection of its own."""
    answer = server.post("/v1/completions", {**LONG, "max_tokens": 8, **changes})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def kill(pid: int) -> None:
    """As the kernel does when memory runs out."""
    os.kill(pid, 9)
