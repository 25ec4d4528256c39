"""The parts that need no server: the line, the buckets, texts of tokens, numbers of speculation, addresses."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter

import pytest

from osd.demo import TARGET
from osd.engine.detokenizer import Detokenizer, half_bytes
from osd.models.vocabulary import load_tokenizer
from osd.server.core.queues import FairQueue
from osd.server.http.answer_parts import TokenText, speculative_decoding
from osd.server.http.keys import TokenBucket
from osd.server.process.listen import check_address, is_local, listen
from storage.errors import BadSetting


def test_tenants_take_turns() -> None:
    line: FairQueue[str] = FairQueue(10)
    for name in ("a1", "a2", "a3", "b1", "a4", "c1"):
        assert line.put(name[0], name) == []
    assert [line.take() for _ in range(7)] == ["a1", "b1", "c1", "a2", "a3", "a4", None]


def test_in_a_full_line_those_who_have_most_give_way() -> None:
    line: FairQueue[str] = FairQueue(3)
    for name in ("a1", "a2", "a3"):
        line.put("a", name)
    assert line.put("a", "a4") is None
    assert line.put("b", "b1") == ["a3"]
    assert line.put("b", "b2") is None, "it would have as many as the other then"
    assert [line.take() for _ in range(3)] == ["a1", "b1", "a2"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_a_call_of_several_choices_comes_in_whole_or_changes_nothing(count: int) -> None:
    line: FairQueue[str] = FairQueue(5)
    line.put("a", "a1", "a2", "a3", "a4"), line.put("c", "c1")
    out = line.put("b", *(f"b{number}" for number in range(count)))
    everything = [*iter(line.take, None)]
    if out is None:
        assert everything == ["a1", "c1", "a2", "a3", "a4"] and count > 2
    else:
        assert out == ["a4", "a3"][:count] and len(everything) == 5


def test_a_line_counts_right_whatever_is_done() -> None:
    rng, line, there = random.Random(0), FairQueue[int](20), []
    for number in range(3000):
        tenant = rng.choice("abc")
        if rng.random() < 0.5:
            if (out := line.put(tenant, number)) is not None:
                there = [one for one in (*there, (tenant, number)) if one[1] not in out]
        elif there and rng.random() < 0.4:
            gone = there.pop(rng.randrange(len(there)))
            assert line.remove(*gone) and not line.remove(*gone)
        elif (first := line.take()) is not None:
            there = [one for one in there if one[1] != first]
        assert len(line) == len(there) <= 20
        assert Counter(one[0] for one in there) == {name: line.of(name) for name in "abc" if line.of(name)}
    assert sorted(iter(line.take, None)) == sorted(one[1] for one in there) and len(line) == 0


def test_a_bucket_fills_with_time_and_may_be_in_debt() -> None:
    now = 0.0
    bucket = TokenBucket(60, lambda: now)
    bucket.take(60)
    assert bucket.wait() == pytest.approx(1.0)
    bucket.take(30)
    now = 30.0
    assert bucket.level == pytest.approx(0)
    now = 1000.0
    assert bucket.level == 60


def test_bytes_of_tokens_put_together_are_the_text() -> None:
    tokenizer = load_tokenizer(TARGET)
    token_text = TokenText(Detokenizer(tokenizer))
    text = "SELECT näköä, 日本語 und 🎈 – done"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert bytes(byte for token in tokens for byte in token_text(token)[1]).decode() == text
    assert half_bytes("<0xE6>") == b"\xe6" and half_bytes("▁日") is None


def test_numbers_of_speculation_by_hand() -> None:
    steps = [(4, 4), (4, 1), (0, 0), (2, 0)]
    assert speculative_decoding(steps, 4, "off") is None
    facts = speculative_decoding(steps, 4, "detailed")
    assert facts == {
        "mean_acceptance_length": 1 + 5 / 3, "draft_acceptance_rate": 0.5, "acceptance_histogram": [1, 1, 0, 0, 1],
        "num_spec_steps": 3, "num_accepted_draft_tokens": 5, "num_draft_tokens": 10, "num_spec_tokens": 4,
        "per_step_accepted": [4, 1, 0],
    }  # fmt: skip
    assert "per_step_accepted" not in speculative_decoding(steps, 4, "summary")
    assert speculative_decoding([(0, 0)], 4, "summary")["draft_acceptance_rate"] is None


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.1", False), ("example.org", False)],
)  # fmt: skip
def test_only_this_machine_is_served_without_keys(host: str, local: bool) -> None:
    assert is_local(host) is local
    check_address(host, "server.host", guarded=True)
    if not local:
        with pytest.raises(BadSetting, match="osd keys create"):
            check_address(host, "server.host", guarded=False)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadSetting, match=rf"server.port: cannot listen on 127.0.0.1:{port}"):
            listen("127.0.0.1", port, "server.port")


@pytest.mark.parametrize("handed_on", [False, True])
def test_a_streams_first_token_does_not_wait_for_the_client_to_confirm_the_answers_head(handed_on: bool) -> None:
    """Also where another process opens the port by its number, as servers behind one port do."""
    bound = listen("127.0.0.1", 0, "server.port")
    port = socket.socket(fileno=bound.detach()) if handed_on else bound

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken = writer.get_extra_info("socket")
            found.set_result(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(connected, sock=port):
            _, writer = await asyncio.open_connection(*port.getsockname())
            value = await found
            writer.close()
            return value

    assert asyncio.run(option()) == 1
