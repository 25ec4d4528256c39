"""Adapters as the trainer makes them: what they adapt, how fast, and what a draft with tied embeddings needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from osd.models.lora.adapter import read_adapter, sizes_of
from osd.models.lora.merging import gather, ties
from storage.records import DraftVersion
from storage.settings import LearnSettings
from storage.store import Store
from tests.trainer.models import answers, random_prompts, tiny_llama
from trainer.distil.checkpoints import load_current, load_trainable, write_model
from trainer.distil.distil import distil
from trainer.distil.optimizer import adamw, moments_of

CPU = torch.device("cpu")
LORA = LearnSettings(method="lora", lora_rank=4, lora_head_rank=2, epochs=4)
PROMPT = torch.tensor([[3, 9, 27, 11, 40]])


def logits(model: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model.eval()(PROMPT).logits
    return found


@pytest.fixture
def tied(drafted: Store, tmp_path: Path) -> DraftVersion:
    """Number 0 of a draft whose output layer and embeddings are one tensor."""
    torch.manual_seed(0)
    shape = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = LlamaConfig(**shape, num_hidden_layers=1, tie_word_embeddings=True, initializer_range=0.3)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "tied")
    return drafted.versions.register_root("tied", tmp_path / "tied")


def trained(store: Store, version: DraftVersion, learn: LearnSettings = LORA) -> nn.Module:
    model = load_trainable(store, version, learn, CPU)
    distil(model, answers(tiny_llama(1), random_prompts(8)), learn)
    return model


def staged(store: Store, version: DraftVersion, model: nn.Module, kind: str = "lora") -> DraftVersion:
    folder = store.versions.folder(version)
    base = store.versions.lineage(version.id)[-1].digest
    return store.versions.stage(version.draft, version.id, kind, lambda f: write_model(model, f, folder, base))


def test_an_adapter_of_tied_weights_is_kept_small_and_merges_into_what_it_was(
    drafted: Store, tied: DraftVersion
) -> None:
    model = trained(drafted, tied)
    version = staged(drafted, tied, model)
    folder = drafted.versions.folder(version)
    tensors = load_file(folder / "adapter_model.safetensors")
    assert all("lora_" in name for name in tensors)  # not the layer itself beside its factors
    merged = load_current(drafted, version, CPU)
    assert not torch.allclose(logits(merged), logits(load_current(drafted, tied, CPU)), atol=1e-3)
    torch.testing.assert_close(logits(merged), logits(model), rtol=1e-4, atol=1e-4)


def test_the_output_layer_has_a_rank_of_its_own_and_may_be_left_alone(drafted: Store, tied: DraftVersion) -> None:
    def ranks(head_rank: int) -> dict[str, int]:
        learn = LORA.model_copy(update={"lora_head_rank": head_rank})
        folder = drafted.versions.folder(staged(drafted, tied, load_trainable(drafted, tied, learn, CPU)))
        sizes = sizes_of(load_current(drafted, tied, CPU))
        parts = read_adapter(folder, "v", sizes, tied.digest, CPU, torch.float32)
        assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
        return {name.rpartition(".")[2]: len(part.up) for name, part in parts.items()}

    layers = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 4)
    assert ranks(2) == layers | {"lm_head": 2, "embed_tokens": 2}
    assert ranks(0) == layers


def test_training_all_weights_of_an_adapters_version_keeps_what_it_had_learned(
    drafted: Store, tied: DraftVersion
) -> None:
    adapted = staged(drafted, tied, trained(drafted, tied))
    full = load_trainable(drafted, adapted, LearnSettings(), CPU)
    torch.testing.assert_close(logits(full), logits(load_current(drafted, adapted, CPU)))
    folder = drafted.versions.folder(staged(drafted, adapted, full, "full"))
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(logits(again), logits(full))


def test_factors_take_steps_by_what_they_are(drafted: Store, tied: DraftVersion) -> None:
    model = load_trainable(drafted, tied, LORA, CPU)
    optimizer = adamw(model, LORA)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    rate = 1.0 / 32
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "lm_head" not in name:  # the embeddings' factors are the output layer's, turned
            is_first = "lora_A" in name or "lora_embedding_B" in name
            factor = (1 / 8 if is_first else 1) * (2 if "embed_tokens" in name else 1)
            assert rates.pop(id(parameter)) == pytest.approx(rate * factor)
    assert rates == {}
    asked = adamw(model, LORA.model_copy(update={"learning_rate": 0.01, "lora_ratio": 1.0}))
    assert {group["lr"] for group in asked.param_groups} == {0.01, 0.02}


def test_factors_of_tied_weights_are_one_parameter(drafted: Store, tied: DraftVersion) -> None:
    """Against a plain model whose one table E + s Aᵀ Bᵀ is read by both ends."""
    model = load_trainable(drafted, tied, LORA, CPU)
    (first, _), (second, _) = ties(model)
    with torch.no_grad():
        first.normal_()
    plain = load_current(drafted, tied, CPU)
    table = plain.get_input_embeddings().weight.detach()  # type: ignore[operator]
    a, b = (p.detach().clone().requires_grad_(True) for p in (first, second))
    whole = table + 2 * a.t() @ b.t()
    tables = {"model.embed_tokens.weight": whole, "lm_head.weight": whole}
    expected = torch.func.functional_call(plain, tables, (PROMPT,), {"use_cache": False}).logits
    torch.testing.assert_close(logits(model), expected.detach(), rtol=1e-4, atol=1e-4)

    expected.logsumexp(-1).sum().backward()
    model(PROMPT).logits.logsumexp(-1).sum().backward()
    gather(ties(model))
    torch.testing.assert_close(first.grad, a.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(second.grad, b.grad, rtol=1e-3, atol=1e-4)
    adamw(model, LORA).step()
    for leader, follower in ties(model):
        assert torch.equal(leader.t(), follower) and follower.grad is None


def test_an_adapter_of_tied_weights_goes_on_tied_and_is_held_once(drafted: Store, tied: DraftVersion) -> None:
    version = staged(drafted, tied, trained(drafted, tied))
    again = load_trainable(drafted, version, LORA, CPU)
    assert all(leader.data_ptr() == follower.data_ptr() for leader, follower in ties(again))
    merged = load_current(drafted, version, CPU)
    torch.testing.assert_close(logits(again), logits(merged), rtol=1e-4, atol=1e-4)
    assert merged.get_output_embeddings().weight is merged.get_input_embeddings().weight  # type: ignore[operator]
    parts = read_adapter(drafted.versions.folder(version), "v", sizes_of(merged), tied.digest, CPU, torch.float32)
    head, table = parts["lm_head"], parts["model.embed_tokens"]
    assert table.is_table and not head.is_table
    assert head.up.data_ptr() == table.down.data_ptr() and head.down.data_ptr() == table.up.data_ptr()


def test_weights_that_are_not_tied_have_factors_of_their_own(drafted: Store, tmp_path: Path) -> None:
    tiny_llama(3).save_pretrained(tmp_path / "apart")
    root = drafted.versions.register_root("apart", tmp_path / "apart")
    model = load_trainable(drafted, root, LORA, CPU)
    assert ties(model) == [] and not any(
        "embed_tokens" in name and p.requires_grad for name, p in model.named_parameters()
    )


def test_moments_of_an_adapter_go_on_in_the_next_run(drafted: Store, tied: DraftVersion) -> None:
    samples = answers(tiny_llama(1), random_prompts(8))
    once, twice = (load_trainable(drafted, tied, LORA, CPU) for _ in range(2))
    distil(once, samples, LORA.model_copy(update={"epochs": 2}), schedule="constant")
    moments = None
    for seed in range(2):
        optimizer = adamw(twice, LORA, moments)
        learn = LORA.model_copy(update={"epochs": 1, "seed": seed})
        distil(twice, samples, learn, schedule="constant", optimizer=optimizer)
        moments = moments_of(optimizer)
    torch.testing.assert_close(logits(once), logits(twice))
    assert isinstance(once, PeftModel)
