"""The plugin's sender: nothing waits for it, nothing is sent twice with effect, what finds no place is counted."""

from __future__ import annotations

import gzip
import json
import random
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from osd.attached.vllm.plugin.osd_vllm import sender as sender_module
from osd.attached.vllm.plugin.osd_vllm.options import BadOption, Options
from osd.attached.vllm.plugin.osd_vllm.sender import Sender, encode
from tests.support.fake_vllm import TOKEN
from tests.support.waiting import until


class Collector:
    """A collector that can be away, and keeps what it is sent."""

    def __init__(self, port: int = 0) -> None:
        self.batches: list[dict[str, Any]] = []
        self.status = 200
        self.says: dict[str, Any] | None = None
        """What it says of a draft that serves; None for a collector that knows of no such question."""
        self.paths: list[str] = []
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

            def do_GET(self) -> None:
                assert self.headers["authorization"] == f"Bearer {TOKEN}"
                outer.paths.append(self.path)
                self.send_response(404 if outer.says is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(outer.says).encode())

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


Make = Callable[..., Sender]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a sender, quicker than in earnest, that was given some answers."""
    senders = []
    monkeypatch.setenv("OSD_VLLM_TOKEN", TOKEN)
    monkeypatch.setattr(sender_module, "WAIT", 0.05)
    monkeypatch.setattr(sender_module, "AGAIN", 0.1)

    def made(port: int, answers: int = 0, **environment: str) -> Sender:
        monkeypatch.setenv("OSD_VLLM_COLLECTOR", f"http://127.0.0.1:{port}")
        for name, value in environment.items():
            monkeypatch.setenv(f"OSD_VLLM_{name}", value)
        senders.append(Sender(Options.read()))
        for n in range(answers):
            senders[-1].put({"n": n, "choices": []})
        return senders[-1]

    yield made
    for sender in senders:
        sender.close()


def test_every_answer_arrives_once_and_in_order(make: Make, collector: Collector) -> None:
    sender = make(collector.port, 300)
    until(lambda: sender.counts["sent"] == 300)
    assert collector.answers() == list(range(300))
    assert len({batch["batch"] for batch in collector.batches}) == len(collector.batches)


def test_batches_that_arrived_are_named_as_done(make: Make, collector: Collector) -> None:
    sender = make(collector.port)
    for n in range(2):
        sender.put({"n": n, "choices": []})
        until(lambda n=n: sender.counts["sent"] == n + 1)
    assert collector.batches[1]["done"] == [collector.batches[0]["batch"]]


def test_what_came_while_the_collector_was_away_arrives_when_it_is_back(
    make: Make, collector: Collector, tmp_path: Path
) -> None:
    collector.status = 503
    sender = make(collector.port, 100, SPOOL=str(tmp_path / "spool"))
    until(lambda: sender.counts["spooled"] == 100)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "spool").iterdir())
    collector.status = 200
    until(lambda: sender.counts["sent"] == 100)
    assert sorted(collector.answers()) == list(range(100)) and not list((tmp_path / "spool").iterdir())


@pytest.mark.parametrize("there", [True, False])
def test_what_waits_at_the_end_is_sent_or_spooled(
    make: Make, collector: Collector, tmp_path: Path, there: bool
) -> None:
    collector.status = 200 if there else 503
    sender = make(collector.port, 200, SPOOL=str(tmp_path / "spool"))
    sender.close()
    assert sender.counts["sent" if there else "spooled"] == 200
    collector.status = 200
    make(collector.port)
    until(lambda: sorted(collector.answers()) == list(range(200)))


def test_what_a_silent_collector_gets_at_the_end_is_spooled(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "PATIENCE", 0.5)
    monkeypatch.setattr(sender_module, "AGAIN", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = make(silent.getsockname()[1], 5, SPOOL=str(tmp_path / "spool"))
        sender.close()
    assert sender.counts["spooled"] == 5


def test_beyond_its_budget_the_spool_drops_and_counts(make: Make, collector: Collector, tmp_path: Path) -> None:
    collector.status = 503
    sender = make(collector.port, 10, SPOOL=str(tmp_path / "spool"), SPOOL_MB="0")
    until(lambda: sender.counts["dropped"] == 10)
    assert not list((tmp_path / "spool").iterdir())


def test_a_full_queue_drops_and_never_waits(make: Make, collector: Collector) -> None:
    collector.status = 503
    sender = make(collector.port, 1000, QUEUE="5")
    until(lambda: sender.counts["taken"] + sender.counts["dropped"] >= 1000)
    assert sender.counts["dropped"] >= 1000 - sender.counts["taken"] > 0


def test_a_batch_that_is_wrong_does_not_hold_up_the_next(make: Make, collector: Collector, tmp_path: Path) -> None:
    collector.status = 422
    sender = make(collector.port, SPOOL=str(tmp_path / "spool"))
    sender.put({"n": 1, "choices": []})
    until(lambda: sender.counts["refused"] == 1)
    collector.status = 200
    sender.put({"n": 2, "choices": []})
    until(lambda: collector.answers() == [2])


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [("TOKEN", "short", "at least 16 characters"), ("COLLECTOR", "http://10.0.0.1:8002", "in the clear"),
     ("COLLECTOR", "nowhere", "no URL"), ("FOLDERS", "/no/such/folder", "mkdir -p /no/such/folder"),
     ("TOP_K", "many", "no number")],
)  # fmt: skip
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    monkeypatch.setenv("OSD_VLLM_TOKEN", TOKEN)
    monkeypatch.setenv(f"OSD_VLLM_{name}", value)
    with pytest.raises(BadOption, match=f"OSD_VLLM_{name}.*{says}"):
        Options.read()


def test_answers_are_counted_alone_once_their_positions_are_spent(make: Make, collector: Collector) -> None:
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


def test_pieces_are_the_json_of_the_whole() -> None:
    value = {
        "batch": "b", "done": [], "answers": [
            {"id": 'q"\\é\n', "prompt": [1, 2],
             "choices": [{"top_ids": [[1, 2], [3]], "top_logprobs": [[-0.25, -1e-9], [0.0]]}],
             "accepted": None, "began": 1.5, "empty": {}, "none": [[]],
             "long": [[n, n / 3] for n in range(150)], "row": list(range(200))},
        ],
    }  # fmt: skip
    assert json.loads(encode(value)) == value


def test_a_collector_says_whether_texts_are_enough_and_an_older_one_does_not(make: Make, collector: Collector) -> None:
    sender = make(collector.port, POSITIONS="10", ENGINE="a host:8000")
    collector.says = {"sha256": "d" * 64}
    assert sender.ask_collector() == "d" * 64 and sender.depth() == sender.k
    collector.says = {"sha256": None, "texts_alone": True}
    assert sender.ask_collector() is None and sender.depth() == 0
    assert collector.paths == ["/v1/osd/serving/a%20host%3A8000"] * 2
    for n in range(9):
        sender.put({"n": n, "choices": [{"top_ids": []}]})
    collector.says = None
    with pytest.raises(OSError, match="404"):
        sender.ask_collector()
    assert sender.depth() == 0, "what it said last holds"
    until(lambda: sender.counts["sent"] == 9)
    assert not sender.counts["counted"] and collector.answers() == list(range(9))
    collector.says = {"sha256": None, "texts_alone": False}
    sender.ask_collector()
    assert sender.depth() == sender.k


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_is_stamped_alike_only_if_the_target_stayed(
    make: Make,
    collector: Collector,
    seed: int,
) -> None:
    """Updates, looks and answers in any order, and a look takes a while."""
    chance, sender, now, weights = random.Random(seed), make(collector.port), 1.0, 0
    changes, answers = [0.0], dict[int, tuple[float, float]]()
    for number in range(200):
        now += chance.random()
        deed = chance.choice(["update", "look", "look", "answer", "answer"])
        if deed == "update":
            weights += 1
            changes.append(now)
        elif deed == "look":
            asked, now = now, now + chance.random()
            sender.saw_target(f"state-{weights}", asked)
        else:
            target, began, now = sender.target, now, now + 2 * chance.random()
            if chance.random() < 0.3:
                weights += 1
                changes.append((began + now) / 2)
            answers[number] = began, now
            sender.put({"n": number, "choices": [], "target": target, "ended": now})
    sender.saw_target(f"state-{weights}", now)
    until(lambda: len(collector.answers()) == len(answers))
    for answer in (answer for batch in collector.batches for answer in batch["answers"]):
        began, ended = answers[answer["n"]]
        if answer["target"] is not None and answer["target"] == answer.get("target_after"):
            wrote = sum(at <= began for at in changes) - 1
            assert not any(began < at < ended for at in changes), "it spans two"
            assert answer["target"] == f"state-{wrote}", "it has the name of other weights"


def test_blocks_of_the_prefix_cache_are_the_target_s_too(
    make: Make,
    collector: Collector,
) -> None:
    sender = make(collector.port)
    assert sender.salt(None) is None and sender.salt("draft") == "draft"
    sender.saw_target("one", 1.0)
    assert sender.salt("draft") == "draft"
    sender.saw_target("two", 2.0)
    assert sender.salt("draft") not in (None, "draft")
