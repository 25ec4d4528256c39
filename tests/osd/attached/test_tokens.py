"""What the plugin remembers of single tokens is what the tokenizer says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fastapi.testclient import TestClient

from osd.attached.vllm.plugin.osd_vllm.routes import remember_tokens
from osd.demo import TARGET
from osd.models.vocabulary import load_tokenizer
from tests.support.fake_vllm import FakeEngine, make_app


def test_every_token_s_text_is_the_tokenizer_s() -> None:
    plain: Any = load_tokenizer(TARGET)
    tokenizer: Any = load_tokenizer(TARGET)
    remember_tokens(tokenizer)
    ids = range(len(plain))
    expected = [plain.decode([token]) for token in ids]
    assert [tokenizer.decode([token]) for token in ids] == expected
    assert [tokenizer.decode([token]) for token in ids] == expected
    some = [5, 600, 70, 9]
    assert tokenizer.decode(some) == plain.decode(some)
    special = tokenizer.all_special_ids[:1]
    assert tokenizer.decode(special, skip_special_tokens=True) == ""
    assert tokenizer.decode(special) == plain.decode(special) != ""


def test_a_token_is_decoded_once() -> None:
    asked: list[list[int]] = []
    tokenizer = SimpleNamespace(decode=lambda ids: asked.append(ids) or "text")
    remember_tokens(tokenizer)
    assert [tokenizer.decode([7]) for _ in range(3)] == ["text"] * 3 and asked == [[7]]
    tokenizer.decode([7, 8])
    tokenizer.decode([7, 8])
    assert asked == [[7], [7, 8], [7, 8]]


def test_vllm_s_tokenizer_is_the_one_that_remembers(fake: FakeEngine) -> None:
    asked: list[list[int]] = []
    fake.tokenizer = SimpleNamespace(decode=lambda ids: asked.append(ids) or "text")
    with TestClient(make_app(fake)):
        assert [fake.tokenizer.decode([7]) for _ in range(3)] == ["text"] * 3
    assert asked == [[7]]
