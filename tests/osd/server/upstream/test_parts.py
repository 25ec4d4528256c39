"""The parts of a front, each by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osd.attached.forwarder import while_client_waits
from osd.server.errors import ApiError, BadKey
from osd.server.upstream.addresses import ReplicaAddress, check_replicas, replicas_of
from osd.server.upstream.call import prompt_text
from osd.server.upstream.inside import rounds_of
from osd.server.upstream.replicas import FAILURES, ReplicaPool, ReplicaState
from osd.server.upstream.tally import StreamTally, counts_in, parsed
from storage.access.engines import AttachedEngine
from storage.errors import BadSetting
from storage.records import RequestSamples, TokenKind
from tests.support.fake_replica import DONE, USAGE, chunk

ENGINE = AttachedEngine("gpu-2", "http://b:8000", "sql", 0.0, {"digest": "d" * 64})


def pool_of(**drafts: str) -> ReplicaPool:
    """Replicas that are all well, by name: each with its draft."""
    pool = ReplicaPool()
    pool.set_addresses([ReplicaAddress(name, f"http://{name}:1", draft) for name, draft in drafts.items()])
    for one in pool.replicas.values():
        one.found_well({"target": {}}, own=False, ready=True)
    return pool


# which replicas there are


def test_replicas_are_named_or_the_stores() -> None:
    named = replicas_of(["http://a:8000/", "sql=https://c", "http://b:8000"], [ENGINE])
    assert [(one.name, one.url, one.draft, one.engine) for one in named] == [
        ("a:8000", "http://a:8000", "default", False), ("c:443", "https://c", "sql", False),
        ("gpu-2", "http://b:8000", "sql", True),
    ]  # fmt: skip
    assert [one.name for one in replicas_of(["http://a:8000", "engines"], [ENGINE])] == ["a:8000", "gpu-2"]
    (other,) = replicas_of(["math=http://b:8000", "engines"], [ENGINE])
    assert (other.draft, other.digest) == ("math", "d" * 64)


@pytest.mark.parametrize(
    "given", ["gpu1", "ftp://a", "http://", "http://a:x", "http://a/v1", "=http://a", "http://a?x=1", "http://u:p@a"]
)
def test_what_names_no_replica(given: str) -> None:
    with pytest.raises(BadSetting) as caught:
        check_replicas([given])
    assert "u:p" not in str(caught.value)


def test_a_replica_is_named_once() -> None:
    with pytest.raises(BadSetting, match="a:80 is named twice"):
        check_replicas(["http://a", "sql=http://a:80/"])


# which one a request takes


def test_the_least_loaded_of_the_routes_drafts() -> None:
    pool = pool_of(a="sql", b="sql", c="default")
    pool.replicas["a"].running = 2
    pool.replicas["b"].running = 1
    choice = pool.choose(["sql"])
    assert choice and (choice.replica.at.name, choice.stands_in) == ("b", False)
    both = pool.choose(["sql", "default"])
    assert both and both.replica.at.name == "c"


def test_equals_take_turns() -> None:
    pool = pool_of(a="default", b="default", c="default")
    names = [choice.replica.at.name for _ in range(6) if (choice := pool.choose(None))]
    assert names == ["a", "b", "c"] * 2


def test_the_default_draft_stands_in_before_others() -> None:
    pool = pool_of(a="sql", b="math", c="default")
    sql, math, default = pool.replicas.values()
    sql.found_down("gone")
    default.running = 9
    assert [pool.choose(["sql"], tried) for tried in ([], [default], [default, math])] == [
        (default, True), (math, True), None,
    ]  # fmt: skip


def test_failures_in_a_row_take_a_replica_out() -> None:
    (one,) = pool_of(a="default").replicas.values()
    for _ in range(FAILURES - 1):
        one.has_failed("garbage", "nonsense")
    one.answered(200, whole=False)
    assert one.failures == FAILURES - 1, "it is not whole yet"
    one.answered(200, whole=True)
    for _ in range(FAILURES - 1):
        one.has_failed("garbage", "nonsense")
    assert one.state is ReplicaState.UP
    one.has_failed("garbage", "nonsense")
    assert (one.state, one.trouble) == (ReplicaState.DOWN, "nonsense")
    one.found_well({"target": {}}, own=False, ready=True)
    one.has_failed("unreachable", "refused")
    assert one.state is ReplicaState.DOWN


def test_a_replica_that_is_not_named_any_more_goes_once_nothing_runs_there() -> None:
    pool = pool_of(a="default", b="default")
    a, b = pool.replicas.values()
    a.running = 1
    pool.set_addresses([b.at])
    assert a.state is ReplicaState.DRAINING and [one.at.name for one in pool.up] == ["b"]
    pool.set_addresses([a.at, b.at])
    assert a.state is ReplicaState.UP, "it was named again"
    pool.set_addresses([b.at])
    a.running = 0
    pool.set_addresses([replace_draft(b.at, "sql")])
    assert [(one.at.name, one.at.draft) for one in pool.replicas.values()] == [("b", "sql")]


def replace_draft(at: ReplicaAddress, draft: str) -> ReplicaAddress:
    return at._replace(draft=draft)


def test_targets_are_told_apart_by_name_and_by_digest() -> None:
    pool = pool_of(a="default", b="default", c="default")
    for one, digest in zip(pool.replicas.values(), ("d1" * 32, "d1" * 32, "d2" * 32), strict=True):
        one.at = one.at._replace(digest=digest)
    pool.compare_targets()
    assert [one.state.value for one in pool.replicas.values()] == ["up", "up", "misfit"]
    assert "d2d2d2d2" in (pool.replicas["c"].misfit or "")
    wanting = ReplicaPool("llama")
    wanting.set_addresses([one.at for one in pool.replicas.values()])
    for one in wanting.replicas.values():
        one.found_well({"target": {}}, own=False, ready=True)
    wanting.compare_targets()
    assert wanting.up == [] and wanting.choose(None) is None


# what passes


STREAM = b"".join(map(chunk, range(4)))


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
@given(st.lists(st.integers(1, 60), max_size=40), st.booleans(), st.booleans())
def test_however_a_stream_is_cut_its_bytes_pass(ends: bytes, cuts: list[int], hides: bool, asked: bool) -> None:
    whole, parts = (STREAM + USAGE * (hides or asked) + DONE).replace(b"\n", ends), []
    tally, rest = StreamTally(hides_usage=hides), whole
    for cut in [*cuts, len(whole)]:
        assert tally.ended == (not rest and parts != [])
        parts.append(tally.push(rest[:cut]))
        rest = rest[cut:]
    assert b"".join(parts) == (STREAM + DONE if hides else whole)
    assert tally.ended
    assert tally.counts() == ((5, 4) if hides or asked else None)
    assert StreamTally(hides_usage=hides).push(chunk(0).replace(b"\n", ends)), "nothing is held back but a part"


def test_a_chunk_with_usage_and_text_is_not_taken_out() -> None:
    event = b'data: {"choices":[{"text":"a"}],"usage":{"prompt_tokens":1}}\n\n'
    assert StreamTally(hides_usage=True).push(event) == event


def test_metrics_beside_usage_pass_without_it() -> None:
    said = {"choices": [], "usage": {"prompt_tokens": 1}, "osd": {"route": ["r"]}, "metrics": {"steps": 2}}
    passed = StreamTally(hides_usage=True).push(f"data: {json.dumps(said)}\n\n".encode())
    del said["usage"]
    assert parsed(passed[6:]) == said


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}, (3, 2)),
        ({"usage": {"input_tokens": 3, "output_tokens": 2}}, (3, 2)),
        ({"response": {"usage": {"input_tokens": 3, "output_tokens": 2}}}, (3, 2)),
        ({"usage": {"prompt_tokens": 3, "total_tokens": 3}}, (3, 0)),
        ({"usage": {"prompt_tokens": "many"}}, (0, 0)),
        ({"usage": None}, None), ({"choices": []}, None), ([1], None), ("x", None),
    ],
)  # fmt: skip
def test_usage_is_read_in_each_form(body: object, found: tuple[int, int] | None) -> None:
    assert counts_in(parsed(json.dumps(body).encode())) == found


@pytest.mark.parametrize("body", [b"{", b"[" * 100_000, b"\xff", b""])
def test_what_is_no_json_has_no_usage(body: bytes) -> None:
    assert counts_in(parsed(body)) is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"prompt": "a"}, "a"), ({"prompt": ["a", "b"]}, "a"), ({"prompt": [1, 2]}, None), ({"prompt": [[1]]}, None),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "a"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]}, "a"),
        ({"messages": [{"role": "system", "content": "s"}]}, "s"), ({"messages": []}, None), ({"messages": [5]}, None),
        ({"input": "a"}, "a"), ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}, "a"),
        ({"messages": "x"}, "x"), ({"prompt": 5}, None), ({}, None),
    ],
)  # fmt: skip
def test_what_a_prompt_is_routed_by(body: dict[str, object], text: str | None) -> None:
    assert prompt_text(body) == text


# looking after a call


def attended(work: Callable[[], Coroutine[Any, Any, None]], *, gone: float = 3600, why: ApiError | None = None) -> str:
    """How a call ends: what it raises by name, or "worked", and whether its work was cancelled."""
    said: list[str] = []

    async def working() -> None:
        try:
            await work()
            said.append("worked")
        except asyncio.CancelledError:
            said.append("cancelled")
            raise

    async def receive() -> dict[str, str]:
        await asyncio.sleep(gone)
        return {"type": "http.disconnect"}

    def check() -> None:
        if why:
            raise why

    async def run() -> None:
        try:
            await while_client_waits(working(), receive, check, 0.01)
        except ApiError as error:
            said.append(type(error).__name__)

    asyncio.run(run())
    return " ".join(said)


async def failing() -> None:
    raise BadKey(reason="x")


def test_a_call_ends_with_its_work_or_with_whatever_ends_it_sooner() -> None:
    assert attended(lambda: asyncio.sleep(0)) == "worked"
    assert attended(failing) == "BadKey"
    assert attended(lambda: asyncio.sleep(3600), gone=0.0) == "cancelled"
    assert attended(lambda: asyncio.sleep(3600), why=BadKey(reason="x")) == "cancelled BadKey"


# what is kept, token by token


def test_rounds_are_read_from_what_is_kept() -> None:
    own, yes, no = TokenKind.UNDRAFTED, TokenKind.ACCEPTED, TokenKind.REJECTED
    kinds = [own, yes, yes, own, yes, no, yes]
    positions = np.arange(2, 9, dtype=np.int32)
    some = RequestSamples(
        "r", "default", "default", "v", 0.0, 2, np.arange(9, dtype=np.int32), positions, np.array(kinds, np.uint8),
        np.array([0, 3, 4, 0, 6, 77, 8], np.int32), np.zeros((7, 1), np.int32), np.zeros((7, 1), np.float16),
        np.zeros(7, np.float32),
    )  # fmt: skip
    found = [(one.tokens, one.accepted, one.refused) for one in rounds_of(some)]
    assert found == [([2], 0, None), ([3, 4, 5], 2, None), ([6, 7], 1, 77), ([8], 1, None)]
    part = replace(
        some, positions=positions[:1], kinds=some.kinds[:1], drafted=some.drafted[:1], topk_ids=some.topk_ids[:1],
        topk_logprobs=some.topk_logprobs[:1], outside=some.outside[:1],
    )  # fmt: skip
    assert [one.tokens for one in rounds_of(part)] == [[token] for token in range(2, 9)]
