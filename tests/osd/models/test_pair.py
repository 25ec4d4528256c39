"""A pair is refused when it is loaded, with a sentence that says what would be right."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import osd
from osd.models.decoder import Decoder
from osd.models.hf_forward import HuggingFaceForward
from osd.models.limits import position_limit
from osd.models.llama_forward import LlamaForward, llama_forward
from osd.models.pair import load_model, load_pair
from osd.models.proof import choose_forward
from storage.errors import CannotServeRagged, ModelNotLoaded, VocabularyMismatch
from tests.support.models import CONFIGS, LLAMA, random_module

SHIPPED = Path(osd.__file__).parent / "demo" / "pair"
CPU = torch.device("cpu")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED / "draft", tmp_path / "draft"))


def test_the_shipped_pair_loads_in_float32_on_the_cpu() -> None:
    pair = load_pair(SHIPPED / "target", SHIPPED / "draft", device="cpu")
    assert pair.vocab_size == 6144 and pair.limit == 2048 and pair.eos_ids == {1}
    assert next(pair.target.module.parameters()).dtype == torch.float32
    assert pair.tokenizer is not None


@pytest.mark.parametrize(
    ("missing", "says"),
    [("config.json", "config.json is missing"), ("model.safetensors", "no .safetensors"), (None, "no such folder")],
)
def test_a_missing_file_is_named(draft: Path, missing: str | None, says: str) -> None:
    (draft / missing).unlink() if missing else shutil.rmtree(draft)
    with pytest.raises(ModelNotLoaded, match=says) as caught:
        load_model(draft, CPU)
    assert str(draft) in str(caught.value) and caught.value.exit_code == 4


def test_pickled_weights_are_not_loaded(draft: Path) -> None:
    (draft / "model.safetensors").unlink()
    torch.save({}, draft / "pytorch_model.bin")
    with pytest.raises(ModelNotLoaded, match="never loaded"):
        load_model(draft, CPU)


@pytest.mark.parametrize("content", ["{", '{"model_type": "no-such-architecture"}'])
def test_a_broken_or_unknown_config_is_refused(draft: Path, content: str) -> None:
    (draft / "config.json").write_text(content)
    with pytest.raises(ModelNotLoaded):
        load_model(draft, CPU)


def test_truncated_weights_are_refused(draft: Path) -> None:
    weights = draft / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelNotLoaded):
        load_model(draft, CPU)


def test_a_draft_with_another_tokenizer_is_refused(draft: Path) -> None:
    text = (draft / "tokenizer.json").read_text(encoding="utf-8")
    for one, other in (("assistant", "helper"), ("user", "assistant"), ("helper", "user")):
        text = text.replace(f"<|{one}|>", f"<|{other}|>")
    (draft / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(VocabularyMismatch, match="tokens have other ids, for example"):
        load_pair(SHIPPED / "target", draft, device="cpu")


def test_a_draft_that_lacks_one_token_serves(draft: Path) -> None:
    text = (draft / "tokenizer.json").read_text(encoding="utf-8")
    (draft / "tokenizer.json").write_text(text.replace("<|assistant|>", "<|helper|>"), encoding="utf-8")
    pair = load_pair(SHIPPED / "target", draft, device="cpu")
    assert pair.tokenizer is not None and pair.draft.shared is not None
    assert pair.draft.shared.barred.tolist() == [pair.tokenizer.convert_tokens_to_ids("<|assistant|>")]


def test_vocabularies_of_different_size_without_tokenizers_are_refused(tmp_path: Path) -> None:
    for name, size in (("target", 97), ("draft", 96)):
        random_module("llama", vocabulary=size).save_pretrained(tmp_path / name)
    with pytest.raises(VocabularyMismatch, match="96 tokens against 97"):
        load_pair(tmp_path / "target", tmp_path / "draft", device="cpu")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (tf.MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2, state_size=4), "keeps a recurrent state"),
        (tf.BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4), "tokens after it"),
    ],
)
def test_models_that_cannot_be_served_ragged_are_refused(config: Any, says: str) -> None:
    with pytest.raises(CannotServeRagged, match=says):
        choose_forward(tf.AutoModelForCausalLM.from_config(config).eval(), "some/model")


@pytest.mark.parametrize("kind", CONFIGS)
def test_llama_types_run_lean_and_others_their_own_pass(kind: str) -> None:
    build = choose_forward(random_module(kind), kind)
    assert build is (llama_forward if kind in {"llama", "mistral", "qwen2", "qwen3"} else HuggingFaceForward)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_the_lean_pass_computes_what_the_module_computes(kind: str) -> None:
    module = random_module(kind)
    for name, bias in module.named_parameters():  # biases and norms start at 0 and 1, where mistakes do not show
        if bias.dim() == 1:
            bias.copy_(torch.rand(bias.shape, generator=torch.Generator().manual_seed(len(name))) + 0.5)
    tokens = torch.randint(0, 97, (3, 20), generator=torch.Generator().manual_seed(0))
    decoders = [Decoder(module, forward, 3, 32, 32) for forward in (LlamaForward(module), HuggingFaceForward(module))]
    for begin, end in ((0, 12), (12, 13), (13, 20)):
        lean, plain = (d.logits(tokens[:, begin:end], [begin] * 3) for d in decoders)
        assert torch.allclose(lean, plain, atol=1e-4 * plain.abs().max().item())


def test_a_lean_pass_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = random_module("llama")
    monkeypatch.setattr(LlamaForward, "__call__", lambda self, tokens, cache, last: torch.zeros(*tokens.shape, 97))
    assert choose_forward(module, "llama") is HuggingFaceForward


def test_no_window_limits_the_positions_and_rotary_positions_that_change_do() -> None:
    assert position_limit(tf.MistralConfig(**LLAMA, sliding_window=64)) == 256
    assert position_limit(tf.Gemma3Config(text_config={**LLAMA, "sliding_window": 64})) == 256
    assert position_limit(tf.MptConfig(max_seq_len=77)) == 77
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    assert position_limit(tf.LlamaConfig(**LLAMA, rope_parameters=dynamic)) == 64
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    longrope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    assert position_limit(tf.Phi3Config(**LLAMA, original_max_position_embeddings=64, rope_parameters=longrope)) == 64
