"""Servers that are not osd's, each a process of its own: how they are started and asked.

transformers serve is that of the installed transformers; it drafts only by looking the prompt up, for it takes no
assistant. vLLM is that of another Python environment, for its versions of torch and transformers are its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from osd.bench.serve.client import Address
from osd.bench.serve.process import START_SECONDS, running
from osd.models.pair import Pair
from storage.errors import StoreError

LOOKED_UP = 3
"""Tokens that a look-up in the prompt drafts, for all who can."""
LOCAL = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
KV_GIB = "1"


@dataclass(frozen=True, slots=True)
class Other:
    """One way to run one of them."""

    name: str
    command: Sequence[str]
    """Without the port, which comes last."""
    extra: Mapping[str, Any]
    """Fields of every body."""
    text: Callable[[Sequence[int]], str] | None = None
    """Where it takes no tokens as a prompt."""
    speculates: bool = False


def transformers_ways(pair: Pair, max_tokens: int) -> list[Other]:
    """One request at a time, all in one batch, and one at a time with look-up."""
    command = [
        sys.executable, "-P", "-m", "transformers.cli.transformers", "serve", pair.target.name, "--host", "127.0.0.1",
        "--device", "cpu", "--dtype", _dtype(pair),
    ]  # fmt: skip
    tokenizer: Any = pair.tokenizer
    exact = {"max_new_tokens": max_tokens, "min_new_tokens": max_tokens, "do_sample": False} | _ends(pair)
    looking = exact | {"prompt_lookup_num_tokens": LOOKED_UP}

    def text(prompt: Sequence[int]) -> str:
        return str(tokenizer.decode(list(prompt)))

    def way(name: str, config: Mapping[str, Any], *options: str, speculates: bool = False) -> Other:
        body = {"model": pair.target.name, "generation_config": json.dumps(config)}
        return Other(f"transformers{name}", [*command, *options, "--port"], body, text, speculates)

    return [
        way("", exact), way(" batching", exact, "--continuous-batching"), way(" look-up", looking, speculates=True)
    ]  # fmt: skip


def vllm_ways(pair: Pair, python: Path, rows: int) -> list[Other]:
    """As it is, with the draft, and with look-up."""
    command = [
        str(python), "-m", "vllm.entrypoints.cli.main", "serve", pair.target.name, "--host", "127.0.0.1", "--dtype",
        _dtype(pair), "--max-num-seqs", str(rows), "--max-model-len", str(pair.limit),
    ]  # fmt: skip
    draft = {"method": "draft_model", "model": pair.draft.name, "num_speculative_tokens": LOOKED_UP}
    looking = {"method": "ngram", "num_speculative_tokens": LOOKED_UP, "prompt_lookup_max": LOOKED_UP}
    body = {"model": pair.target.name, "ignore_eos": True}
    return [
        Other("vllm", [*command, "--port"], body),
        Other("vllm draft", [*command, "--speculative-config", json.dumps(draft), "--port"], body, speculates=True),
        Other("vllm look-up", [*command, "--speculative-config", json.dumps(looking), "--port"], body, speculates=True),
    ]


def _dtype(pair: Pair) -> str:
    """The one that osd decodes in, so that all compute the same."""
    return str(next(pair.target.module.parameters()).dtype).removeprefix("torch.")


def _ends(pair: Pair) -> dict[str, Any]:
    ends = sorted(pair.eos_ids)
    return {"eos_token_id": ends, "pad_token_id": ends[0]} if ends else {}


class Up(NamedTuple):
    """A server that listens."""

    address: Address
    process: subprocess.Popen[bytes]


@contextmanager
def other_server(other: Other, log: Path) -> Iterator[Up]:
    """It, while it listens. Raises StoreError where it does not come to that."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = LOCAL | {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", KV_GIB)}
    with running([*other.command, str(port)], log, variables) as process:
        end, url = time.monotonic() + START_SECONDS, f"http://127.0.0.1:{port}"
        while not _healthy(url):
            if process.poll() is not None or time.monotonic() > end:
                raise StoreError(reason=f"{other.name} did not start: {_last(log)}")
            time.sleep(0.2)
        yield Up(Address(url, tuple(other.extra.items()), other.text), process)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _last(log: Path) -> str:
    """The end of what it said, or the error in it."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    wrong = [line for line in lines if "Error" in line]
    return (wrong or lines or ["it said nothing"])[-1][:400]
