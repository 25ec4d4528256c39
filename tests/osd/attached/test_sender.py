"""The plugin's sender: nothing waits for it, nothing is sent twice with effect, what finds no place is counted."""

from __future__ import annotations

import gzip
import importlib
import json
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support.fake_vllm import TOKEN, plugin
from tests.support.waiting import until


class Collector:
    """A collector that can be away, and keeps what it is sent."""

    def __init__(self, port: int = 0) -> None:
        self.batches: list[dict[str, Any]] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                assert self.headers["authorization"] == f"Bearer {TOKEN}"
                batch = json.loads(gzip.decompress(data))
                if outer.status == 200:
                    outer.batches.append(batch)
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(json.dumps({"batch": batch["batch"]}).encode())

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        Thread(target=self.server.serve_forever, daemon=True).start()

    def answers(self) -> list[int]:
        return [answer["n"] for batch in self.batches for answer in batch["answers"]]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Makes a sender; quicker than in earnest."""
    senders = []
    monkeypatch.setenv("OSD_VLLM_TOKEN", TOKEN)
    plugin(monkeypatch)
    module = importlib.import_module("osd_vllm.sender")
    monkeypatch.setattr(module, "WAIT", 0.05)
    monkeypatch.setattr(module, "AGAIN", 0.1)

    def made(port: int, **environment: str) -> Any:
        monkeypatch.setenv("OSD_VLLM_COLLECTOR", f"http://127.0.0.1:{port}")
        for name, value in environment.items():
            monkeypatch.setenv(f"OSD_VLLM_{name}", value)
        senders.append(module.Sender(importlib.import_module("osd_vllm.options").Options.read()))
        return senders[-1]

    yield made
    for sender in senders:
        sender.close()


def test_every_answer_arrives_once_and_in_order(make: Callable[..., Any], collector: Collector) -> None:
    sender = make(collector.port)
    for n in range(300):
        sender.put({"n": n, "choices": []})
    until(lambda: sender.counts["sent"] == 300)
    assert collector.answers() == list(range(300))
    assert len({batch["batch"] for batch in collector.batches}) == len(collector.batches)


def test_batches_that_arrived_are_named_as_done(make: Callable[..., Any], collector: Collector) -> None:
    sender = make(collector.port)
    for n in range(2):
        sender.put({"n": n, "choices": []})
        until(lambda n=n: sender.counts["sent"] == n + 1)
    assert collector.batches[1]["done"] == [collector.batches[0]["batch"]]


def test_what_came_while_the_collector_was_away_arrives_when_it_is_back(
    make: Callable[..., Any], collector: Collector, tmp_path: Path
) -> None:
    collector.status = 503
    sender = make(collector.port, SPOOL=str(tmp_path / "spool"))
    for n in range(100):
        sender.put({"n": n, "choices": []})
    until(lambda: sender.counts["spooled"] == 100)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "spool").iterdir())
    collector.status = 200
    until(lambda: sender.counts["sent"] == 100)
    assert sorted(collector.answers()) == list(range(100)) and not list((tmp_path / "spool").iterdir())


@pytest.mark.parametrize("there", [True, False])
def test_what_waits_at_the_end_is_sent_or_spooled(
    make: Callable[..., Any], collector: Collector, tmp_path: Path, there: bool
) -> None:
    collector.status = 200 if there else 503
    sender = make(collector.port, SPOOL=str(tmp_path / "spool"))
    for n in range(200):
        sender.put({"n": n, "choices": []})
    sender.close()
    assert sender.counts["sent" if there else "spooled"] == 200
    collector.status = 200
    make(collector.port)
    until(lambda: sorted(collector.answers()) == list(range(200)))


def test_what_a_silent_collector_gets_at_the_end_is_spooled(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("osd_vllm.sender")
    monkeypatch.setattr(module, "PATIENCE", 0.5)
    monkeypatch.setattr(module, "AGAIN", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = make(silent.getsockname()[1], SPOOL=str(tmp_path / "spool"))
        for n in range(5):
            sender.put({"n": n, "choices": []})
        sender.close()
    assert sender.counts["spooled"] == 5


def test_beyond_its_budget_the_spool_drops_and_counts(
    make: Callable[..., Any], collector: Collector, tmp_path: Path
) -> None:
    collector.status = 503
    sender = make(collector.port, SPOOL=str(tmp_path / "spool"), SPOOL_MB="0")
    for n in range(10):
        sender.put({"n": n, "choices": []})
    until(lambda: sender.counts["dropped"] == 10)
    assert not list((tmp_path / "spool").iterdir())


def test_a_full_queue_drops_and_never_waits(make: Callable[..., Any], collector: Collector) -> None:
    collector.status = 503
    sender = make(collector.port, QUEUE="5")
    for n in range(1000):
        sender.put({"n": n, "choices": []})
    until(lambda: sender.counts["taken"] + sender.counts["dropped"] >= 1000)
    assert sender.counts["dropped"] >= 1000 - sender.counts["taken"] > 0


def test_a_batch_that_is_wrong_does_not_hold_up_the_next(
    make: Callable[..., Any], collector: Collector, tmp_path: Path
) -> None:
    collector.status = 422
    sender = make(collector.port, SPOOL=str(tmp_path / "spool"))
    sender.put({"n": 1, "choices": []})
    until(lambda: sender.counts["refused"] == 1)
    collector.status = 200
    sender.put({"n": 2, "choices": []})
    until(lambda: collector.answers() == [2])


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TOKEN", "short", "at least 16 characters"),
        ("COLLECTOR", "http://10.0.0.1:8002", "in the clear"),
        ("COLLECTOR", "nowhere", "no URL"),
        ("FOLDERS", "/no/such/folder", "no folder"),
        ("TOP_K", "many", "no number"),
    ],
)
def test_a_wrong_variable_is_named(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    options = importlib.import_module("osd_vllm.options")
    monkeypatch.setenv(f"OSD_VLLM_{name}", value)
    with pytest.raises(options.BadOption, match=f"OSD_VLLM_{name}.*{says}"):
        options.Options.read()


def test_answers_are_counted_alone_once_their_positions_are_spent(
    make: Callable[..., Any], collector: Collector
) -> None:
    sender = make(collector.port, POSITIONS="10")
    assert sender.depth() == sender.k
    sender.put({"n": 1, "choices": [{"top_ids": [[1]] * 30}]})
    assert sender.depth() == 0
    sender.put({"n": 2, "choices": [{"top_ids": []}]})
    sender._filled -= 1.0
    assert sender.depth() == 0
    sender._filled -= 3.0
    assert sender.depth() == sender.k
    until(lambda: sender.counts["sent"] == 2)
    assert sender.counts["counted"] == 1 and collector.answers() == [1, 2]


def test_pieces_are_the_json_of_the_whole(make: Callable[..., Any]) -> None:
    encode = importlib.import_module("osd_vllm.sender").encode
    value = {
        "batch": "b", "done": [], "answers": [
            {"id": 'q"\\é\n', "prompt": [1, 2],
             "choices": [{"top_ids": [[1, 2], [3]], "top_logprobs": [[-0.25, -1e-9], [0.0]]}],
             "accepted": None, "began": 1.5, "empty": {}, "none": [[]],
             "long": [[n, n / 3] for n in range(150)], "row": list(range(200))},
        ],
    }  # fmt: skip
    assert json.loads(encode(value)) == value
