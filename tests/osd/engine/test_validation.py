"""What is wrong with a request is named, and the advice works when it is followed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest

from osd.engine.validation import check_request
from storage.errors import BadRequest
from storage.records import Request
from storage.sampling import Sampling
from tests.support.chat_templates import tokenizer


@dataclass(frozen=True)
class Reader:
    """A model without weights."""

    vocab_size: int = 100
    tokenizer: Any = None
    limit: int = 64


GOOD = Request((1, 2, 3), max_new_tokens=4)
MANY = tuple(range(50))


def with_(**sampling: Any) -> Request:
    return replace(GOOD, sampling=Sampling(**sampling))


ADVICE: dict[str, tuple[Request, str, str, Request]] = {
    # what is wrong: the request, the field that is named, a word of the advice, the request when it is followed
    "no prompt": (replace(GOOD, prompt_tokens=()), "prompt", "at least one token", replace(GOOD, prompt_tokens=(1,))),
    "a token that is none": (replace(GOOD, prompt_tokens=(100,)), "prompt", "0 to 99",
                             replace(GOOD, prompt_tokens=(99,))),
    "a long prompt": (replace(GOOD, prompt_tokens=MANY), "prompt", "shorten", replace(GOOD, prompt_tokens=MANY[:31])),
    "no answer": (replace(GOOD, max_new_tokens=0), "max_new_tokens", "1 or more", replace(GOOD, max_new_tokens=1)),
    "cold": (with_(temperature=-1.0), "temperature", "0 (greedy)", with_(temperature=0.0)),
    "no number": (with_(temperature=math.inf), "temperature", "inf", with_(temperature=1e9)),
    "a negative token": (replace(GOOD, prompt_tokens=(-1,)), "prompt", "token 0 is -1", GOOD),
    "more than all": (with_(top_p=1.5), "top_p", "outside", with_(top_p=1.0)),
    "top-k": (with_(top_k=-5), "top_k", "0 to keep all", with_(top_k=0)),
    "top-p": (with_(top_p=0.0), "top_p", "1 keeps", with_(top_p=1.0)),
    "min-p": (with_(min_p=1.5), "min_p", "0 keeps", with_(min_p=0.0)),
    "repetition": (with_(repetition_penalty=0.0), "repetition_penalty", "1 penalises", with_(repetition_penalty=1.0)),
    "presence": (with_(presence_penalty=3.0), "presence_penalty", "0 penalises nothing", with_(presence_penalty=0.0)),
    "frequency": (with_(frequency_penalty=3.0), "frequency_penalty", "0 penalises", with_(frequency_penalty=0.0)),
    "a bias": (with_(logit_bias={1: float("nan")}), "logit_bias", "finite", with_(logit_bias={1: 1.0})),
    "a biased token": (with_(logit_bias={100: 1.0}), "logit_bias", "0 to 99", with_(logit_bias={99: 1.0})),
    "no token": (with_(allowed_token_ids=()), "allowed_token_ids", "leave it out", GOOD),
    "a stop token": (replace(GOOD, stop_token_ids=(100,)), "stop_token_ids", "0 to 99",
                     replace(GOOD, stop_token_ids=(99,))),
    "a long least": (replace(GOOD, min_tokens=5), "min_tokens", "[0, 4]", replace(GOOD, min_tokens=4)),
    "an empty word": (with_(bad_words=("",)), "bad_words", "leave it out", GOOD),
    "a seed": (with_(seed=-1), "seed", "0 or more", with_(seed=0)),
    "an empty stop": (replace(GOOD, stop=("",)), "stop", "leave it out", GOOD),
    "gamma": (replace(GOOD, gamma=-1), "gamma", "0 (no draft)", replace(GOOD, gamma=0)),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_works(name: str) -> None:
    wrong, field, word, followed = ADVICE[name]
    reader = Reader(tokenizer=tokenizer())
    with pytest.raises(BadRequest) as caught:
        check_request(wrong, reader, 32)
    assert caught.value.facts["field"] == field and word in str(caught.value)
    check_request(followed, reader, 32)


@pytest.mark.parametrize(
    ("limit", "length", "helps"), [(32, 40, True), (32, 64, False), (32, 90, False), (64, 70, False)]
)
def test_a_longer_row_is_advised_where_it_helps(limit: int, length: int, helps: bool) -> None:
    request, reader = replace(GOOD, prompt_tokens=(1,) * length, max_new_tokens=1), Reader()
    with pytest.raises(BadRequest) as caught:
        check_request(request, reader, limit)
    assert ("raise serve.max_length" in str(caught.value)) == helps
    if helps:
        check_request(request, reader, reader.limit)  # what serve.max_length can be raised to


@pytest.mark.parametrize("field", ["stop", "bad_words"])
def test_without_a_tokenizer_texts_are_left_out(field: str) -> None:
    wrong = replace(GOOD, stop=("a",)) if field == "stop" else with_(bad_words=("a",))
    with pytest.raises(BadRequest, match="leave") as caught:
        check_request(wrong, Reader(), 32)
    assert caught.value.facts["field"] == field
