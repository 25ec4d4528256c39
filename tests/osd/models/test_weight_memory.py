"""Weights are in memory once, however many decode with them."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers as tf

from osd.engine.engine import Engine
from osd.models.llama_forward import LlamaForward
from osd.models.pair import Pair, files_bytes, load_model, weights_in_memory
from storage.errors import NotEnoughMemory
from tests.support.models import random_module
from tests.support.settings import settings_of

KINDS = ("llama", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize("kind", KINDS)
def test_of_half_precision_they_are_there_once_for_all_engines(kind: str, tmp_path: Path) -> None:
    random_module(kind).bfloat16().save_pretrained(tmp_path / kind)
    model = load_model(tmp_path / kind, torch.device("cpu"), "bfloat16")
    pair = Pair(model, load_model(tmp_path / kind, torch.device("cpu"), "bfloat16"), None, frozenset())
    engines = [Engine(pair, settings_of(serve__max_batch=2, serve__max_length=32)) for _ in range(3)]
    forwards = [engine.target.forward for engine in engines]
    assert all(isinstance(forward, LlamaForward) for forward in forwards)
    tensors = [each for forward in forwards for product in forward.products for each in product.tensors]  # type: ignore[attr-defined]
    tensors += model.module.parameters()
    held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    counted = sum(each.nbytes for each in model.module.parameters())
    assert counted <= sum(held.values()) <= 1.05 * counted
    files = files_bytes(model)
    assert files is not None and counted <= files
    assert weights_in_memory(model) <= sum(held.values()) + sum(each.nbytes for each in model.module.buffers())


@pytest.mark.parametrize("kind", KINDS)
def test_the_module_says_what_it_said_and_is_saved_as_it_was(kind: str, tmp_path: Path) -> None:
    module, tokens = random_module(kind).bfloat16(), torch.tensor([[5, 9, 4, 2]])
    before, weights = module(tokens).logits, copy.deepcopy(module.state_dict())
    forward = LlamaForward(module)
    assert torch.equal(module(tokens).logits, before)
    module.save_pretrained(tmp_path / kind)
    again = tf.AutoModelForCausalLM.from_pretrained(str(tmp_path / kind), dtype="auto").state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in weights.items())
    with torch.no_grad():
        module.model.layers[0].self_attn.k_proj.weight.zero_()  # in place, as training does
    width = forward.layers[0].width * forward.layers[0].queries
    keys = forward.layers[0].keys * forward.layers[0].width
    assert not forward.layers[0].qkv.tensors[0][width : width + keys].any(), "the pass computes with it"


def test_packed_weights_are_packed_once_and_anew_when_they_change() -> None:
    module = random_module("llama")
    first, second = LlamaForward(module), LlamaForward(module)
    assert first.layers is second.layers and first.head is second.head
    with torch.no_grad():
        module.lm_head.weight.mul_(2)
    assert LlamaForward(module).head is not first.head


@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_are_there_once_and_the_module_says_what_it_said(kind: str, tmp_path: Path) -> None:
    module, tokens = random_module(kind), torch.tensor([[5, 9, 4, 2]])
    module.save_pretrained(tmp_path / kind)
    twice = load_model(tmp_path / kind, torch.device("cpu"))
    model = load_model(tmp_path / kind, torch.device("cpu"), release="all")
    assert torch.equal(model.module(tokens).logits, twice.module(tokens).logits)
    given_up = twice.module.num_parameters() - model.module.num_parameters()
    assert given_up > 0.5 * twice.module.num_parameters()
    assert weights_in_memory(model) == weights_in_memory(twice) - 4 * given_up
    one, two = (each.decoder(1, 16).logits(tokens, [0]) for each in (model, twice))
    assert torch.equal(one, two)
    first, second = (model.build(model.module) for _ in range(2))
    assert first.layers is second.layers, "packed once for all engines"  # type: ignore[union-attr]


def test_a_tied_output_layer_stays_the_embeddings(tmp_path: Path) -> None:
    module = random_module("llama")
    module.config.tie_word_embeddings = True
    module.tie_weights()
    module.save_pretrained(tmp_path)
    model = load_model(tmp_path, torch.device("cpu"), release="all")
    assert model.module.lm_head.weight is model.module.model.embed_tokens.weight


def test_what_cannot_fit_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_module("llama").save_pretrained(tmp_path)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(NotEnoughMemory, match=r"in float32, and 0.00 GB are free: nothing was loaded"):
        load_model(tmp_path, torch.device("cpu"))
