"""What a client makes of bytes: whole answers, and the ways in which one is none."""

from __future__ import annotations

import json

import pytest

from osd.bench.serve.client import Collected, Reply, read_reply
from osd.bench.serve.load import Load

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = {"usage": {"completion_tokens": 6}}
END = b"0\r\n\r\n"


def chunk(*events: object) -> bytes:
    """Events as one chunk of a stream."""
    text = "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events).encode()
    return b"%x\r\n%s\r\n" % (len(text), text)


TEXT = {"choices": [{"text": "ä"}], "system_fingerprint": "v1"}


def read(*pieces: bytes) -> Reply:
    """Pieces that come a second apart, from 10 on."""
    return read_reply(Collected(9.0, [10.0 + i for i in range(len(pieces))], list(pieces)))


def test_an_answer_in_pieces_cut_anywhere() -> None:
    data = HEAD + chunk(TEXT) + chunk(TEXT) + chunk({**USAGE, "choices": []}, "[DONE]") + END
    for cut in range(len(HEAD) + 20, len(data)):
        reply = read(HEAD, data[len(HEAD) : cut], data[cut:])
        assert (reply.error, reply.tokens, reply.version) == (None, 6, "v1")
        assert reply.first_ms == 2000 and reply.times[-1] == 12.0, "headers are no token"
    assert reply.per_token_ms == pytest.approx(1000 / 5) and reply.gaps_ms == [1000.0]
    assert reply.tokens_by(11.5) == 3.0 and reply.tokens_by(10.0) == 0.0 and reply.tokens_by(99.0) == 6.0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}",
        HEAD + chunk(TEXT),
        HEAD + chunk(TEXT, "[DONE]") + END,
        HEAD + chunk(TEXT) + chunk({"error": {"code": "engine_failed"}}) + END,
        HEAD + chunk("{") + END,
    ],
    ids=["nothing", "refused", "broken off", "uncounted", "an error on the way", "no JSON"],
)
def test_what_is_no_answer_says_why(data: bytes) -> None:
    reply, load = read(data), Load()
    load.keep(reply)
    assert reply.error and load.errors == [reply.error] and not load.requests
