"""Versions as models and models as folders: full weights, adapters, and what may follow what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from osd.models.weights import write_full
from storage.errors import WeightsDamaged, WrongState
from storage.records import DraftVersion, RunState, VersionState
from storage.settings import LearnSettings, Settings
from storage.store import Store
from tests.trainer.conftest import Traffic
from tests.trainer.distil.test_loop import changed, damage, done
from tests.trainer.models import answers, random_prompts, tiny_llama
from trainer.distil.checkpoints import load_current, load_trainable, write_model
from trainer.distil.distil import distil
from trainer.distil.loop import run_once

CPU = torch.device("cpu")
FULL, LORA = LearnSettings(), LearnSettings(method="lora", lora_rank=4, learning_rate=2e-2, epochs=6)
PROMPT = torch.tensor([[3, 9, 27, 11, 40]])


def logits(model: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(PROMPT).logits
    return found


def learn_lora(store: Store, settings: Settings, traffic: Traffic) -> DraftVersion:
    settings = settings.model_copy(update={"learn": LORA.model_copy(update={"batch_tokens": 256})})
    traffic(12)
    assert done(run_once(store, settings, "default", "me")).state is RunState.PUBLISHED
    return store.versions.current("default")


def test_an_adapter_is_stored_small_goes_on_and_is_merged_for_full_training(
    drafted: Store, settings: Settings, traffic: Traffic
) -> None:
    first = learn_lora(drafted, settings, traffic)
    folder, root = drafted.versions.folder(first), drafted.versions.list("default")[0]
    names = {path.name for path in folder.iterdir()}
    assert first.kind == "lora" and names == {"adapter_config.json", "adapter_model.safetensors", "osd.json", "READY"}
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == f"osd:{root.digest}"
    plain, merged = load_current(drafted, root, CPU), load_current(drafted, first, CPU)
    assert type(merged) is type(plain) and not torch.allclose(logits(merged), logits(plain))

    second = learn_lora(drafted, settings, traffic)
    assert second.parent == first.id and second.kind == "lora"
    model = load_trainable(drafted, second, LORA, CPU)
    assert all(("lora_" in name) == p.requires_grad for name, p in model.named_parameters())
    a, b = (load_file(drafted.versions.folder(v) / "adapter_model.safetensors") for v in (first, second))
    assert a.keys() == b.keys() and all(not torch.equal(a[key], b[key]) for key in a)

    torch.testing.assert_close(
        logits(load_trainable(drafted, second, FULL, CPU)), logits(load_current(drafted, second, CPU))
    )
    traffic(12)
    run = done(run_once(drafted, settings, "default", "me"))
    full = drafted.versions.get(str(run.version))
    assert full.kind == "full" and full.parent == second.id and run.state is RunState.PUBLISHED

    traffic(12)
    waiting = drafted.samples.waiting("default").requests
    with pytest.raises(WrongState, match=r"learn.method = lora needs number 0 or an adapter"):
        run_once(drafted, changed(settings, "learn", method="lora"), "default", "me")
    assert drafted.samples.waiting("default").requests == waiting

    damage(drafted, root)
    with pytest.raises(WeightsDamaged, match=root.id):
        load_current(drafted, second, CPU)


def test_a_new_adapter_is_no_change_yet_and_its_seed_decides_it(drafted: Store) -> None:
    root = drafted.versions.current("default")
    one, same, other = (
        load_trainable(drafted, root, LORA.model_copy(update={"seed": seed}), CPU) for seed in (1, 1, 2)
    )
    torch.testing.assert_close(logits(one), logits(load_current(drafted, root, CPU)))
    parameters = [torch.cat([p.flatten() for p in m.parameters() if p.requires_grad]) for m in (one, same, other)]
    assert torch.equal(parameters[0], parameters[1]) and not torch.equal(parameters[0], parameters[2])


def test_weights_that_are_whole_but_do_not_load_are_damage_too(drafted: Store) -> None:
    root = drafted.versions.current("default")
    odd = drafted.versions.stage("default", root.id, "full", lambda folder: tiny_llama().save_pretrained(folder))
    path = drafted.versions.folder(odd) / "config.json"
    strange = drafted.versions.stage(
        "default", root.id, "full", lambda folder: write_strange(folder, path.read_text(), odd, drafted)
    )
    with pytest.raises(WeightsDamaged, match="do not load"):
        load_current(drafted, strange, CPU)
    assert strange.state is VersionState.CANDIDATE


def write_strange(folder: Path, config: str, like: DraftVersion, store: Store) -> None:
    source = store.versions.folder(like) / "model.safetensors"
    (folder / "model.safetensors").write_bytes(source.read_bytes())
    (folder / "config.json").write_text(json.dumps(json.loads(config) | {"model_type": "no such model"}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_full_folder_keeps_float32_weights_the_served_type_and_the_tokenizer(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    parent, out = tmp_path / "parent", tmp_path / "out"
    tiny_llama().to(dtype).save_pretrained(parent)
    (parent / "tokenizer.json").write_text("{}")
    (parent / "osd.json").write_text("{}")
    model = AutoModelForCausalLM.from_pretrained(parent, dtype=torch.float32)
    out.mkdir()
    write_full(model, out, parent)
    assert {path.name for path in out.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
    }  # fmt: skip
    assert all(tensor.dtype == torch.float32 for tensor in load_file(out / "model.safetensors").values())
    assert AutoModelForCausalLM.from_pretrained(out, dtype="auto").dtype == dtype
    torch.testing.assert_close(logits(AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)), logits(model))


def test_steps_that_bfloat16_would_lose_survive_from_run_to_run(tmp_path: Path) -> None:
    """Why weights are stored in float32: a run's small steps add up."""
    model = tiny_llama().to(torch.bfloat16).to(torch.float32)
    weight = model.get_output_embeddings().weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(1 + 2**-12)
    write_model(model, tmp_path, tmp_path)
    after = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    assert not torch.equal(after, before) and torch.equal(after.bfloat16(), before.bfloat16())


def test_lora_learns(drafted: Store) -> None:
    samples = answers(tiny_llama(1), random_prompts(12))
    model = load_trainable(drafted, drafted.versions.current("default"), LORA, CPU)
    result = distil(model, samples, LORA.model_copy(update={"epochs": 10}))
    assert result.loss_last < 0.9 * result.loss_first
