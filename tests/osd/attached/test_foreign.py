"""Whatever another server says, what comes out is a value or an error of osd's, and one bad answer costs itself."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import Response
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osd.attached.base import ServingEngine, detail
from osd.attached.samples import HarvestBatch, HarvestedAnswer
from osd.attached.sglang import SglangEngine
from osd.attached.vllm.engine import VllmEngine
from osd.attached.vllm.stock import StockVllm
from osd.server.upstream.tally import StreamTally, UsageCounts, counts_in, parsed
from storage.errors import OsdError
from tests.osd.attached.conftest import Attached, Running, ask
from tests.osd.attached.test_attach import post
from tests.support.waiting import until

GOOD: dict[str, Any] = {
    "id": "a" * 32, "prompt": [5, 6], "choices": [{"tokens": [7, 8], "top_ids": [[7, 1], [8, 2]],
    "top_logprobs": [[-0.1, -3.0], [-0.2, -4.0]]}], "accepted": [0], "drafted": [1], "temperature": 0.0,
    "began": 1.0, "ended": 2.0,
}  # fmt: skip
LEAVES: Any = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(
    [-1, 1 << 31, 1e999, float("nan"), "\x00" * 9, [[]], [-1], {}, []]
)  # fmt: skip
PLACES = [
    *((name,) for name in (*GOOD, "tenant", "route", "key", "version")), ("choices", 0), ("prompt", 0),
    *(("choices", 0, name) for name in GOOD["choices"][0]), ("choices", 0, "tokens", 1), ("choices", 0, "top_ids", 1),
    ("choices", 0, "top_logprobs", 0, 1),
]  # fmt: skip


def broken(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = json.loads(json.dumps(GOOD))
    inner = made
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return dict(made)


ANSWERS = st.lists(st.just(GOOD) | st.builds(broken, st.sampled_from(PLACES), LEAVES) | LEAVES, min_size=1, max_size=6)


@settings(max_examples=400)
@given(ANSWERS)
def test_a_bad_answer_of_a_batch_costs_itself(answers: list[Any]) -> None:
    """400 batches of one to six answers, each sound, or with something else in one of its places, or something else."""
    said = json.dumps({"batch": "b" * 8, "engine": "gpu-1", "answers": [GOOD, *answers, GOOD]})
    batch = HarvestBatch.model_validate_json(said)
    assert len(batch.answers) + len(batch.bad) == len(answers) + 2
    assert batch.answers[0] == batch.answers[-1] == HarvestedAnswer.model_validate(GOOD)
    assert all(one.startswith("answers.") for one in batch.bad)
    for one in batch.answers:
        texts = [*one.prompt, *(token for choice in one.choices for token in choice.tokens)]
        assert all(0 <= token < 1 << 31 for token in texts)
        assert all(value <= 1 for choice in one.choices for some in choice.top_logprobs for value in some)
        assert "\x00" not in f"{one.id}{one.tenant}{one.route}"


def test_a_bad_answer_is_counted_and_named_and_the_others_are_kept(home: Attached, caplog: Any) -> None:
    home.attend()
    ask(home.vllm, [7, 30, 41])
    until(lambda: len(home.request_ids()) == 1)
    (known,) = home.store.samples.read(home.request_ids())
    digest = home.attachment.followers["gpu-1"].serves
    good = {**GOOD, "version": digest, "version_after": digest, "id": "c" * 32}
    bad = [broken(("prompt", 0), -1), broken(("choices", 0, "top_logprobs", 0, 1), float("nan")), 5]
    body = {"batch": "b" * 8, "engine": "gpu-1", "answers": [*bad, good]}
    assert post(home.collector.url, gzip.compress(json.dumps(body).encode())) == 200
    assert "c" * 32 in home.request_ids() and known.request_id in home.request_ids()
    assert home.intake.counts.bad.labels("gpu-1")._value.get() == 3
    assert "answers.0.prompt.0" in caplog.text


def test_the_hook_is_asked_of_what_engines_hand_over(home: Attached) -> None:
    home.attend()
    redactor = home.store.samples.redactor
    redactor.hook, redactor.find_tokenizer = (lambda passage: None), (lambda: None)
    ask(home.vllm, [7, 30, 41])
    until(lambda: len(home.request_ids()) == 1)
    assert redactor.refused == 1 and not home.store.samples.kept(home.request_ids())


@pytest.fixture(scope="module")
def stranger() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A server that says the same at every path, and what it says."""
    app, said = FastAPI(), {"": b""}

    @app.api_route("/{path:path}", methods=["GET", "POST", "PUT"])
    async def say(path: str, http: Request) -> Response:
        return Response(said[""], media_type="application/json")

    server = Running(app)
    yield server.url, said
    server.stop()


NAMES = [
    "version", "model_path", "weight_version", "data", "root", "choices", "logprobs", "top_logprobs", "speculation",
    "speculative_algorithm", "dp_size", "tp_size", "target", "files", "workers", "rank", "ranks", "logprobs_mode",
    "token_ids", "metrics", "speculative_decoding", "per_step_accepted", "per_step_drafted", "method", "harvests",
    "speculative_draft_model_path", "speculative_num_draft_tokens", "speculative_eagle_topk", "max_running_requests",
]  # fmt: skip
SGLANG = {"version": "0.5.23", "speculative_algorithm": "STANDALONE", "dp_size": 1, "tp_size": 1, "model_path": "."}
SAID = st.recursive(LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(NAMES), x, max_size=8))
BYTES = (
    SAID.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=30)
    | st.dictionaries(st.sampled_from(NAMES), LEAVES).map(lambda more: json.dumps({**SGLANG, **more}).encode())
    | st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b"<html>", b"", b"vllm:spec_decode_num_drafts_total x\n"])
)  # fmt: skip
ENGINES: list[Callable[[str, Path], ServingEngine]] = [
    lambda url, folder: VllmEngine(url, "token"),
    lambda url, folder: SglangEngine(url, None, str(folder), str(folder)),
    lambda url, folder: SglangEngine(url, None),
    lambda url, folder: StockVllm(url, None, str(folder), str(folder), None),
]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=BYTES)
def test_what_a_stranger_says_is_a_value_or_a_sentence(
    stranger: tuple[str, dict[str, bytes]], folders: dict[str, Path], said: bytes
) -> None:
    """150 answers, to each of what is asked of four kinds of engines."""
    url, says = stranger
    says[""] = said
    for make in ENGINES:
        engine = make(url, folders["draft"])
        for asks in (engine.probe, engine.served):
            try:
                asks()
            except OsdError as error:
                assert str(error)
    assert isinstance(detail(said.decode(errors="replace")), str)


@settings(max_examples=300)
@given(BYTES, st.lists(st.integers(0, 40), max_size=3))
def test_tokens_are_counted_of_whatever_passes(said: bytes, cuts: list[int]) -> None:
    """300 streams of one event between two others, cut anywhere."""
    body = b"data: {}\n\n" + b'data: {"usage": ' + said + b"}\n\n" + b"data: [DONE]\n\n"
    for hides in (False, True):
        tally, places = StreamTally(hides_usage=hides), sorted({0, *cuts, len(body)})
        out = b"".join(tally.push(body[a:b]) for a, b in pairwise(places))
        assert hides or out == body
        assert tally.ended and (tally.counts() is None or isinstance(tally.counts(), UsageCounts))
    counts_in(parsed(said))
