"""Quantised checkpoints: their libraries are not osd's. What is missing is named, and what is there decodes exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from osd.engine.engine import Engine
from osd.models.hf_forward import HuggingFaceForward
from osd.models.pair import Pair, files_bytes, load_model, weights_in_memory
from osd.models.weights import read_weights
from storage.errors import CannotServeRagged, ModelNotLoaded
from storage.records import Request
from tests.support.models import random_module
from tests.support.settings import settings_of

CPU = torch.device("cpu")
CONFIGS: dict[str, dict[str, object]] = {
    "bitsandbytes": {"load_in_4bit": True},
    "gptq": {"bits": 4},
    "awq": {"bits": 4},
}
MISSING = {"bitsandbytes": "bitsandbytes", "gptq": "optimum|gptqmodel", "awq": "gptqmodel|autoawq"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_module("llama").save_pretrained(tmp_path / "whole")
    return tmp_path / "whole"


def quantised(folder: Path, **config: object) -> Path:
    """The folder with a configuration that says how its weights were packed."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": config}))
    return folder


@pytest.mark.parametrize("method", MISSING)
def test_a_library_that_is_missing_is_named(folder: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bitsandbytes", "gptqmodel", "optimum", "autoawq"):
        monkeypatch.setattr(f"transformers.quantizers.auto.is_{name}_available", lambda: False, raising=False)
    with pytest.raises(ModelNotLoaded, match=rf"(?i)({MISSING[method]}).*pip install"):
        load_model(quantised(folder, quant_method=method, **CONFIGS[method]), CPU)


def test_layers_whose_numbers_hang_on_other_tokens_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threshold = 6.0

    def read(*_: object) -> Any:
        module = read_weights(folder, torch.float32)
        module.config.quantization_config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=threshold)
        return module

    monkeypatch.setattr("osd.models.pair.read_weights", read)
    with pytest.raises(CannotServeRagged, match="llm_int8_threshold = 0"):
        load_model(folder, CPU)
    threshold = 0.0
    assert load_model(folder, CPU).limit == 256


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes_decodes_to_the_modules_own_text(folder: Path, tmp_path: Path, bits: int) -> None:
    pytest.importorskip("bitsandbytes")
    packing = BitsAndBytesConfig(
        load_in_4bit=bits == 4, load_in_8bit=bits == 8, bnb_4bit_compute_dtype=torch.float32, llm_int8_threshold=0.0
    )
    packed = AutoModelForCausalLM.from_pretrained(folder, quantization_config=packing, device_map={"": "cpu"})
    packed.save_pretrained(tmp_path / "packed")
    target = load_model(tmp_path / "packed", CPU)
    assert target.build is HuggingFaceForward
    assert weights_in_memory(target) <= 1.05 * (files_bytes(target) or 0)
    settings = settings_of(gamma__rule="fixed", gamma__initial=3, serve__max_length=64)
    engine = Engine(Pair(target, load_model(folder, CPU), None, frozenset()), settings)
    for done in engine.run([Request((3 + i, 8, 5), max_new_tokens=20, ignore_eos=True) for i in range(6)]):
        prompt = torch.tensor([done.request.prompt_tokens])
        whole = target.module.generate(  # type: ignore[operator]
            prompt, do_sample=False, min_new_tokens=20, max_new_tokens=20, eos_token_id=None, pad_token_id=0
        )
        assert list(done.tokens) == whole[0, 3:].tolist()
