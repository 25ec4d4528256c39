"""Unmerged adapters in shared passes compute what PEFT computes for each alone; those that fit nowhere are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from osd.models.decoder import Decoder
from osd.models.lora.adapter import Adapter, read_adapter, sizes_of
from osd.models.lora.bank import AdapterRows
from osd.models.lora.merging import merged
from osd.models.model import Model
from storage.errors import AdapterMismatch, NotPlain, WeightsDamaged
from tests.support.adapters import CPU, EMBEDDINGS, LINEAR, adapt, lora, read, save
from tests.support.models import model_of, prompts, random_module

NEAR: dict[str, float] = {"rtol": 1e-4, "atol": 1e-3}


def bank_logits(model: Model, adapters: list[Adapter | None], texts: list[list[int]]) -> list[torch.Tensor]:
    """Each row's logits after its last three tokens, all rows in one pass over one cache, after a prefill alone."""
    forward = model.build(model.module)
    assert forward is not None
    decoder = Decoder(model.module, forward, len(texts), 48, 64)
    bank = AdapterRows()
    bank.set_rows(adapters)
    decoder.adapters = bank.mix
    for row, text in enumerate(texts):
        decoder.prefill(row, text[:-3])
    fed = torch.tensor([text[-3:] for text in texts])
    return list(decoder.logits(fed, [len(text) - 3 for text in texts]))


def configs(kind: str) -> list[Any]:
    targets = LINEAR[kind]
    found = [
        lora(targets, 4),
        lora(targets[:1], 7, use_rslora=True),
        lora(targets, 2, alpha_pattern={targets[0]: 9}, rank_pattern={targets[-1]: 5}),
    ]
    return [*found, lora([*targets, *EMBEDDINGS[kind]], 3)] if kind in EMBEDDINGS else found


@torch.inference_mode()
@pytest.mark.parametrize("kind", LINEAR)
def test_rows_of_different_adapters_in_one_pass_compute_what_peft_computes(kind: str, tmp_path: Path) -> None:
    model = model_of(random_module(kind))
    with torch.inference_mode(False):
        peft = [adapt(model.module, config, seed) for seed, config in enumerate(configs(kind))]
    adapters = [read(save(each, tmp_path / str(i)), model) for i, each in enumerate(peft)]
    rows: list[int | None] = [0, None, 1, 2, len(peft) - 1, 0]
    texts = [[*p, 5, 6, 7, 8] for p in prompts(len(rows), seed=2)]
    ours = bank_logits(model, [None if i is None else adapters[i] for i in rows], texts)
    bare = [model.module(torch.tensor([text]), use_cache=False).logits[0, -3:] for text in texts]
    for which, text, mine, plain in zip(rows, texts, ours, bare, strict=True):
        theirs = plain if which is None else peft[which](input_ids=torch.tensor([text]), use_cache=False).logits[0, -3:]
        torch.testing.assert_close(mine, theirs, **NEAR)
        assert which is None or not torch.allclose(theirs, plain, atol=0.05)  # else the cases would not differ
    alone = bank_logits(model, [adapters[1]] * 2, texts[:2])  # all rows alike: no mask
    torch.testing.assert_close(alone[0], peft[1](torch.tensor([texts[0]]), use_cache=False).logits[0, -3:], **NEAR)


def tied_module() -> Any:
    base = random_module("llama")
    base.lm_head.weight = base.model.embed_tokens.weight
    base.config.tie_word_embeddings = True
    return base


@torch.inference_mode()
@pytest.mark.parametrize(
    ("words", "factors_tied", "stays"),
    [(["lm_head", "embed_tokens"], False, False), (["lm_head", "embed_tokens"], True, True),
     (["lm_head"], False, False), (["embed_tokens"], False, False), ([], False, True)],
)  # fmt: skip
def test_merging_into_tied_weights_gives_what_the_adapter_gave_unmerged(
    tmp_path: Path, words: list[str], factors_tied: bool, stays: bool
) -> None:
    """Tied, the output layer and the embeddings are one tensor: merged in place, each would get what both gain."""
    with torch.inference_mode(False):
        base = tied_module()
        config = lora([*LINEAR["llama"], *words], ensure_weight_tying=factors_tied)
        adapted = adapt(base, config)
    tokens = torch.tensor([prompts(1, seed=1)[0]])
    expected = adapted(input_ids=tokens).logits
    with torch.inference_mode(False):
        together = merged(base, save(adapted, tmp_path / "a"))
    torch.testing.assert_close(together(tokens).logits, expected, **NEAR)
    assert (together.lm_head.weight is together.model.embed_tokens.weight) == stays


