"""What the plugin remembers of single tokens is what the tokenizer says."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from osd.demo import TARGET
from osd.models.tokenizer import load_tokenizer
from tests.support.fake_vllm import FakeEngine, make_app, plugin


def remembered(folder: Path, tokenizer: Any) -> None:
    plugin(folder)
    importlib.import_module("osd_vllm.tokens").remember_tokens(tokenizer)


def test_every_token_s_text_is_the_tokenizer_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    plain: Any = load_tokenizer(TARGET)
    tokenizer: Any = load_tokenizer(TARGET)
    remembered(tmp_path, tokenizer)
    ids = range(len(plain))
    expected = [plain.decode([token]) for token in ids]
    assert [tokenizer.decode([token]) for token in ids] == expected
    assert [tokenizer.decode([token]) for token in ids] == expected
    some = [5, 600, 70, 9]
    assert tokenizer.decode(some) == plain.decode(some)
    special = tokenizer.all_special_ids[:1]
    assert tokenizer.decode(special, skip_special_tokens=True) == ""
    assert tokenizer.decode(special) == plain.decode(special) != ""


def test_a_token_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    asked: list[list[int]] = []
    tokenizer = SimpleNamespace(decode=lambda ids: asked.append(ids) or "text")
    remembered(tmp_path, tokenizer)
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
