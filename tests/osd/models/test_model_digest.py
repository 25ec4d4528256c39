"""A model's digest changes with what makes its texts, and with nothing else; large files are hashed once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from osd.models import model_digest as module
from osd.models.model_digest import file_digest, model_digest
from tests.support.models import random_module

TOKENIZER = '{"model": {"vocab": {"a": 0}}}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    random_module("llama").save_pretrained(path)
    (path / "tokenizer.json").write_text(TOKENIZER)
    return path


def test_it_changes_with_weights_tokenizer_and_generation_settings_and_nothing_else(folder: Path) -> None:
    digest = model_digest(str(folder))
    assert digest and digest == model_digest(str(folder))
    for name in ("README.md", "osd.json", "notes.txt", ".hidden"):
        (folder / name).write_text("other")
        assert model_digest(str(folder)) == digest
    found = {digest}
    for name in ("tokenizer.json", "generation_config.json", "config.json", "chat_template.jinja", "model.safetensors"):
        before = (folder / name).read_bytes() if (folder / name).exists() else b""
        (folder / name).write_bytes(before + b" ")
        found.add(model_digest(str(folder)))
        (folder / name).write_bytes(before)
        if not before:
            (folder / name).unlink()
    assert len(found) == 6 and model_digest(str(folder)) == digest


def test_a_model_of_no_files_has_none() -> None:
    assert model_digest("made in memory") is None and model_digest("random") is None


def test_a_large_file_is_hashed_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    plain = module._hash
    monkeypatch.setattr(module, "LARGE", 4)
    monkeypatch.setattr(module, "user_cache_path", lambda _: tmp_path / "cache")
    monkeypatch.setattr(module, "_hash", lambda path: (hashed.append(path), plain(path))[1])
    large = tmp_path / "model.safetensors"
    large.write_bytes(b"12345678")
    first = file_digest(large)
    assert file_digest(large) == first and len(hashed) == 1
    large.write_bytes(b"87654321")
    os.utime(large, ns=(0, 10**9))
    assert file_digest(large) != first and len(hashed) == 2
    (tmp_path / "cache" / module.MEMORY).write_text('["no", "memory"]')
    assert file_digest(large) == plain(large) and len(hashed) == 3
    assert json.loads((tmp_path / "cache" / module.MEMORY).read_text())[str(large)][2] == plain(large)