@torch.inference_mode()
def test_factors_that_are_tied_are_held_once_and_add_at_both_ends(tmp_path: Path) -> None:
    with torch.inference_mode(False):
        model = model_of(tied_module())
        config = lora([*LINEAR["llama"], "lm_head", "embed_tokens"], ensure_weight_tying=True)
        peft = [adapt(model.module, config, seed) for seed in range(2)]
    adapters = [read(save(each, tmp_path / str(i)), model) for i, each in enumerate(peft)]
    texts = [[*p, 5, 6, 7, 8] for p in prompts(3, seed=2)]
    ours = bank_logits(model, [adapters[0], None, adapters[1]], texts)
    for row, each in ((0, peft[0]), (2, peft[1])):
        theirs = each(input_ids=torch.tensor([texts[row]]), use_cache=False).logits[0, -3:]
        torch.testing.assert_close(ours[row], theirs, **NEAR)
    stored = load_file(tmp_path / "0" / "adapter_model.safetensors")
    assert adapters[0].bytes == 4 * sum(t.numel() for name, t in stored.items() if "lm_head" not in name)


def test_what_adapters_take_is_their_factors_and_goes_with_them(tmp_path: Path) -> None:
    model = model_of(random_module("llama"))
    folders = [save(adapt(model.module, lora(LINEAR["llama"]), i), tmp_path / str(i)) for i in range(2)]
    adapters = [read(folder, model) for folder in folders]
    stored = sum(t.numel() for t in load_file(folders[0] / "adapter_model.safetensors").values())
    assert adapters[0].bytes == 4 * stored
    bank = AdapterRows()
    assert not bank.set_rows([None, None]) and bank.mix(0, 2) is None
    assert bank.set_rows([adapters[0], None]) and bank.bytes == 0 and bank.mix(1, 1) is None
    bank.set_rows([*adapters, None])
    assert bank.bytes == sum(adapter.bytes for adapter in adapters)
    bank.set_rows([None])
    assert bank.bytes == 0


def refused(folder: Path, **sizes: Any) -> dict[str, Any]:
    return read_adapter(folder, "v", sizes_of(random_module("llama")) | sizes, "d" * 64, CPU, torch.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(adapt(random_module("llama"), lora(["q_proj", "down_proj"])), tmp_path / "adapter")


def change(folder: Path, **facts: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def test_an_adapter_over_another_base_is_refused_with_what_does_not_fit(folder: Path) -> None:
    change(folder, base_model_name_or_path=None)
    assert len(refused(folder)) == 4
    with pytest.raises(AdapterMismatch, match=r"q_proj it takes 32 numbers to 32, and the base 64 to 32"):
        refused(folder, **{"model.layers.0.self_attn.q_proj": (64, 32)})
    with pytest.raises(AdapterMismatch, match=r"h\.0\.attn\.c_attn, which the base has not"):
        gpt2 = save(adapt(random_module("gpt2"), lora(["c_attn"])), folder.parent / "gpt2")
        change(gpt2, base_model_name_or_path=None)
        refused(gpt2)
    change(folder, base_model_name_or_path="osd:" + "e" * 64)
    with pytest.raises(AdapterMismatch, match=r"trained over weights eeeeeeee…, these are dddddddd…") as caught:
        refused(folder)
    assert caught.value.exit_code == 4


def test_a_cut_off_adapter_is_damaged(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(WeightsDamaged, match="do not load"):
        refused(folder)


@pytest.mark.parametrize("more", [{"use_dora": True}, {"bias": "all"}, {"modules_to_save": ["lm_head"]}])
def test_more_than_low_rank_products_is_left_to_merging(tmp_path: Path, more: dict[str, Any]) -> None:
    folder = save(adapt(random_module("llama"), lora(["q_proj"], **more)), tmp_path / "adapter")
    with pytest.raises(NotPlain):
        refused(folder)
