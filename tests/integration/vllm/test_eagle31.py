"""EAGLE-3.1's fields and windows: osd's draft and vLLM's own module say the same of the same folder, token by token,
in float32; so they do of a folder in the speculators library's form."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.vllm.server import cpu_variables
from osd.demo import TARGET
from osd.demo.runner.process import environment
from osd.models.features.decoder import FeatureModel, load_feature_model
from osd.models.features.files import save_feature_draft
from osd.models.features.new import first_vocabulary
from osd.models.features.speculators import rewrite_for_speculators
from osd.models.features.target import FeatureTarget, read_features
from osd.models.pair import load_model
from tests.integration.vllm.chains_of_vllm import GAMMA
from tests.integration.vllm.conftest import PYTHON, Tokens, some_prompts
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
    prompts = some_prompts("sql", 6)
    theirs = vllm_chains(TARGET, folder, prompts, tmp_path, "eagle3")
    require_same(load_feature_model(folder, model), target, prompts, theirs)


def require_same(
    ours: FeatureModel, target: FeatureTarget, prompts: Sequence[Tokens], theirs: Mapping[str, Tensor]
) -> None:
    """Require that osd's draft says after each round's text what vLLM's module said."""
    rounds = 0
    for number, prompt in enumerate(prompts):
        text = [*prompt, *theirs[f"tokens.{number}"].tolist()]
        place = len(prompt) + 1
        for said in theirs[f"logits.{number}"].split(GAMMA):
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
    target: Path, draft: Path | str, prompts: Sequence[Tokens], folder: Path, method: str
) -> dict[str, Tensor]:
    """Return what vLLM answers, and the logits of what it drafts."""
    (folder / "prompts.json").write_text(json.dumps(prompts))
    command = [PYTHON, SCRIPT, target, draft, folder / "prompts.json", folder / "found.safetensors", method]
    variables = environment() | cpu_variables() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": ""}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    return load_file(folder / "found.safetensors")


@torch.inference_mode()
def our_chain(ours: FeatureModel, target: FeatureTarget, text: list[int], drafted: list[int]) -> Tensor:
    """Return osd's logits (GAMMA, V) after a text, where these tokens are drafted."""
    decoder, tokens, found = ours.decoder(1, 256), torch.tensor([text]), list[Tensor]()
    features, _ = read_features(target.module, tokens[:, :-1], ours.draft.feature_layers(target.module))
    hidden = decoder.read([0], features, tokens[:, 1:], [len(text) - 1])
    for step, token in enumerate(drafted):
        found.append(decoder.logits(hidden)[0])
        hidden = decoder.go_on([len(text) - 1 + step], hidden, torch.tensor([token]))
    return torch.stack(found)


def accepted(drafted: list[int], followed: list[int]) -> int:
    """Return how many drafted tokens are those that followed."""
    same = [one == other for one, other in zip(drafted, followed, strict=False)]
    return same.index(False) if False in same else len(same)
