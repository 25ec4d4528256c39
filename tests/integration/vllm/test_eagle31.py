"""EAGLE-3.1's fields and windows, P-EAGLE's and DFlash's blocks: osd's draft and vLLM's own module say the same of the
same folder, token by token, in float32; so they do of a folder in the speculators library's form."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.vllm.server import cpu_variables
from osd.demo import TARGET
from osd.demo.runner.process import environment
from osd.models.features.decoder import FeatureModel, feature_target, load_feature_model
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.new import first_vocabulary
from osd.models.features.speculators import rewrite_for_speculators
from osd.models.features.target import FeatureTarget, read_features
from osd.models.model import Model
from osd.models.pair import load_model
from tests.integration.vllm.chains_of_vllm import GAMMA
from tests.integration.vllm.conftest import PYTHON, Tokens, some_prompts
from tests.support.features import random_at_once, with_qwen3_layers
from tests.support.plain_eagle3 import VARIANTS, random_eagle3

pytestmark = pytest.mark.vllm
SCRIPT = Path(__file__).with_name("chains_of_vllm.py")


CASES = [*((variant, None, False) for variant in VARIANTS), ("all", 512, False), ("all", 512, True)]


@pytest.mark.parametrize(("variant", "vocabulary", "speculators"), CASES)
def test_chains_of_four_are_vllms(variant: str, vocabulary: int | None, speculators: bool, tmp_path: Path) -> None:
    model = load_model(str(TARGET), torch.device("cpu"), "float32")
    folder, target = tmp_path / "draft", FeatureTarget(model.module, str(TARGET))
    draft = random_eagle3(target, variant, first_vocabulary(target, vocabulary))
    save_feature_draft(draft, folder, target, whole=True)
    if speculators:
        rewrite_for_speculators(folder, target, GAMMA)
    held_against_vllm(folder, model, tmp_path, {"method": "eagle3", "num_speculative_tokens": GAMMA})


@pytest.mark.parametrize("speculators", [False, True])
@pytest.mark.parametrize("kind", ["eagle3", "peagle"])
def test_layers_of_qwen3s_kind_are_vllms(kind: str, speculators: bool, tmp_path: Path) -> None:
    model = load_model(str(TARGET), torch.device("cpu"), "float32")
    folder, target = tmp_path / "draft", FeatureTarget(model.module, str(TARGET))
    draft = random_eagle3(target, "norm_output") if kind == "eagle3" else random_at_once(kind, target)
    save_feature_draft(draft, folder, target, whole=True)
    with_qwen3_layers(folder)
    if speculators:
        save_feature_draft(load_feature_draft(folder, target), folder, target, whole=True)
        rewrite_for_speculators(folder, target, GAMMA)
    method = {"method": "eagle3"} | ({"parallel_drafting": True} if kind == "peagle" else {})
    held_against_vllm(folder, model, tmp_path, method | {"num_speculative_tokens": GAMMA})


AT_ONCE = [
    ("dflash", 7, None, False, {}), ("dflash", 7, 512, True, {}),
    ("dflash", 7, None, False, {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8, "causal": True}),
    ("peagle", 8, None, False, {}), ("peagle", 4, 512, True, {"norm_before_residual": True}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "gamma", "vocabulary", "speculators", "facts"), AT_ONCE)
def test_blocks_are_vllms(
    kind: str, gamma: int, vocabulary: int | None, speculators: bool, facts: dict[str, Any], tmp_path: Path
) -> None:
    """DFlash's of eight positions, and as many tokens of P-EAGLE."""
    model = load_model(str(TARGET), torch.device("cpu"), "float32")
    folder, target = tmp_path / "draft", FeatureTarget(model.module, str(TARGET))
    draft = random_at_once(kind, target, first_vocabulary(target, vocabulary), **facts)
    if kind == "dflash":  # vLLM 0.32's CPU build norms the text's keys of all layers by the first one's weights
        for layer in draft.layers:
            layer.self_attn.k_norm.weight.data = draft.layers[0].self_attn.k_norm.weight.data.clone()
    save_feature_draft(draft, folder, target, whole=True)
    if speculators:
        rewrite_for_speculators(folder, target, gamma)
    method = {"method": "dflash"} if kind == "dflash" else {"method": "eagle3", "parallel_drafting": True}
    held_against_vllm(folder, model, tmp_path, method | {"num_speculative_tokens": gamma})


def held_against_vllm(folder: Path, model: Model, tmp_path: Path, method: dict[str, Any]) -> None:
    """Check that osd's draft says what vLLM's says, in all rounds of some texts."""
    prompts, gamma = some_prompts("sql", 6), int(method["num_speculative_tokens"])
    theirs = vllm_chains(TARGET, prompts, tmp_path, method | {"model": str(folder)})
    require_same(load_feature_model(folder, model), feature_target(model), prompts, theirs, gamma)


def require_same(
    ours: FeatureModel, target: FeatureTarget, prompts: Sequence[Tokens], theirs: Mapping[str, Tensor], gamma: int
) -> None:
    """Require that osd's draft says after each round's text what vLLM's module said."""
    rounds = 0
    for number, prompt in enumerate(prompts):
        text = [*prompt, *theirs[f"tokens.{number}"].tolist()]
        place = len(prompt) + 1
        for said in theirs[f"logits.{number}"].split(gamma):
            drafted = said.argmax(-1).tolist()
            if place >= len(text):
                break
            chain = our_chain(ours, target, text[:place], drafted)
            assert chain.argmax(-1).tolist() == drafted
            assert torch.equal(chain.isinf(), said.isinf())
            known = ~said.isinf()
            assert (chain[known] - said[known]).abs().max() < 1e-4
            place, rounds = place + 1 + accepted(drafted, text[place:]), rounds + 1
    assert rounds > 30


def vllm_chains(
    target: Path, prompts: Sequence[Tokens], folder: Path, speculation: Mapping[str, Any] | None
) -> dict[str, Tensor]:
    """Return what vLLM answers, and the logits of what it drafts."""
    (folder / "prompts.json").write_text(json.dumps(prompts))
    command = [PYTHON, SCRIPT, target, folder / "prompts.json", folder / "found.safetensors", json.dumps(speculation)]
    variables = environment() | cpu_variables() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": ""}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    return load_file(folder / "found.safetensors")


@torch.inference_mode()
def our_chain(ours: FeatureModel, target: FeatureTarget, text: list[int], drafted: list[int]) -> Tensor:
    """Return osd's logits (γ, V) after a text, where these tokens are drafted."""
    decoder, tokens, found = ours.decoder(1, 256), torch.tensor([text]), list[Tensor]()
    features, _ = read_features(target.module, tokens[:, :-1], ours.draft.feature_layers(target.module))
    hidden = decoder.read([0], features, tokens[:, 1:], [len(text) - 1], ahead=len(drafted))
    for step, token in enumerate(drafted):
        found.append(decoder.logits(hidden, step)[0])
        hidden = decoder.go_on([len(text) - 1 + step], hidden, torch.tensor([token]))
    return torch.stack(found)


def accepted(drafted: list[int], followed: list[int]) -> int:
    """Return how many drafted tokens are those that followed."""
    same = [one == other for one, other in zip(drafted, followed, strict=False)]
    return same.index(False) if False in same else len(same)
