"""What is published is what servers load: every method over every family, its exports, and what does not load."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM

from osd.hotswap.drafts import Swap
from osd.hotswap.export import export
from osd.hotswap.loader import require_servable
from osd.models.lora.merging import quiet_peft
from osd.models.pair import Pair, load_model
from storage.errors import BadInput, DraftUnsound, OsdError, WeightsDamaged
from storage.records import DraftVersion, RunState, VersionState
from storage.settings import LearnSettings, Settings
from storage.store import Store
from tests.support.models import CONFIGS, random_module
from tests.trainer.models import VOCAB, answers, random_prompts, tiny_llama
from trainer.distil.checkpoints import load_trainable, write_model
from trainer.distil.loop import run_once

CPU = torch.device("cpu")
PROMPT = torch.tensor([[3, 9, 27, 11, 40]])


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=PROMPT).logits


def root_of(store: Store, family: str, tmp_path: Path, tied: bool | None = None) -> DraftVersion:
    module = random_module(family)
    if tied is not None and tied != module.config.tie_word_embeddings:
        config = module.config
        config.tie_word_embeddings = tied
        module = AutoModelForCausalLM.from_config(config)
    module.save_pretrained(tmp_path / "root")
    return store.versions.register_root(family, tmp_path / "root")


def trained(store: Store, root: DraftVersion, method: str) -> tuple[DraftVersion, nn.Module]:
    """A version whose trained weights were moved at random, and the model in memory."""
    torch.manual_seed(0)
    model = load_trainable(store, root, LearnSettings(method=method, lora_rank=4, lora_head_rank=2), CPU)  # type: ignore[arg-type]
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.1)
    folder = store.versions.folder(root)
    version = store.versions.stage(
        root.draft, root.id, method, lambda aside: write_model(model, aside, folder, root.digest)
    )
    return version, model.eval()


QUICK = {("gpt2", True, "lora"), ("opt", True, "lora"), ("gpt_neox", False, "lora"), ("gpt2", True, "full")}
ALL = sorted(product(CONFIGS, (False, True), ("full", "lora")))


@pytest.mark.parametrize(
    ("family", "tied", "method"), [pytest.param(*c, marks=() if c in QUICK else pytest.mark.long) for c in ALL]
)
def test_servers_load_what_was_trained_and_so_do_others(
    store: Store, tmp_path: Path, family: str, tied: bool, method: str
) -> None:
    root = root_of(store, family, tmp_path, tied)
    version, model = trained(store, root, method)
    require_servable(store, version, model)  # type: ignore[arg-type]
    store.versions.promote(version.id)
    wanted = logits(model)
    export(store, version.id, tmp_path / "out")
    whole: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(whole), wanted, rtol=1e-3, atol=1e-3)
    if method == "lora":
        export(store, version.id, tmp_path / "adapter", adapter=True)
        base = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"]
        with quiet_peft():
            over = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter")
        torch.testing.assert_close(logits(over), wanted, rtol=1e-3, atol=1e-3)


def test_what_is_not_what_was_judged_is_refused(store: Store, tmp_path: Path) -> None:
    root = root_of(store, "gpt2", tmp_path)
    version, model = trained(store, root, "lora")
    next(p for p in model.parameters() if p.requires_grad).data.add_(0.5)
    with pytest.raises(DraftUnsound, match="differ"):
        require_servable(store, version, model)  # type: ignore[arg-type]


def gpt2(folder: Path) -> Any:
    """A draft whose embeddings are tied and not called ``embed_tokens``."""
    module = random_module("gpt2", vocabulary=VOCAB)
    module.save_pretrained(folder)
    return module


def test_a_gpt2_draft_that_learned_adapters_serves_in_the_next_process(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    gpt2(tmp_path / "draft")
    target = tiny_llama(1)
    store.versions.register_root("default", tmp_path / "draft")
    settings = settings.changed(learn={"method": "lora", "learning_rate": 2e-2, "batch_tokens": 256})
    store.samples.add([replace(s, created_at=float(i)) for i, s in enumerate(answers(target, random_prompts(24)))])
    run = run_once(store, settings, "default", "me")
    assert run is not None and run.state is RunState.PUBLISHED, run
    target.save_pretrained(tmp_path / "target")
    pair = Pair(*(load_model(tmp_path / name, CPU) for name in ("target", "draft")), None, frozenset())
    swap = Swap(store, "default", pair, settings, "test")
    swap.close()
    assert swap.version == run.version and store.versions.current("default").state is VersionState.SERVING


@pytest.mark.parametrize("broken", ["weights", "config"])
def test_an_export_that_does_not_load_leaves_nothing(store: Store, tmp_path: Path, broken: str) -> None:
    root = root_of(store, "gpt2", tmp_path)

    def write(folder: Path) -> None:
        shutil.copytree(store.versions.folder(root), folder, dirs_exist_ok=True)
        (folder / "READY").unlink()
        (folder / "osd.json").unlink()
        config = json.loads((folder / "config.json").read_text())
        changes = {"n_layer": 3} if broken == "weights" else {"model_type": "nothing-known"}
        (folder / "config.json").write_text(json.dumps(config | changes))

    version = store.versions.promote(store.versions.stage("gpt2", root.id, "full", write).id)
    with pytest.raises(WeightsDamaged, match="load"):
        export(store, version.id, tmp_path / "exports" / "out")
    assert not any((tmp_path / "exports").iterdir())


def test_only_an_adapter_can_be_kept_as_one(store: Store, tmp_path: Path) -> None:
    root = root_of(store, "gpt2", tmp_path)
    with pytest.raises(BadInput, match="no adapter"):
        export(store, root.id, tmp_path / "out", adapter=True)
    assert issubclass(DraftUnsound, OsdError)
