"""A folder that the speculators library wrote by its own code is a number 0: osd serves it, teaches it, and exports it;
the library loads what is exported, with the same numbers, and `vllm serve FOLDER` alone drafts with it as osd does."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from osd.demo import TARGET
from osd.demo.runner.process import environment
from osd.engine.session import serving
from osd.hotswap.export import export
from osd.models.features.decoder import feature_target, load_feature_model
from osd.models.features.files import load_feature_draft
from osd.models.features.target import FeatureTarget, read_features
from osd.models.pair import load_model, load_pair
from storage.records import DEFAULT_DRAFT, Request, RunState
from storage.settings import Settings
from storage.store import Store, open_store
from tests.integration.vllm.conftest import ROOT, some_prompts
from tests.integration.vllm.heads import NEW, settings_for
from tests.integration.vllm.speculators_library import STEPS
from tests.integration.vllm.test_eagle31 import require_same, vllm_chains
from trainer.distil.loop import run_once

pytestmark = pytest.mark.vllm
LIBRARY = Path(os.environ.get("SPECULATORS_PYTHON", ROOT / ".venv-speculators" / "bin" / "python"))
SCRIPT = Path(__file__).with_name("speculators_library.py")
TAUGHT = 96
EAGLE31 = {"norm_before_residual": True, "fc_norm": True, "norm_output": True, "ttt_steps": 4, "num_layers": 1}
DRAFTS: dict[str, tuple[str, dict[str, Any]]] = {
    "EAGLE-3.1": ("eagle3", EAGLE31 | {"draft_arch": "llama", "full_attention_indices": [0]}),
    "EAGLE-3.1 with a window": ("eagle3", EAGLE31 | {"draft_arch": "llama", "full_attention_indices": []}),
    "EAGLE-3 of Qwen3's kind": ("eagle3", EAGLE31 | {"draft_arch": "qwen3", "full_attention_indices": [0]}),
    "P-EAGLE": ("peagle", {"num_layers": 2, "draft_arch": "qwen3", "full_attention_indices": [0, 1], "num_depths": 4}),
    "DFlash": ("dflash", {"num_layers": 1, "draft_arch": "qwen3", "full_attention_indices": [0]}),
    "DFlash with a window": ("dflash", {"num_layers": 1, "draft_arch": "qwen3", "full_attention_indices": []}),
}  # fmt: skip
"""What the library's trainer is told; a window is its default. DFlash has one layer: vLLM 0.32's CPU build norms the
text's keys of all layers by the first one's weights."""


@pytest.fixture(scope="module")
def library() -> Path:
    """The Python that has the library."""
    if not LIBRARY.exists():
        pytest.skip(f"there is no speculators library at {LIBRARY}; `make speculators` installs it")
    return LIBRARY


def run(library: Path, *words: object) -> None:
    """Run what the library does in a process of its own."""
    variables = environment() | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    done = subprocess.run([library, SCRIPT, *map(str, words)], env=variables, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-3000:]


@pytest.mark.parametrize(("kind", "fields"), DRAFTS.values(), ids=DRAFTS)
def test_a_folder_of_the_library_goes_round(
    kind: str, fields: dict[str, Any], library: Path, python: Path, tmp_path: Path
) -> None:
    size = json.loads((TARGET / "config.json").read_text())["vocab_size"]
    told = {"draft_vocab_size": 512, "mask_token_id": size - 1, "block_size": 8, "target_layer_ids": [1, 2, 3]} | fields
    run(library, "write", kind, TARGET, tmp_path / "theirs", json.dumps(told))
    settings = settings_for(tmp_path / "data", TARGET, 512)
    with open_store(settings) as store:
        serve(tmp_path / "theirs", settings, store)
        number = store.versions.current(DEFAULT_DRAFT)
        assert (number.kind, number.number) == (kind, 0)
        done = run_once(store, settings, DEFAULT_DRAFT, "test")
        assert done is not None and done.state is RunState.PUBLISHED, done and done.result
        version = store.versions.current(DEFAULT_DRAFT)
        export(store, version.id, tmp_path / "ours", speculators=4)
        require_same_in_the_library(library, kind, tmp_path, store.versions.folder(version))
    require_same_in_vllm(tmp_path)


def serve(folder: Path, settings: Settings, store: Store) -> None:
    """Let osd's engine serve with a folder of the library's, and keep what it answers."""
    pair = load_pair(str(TARGET), str(folder), device="cpu", dtype="float32")
    prompts = some_prompts("sql", TAUGHT)
    with serving(pair, settings, store) as engine:
        found = list(engine.run([Request(prompt, max_new_tokens=NEW) for prompt in prompts]))
    assert all(one.rounds[0].drafted for one in found)


def require_same_in_the_library(library: Path, kind: str, folder: Path, version: Path) -> None:
    """Require that the library loads an exported folder: the tensors are the version's, and an EAGLE-3 draft says the
    same."""
    target = FeatureTarget(load_model(str(TARGET), torch.device("cpu"), "float32").module, str(TARGET))
    draft, tokens = load_feature_draft(version, target), torch.tensor([some_prompts("sql", 1, skip=TAUGHT)[0]])
    features, _ = read_features(target.module, tokens, draft.feature_layers(target.module))
    save_file({"features": features[:, :-1].contiguous(), "tokens": tokens[:, 1:].contiguous()}, folder / "found")
    run(library, "read", folder / "ours", folder / "found")
    theirs = load_file(folder / "found")
    for name, weight in draft.state_dict().items():
        assert torch.equal(theirs[name], weight), name
    assert torch.equal(theirs["embed_tokens.weight"], target.embeddings)
    if kind == "eagle3":  # where a window is full, the library's later steps see it and what was drafted; vLLM a window
        slides = "sliding_attention" in (draft.config.layer_types or ())
        steps = draft.unroll(features, tokens, target.embed, target.head, 1 if slides else STEPS)
        for step, each in enumerate(steps):
            known = tokens.shape[1] - each.shift
            assert (each.logits[:, :known] - theirs[f"logits.{step}"][:, :known]).abs().max() < 1e-4


def require_same_in_vllm(folder: Path) -> None:
    """Require that a vLLM that is given the exported folder alone drafts as osd's engine does."""
    model, prompts = load_model(str(TARGET), torch.device("cpu"), "float32"), some_prompts("sql", 6, skip=TAUGHT)
    theirs = vllm_chains(folder / "ours", prompts, folder, None)
    gamma = json.loads((folder / "ours" / "config.json").read_text())["speculators_config"]["proposal_methods"][0]
    ours = load_feature_model(folder / "ours", model)
    require_same(ours, feature_target(model), prompts, theirs, gamma["speculative_tokens"])
