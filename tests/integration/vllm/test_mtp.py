"""An MTP head: osd's and vLLM's own module say the same of the same checkpoint, token by token, in float32; a running
vLLM takes a newer head, and nothing of the target with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file

from benchmarks.vllm.server import PLUGIN, WORKER, plugin_variables
from benchmarks.vllm.server import vllm_server as server
from osd.attached.vllm.engine import VllmEngine, trial_prompt
from osd.attached.vllm.plugin.osd_vllm.weights import weights_digest
from osd.demo import TARGET
from osd.models.features.checkpoint import merge_heads, take_heads
from osd.models.features.decoder import load_feature_model
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.target import FeatureTarget
from osd.models.model_digest import model_digest
from osd.models.pair import load_model
from tests.integration.vllm.chains_of_vllm import GAMMA, NEW
from tests.integration.vllm.conftest import TOKEN, some_prompts
from tests.integration.vllm.heads import alone
from tests.integration.vllm.test_eagle31 import require_same, vllm_chains
from tests.support.models import prepared
from tests.support.plain_mtp import random_head

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random target of MiMo's shape with a random MTP head, in the shipped target's vocabulary."""
    root = tmp_path_factory.mktemp("mimo")
    words = json.loads((TARGET / "config.json").read_text())
    config = tf.Qwen2Config(
        vocab_size=words["vocab_size"], hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=192, max_position_embeddings=1024, tie_word_embeddings=True,
        eos_token_id=words["eos_token_id"],
    )  # fmt: skip
    prepared(config).save_pretrained(root / "plain")
    for path in TARGET.iterdir():
        if "token" in path.name:
            shutil.copy(path, root / "plain")
    merged(root / "plain", root, 4)
    return root / "merged4"


def merged(plain: Path, root: Path, seed: int) -> Path:
    """Write a random head beside a target and into it; return the head's folder."""
    target = FeatureTarget(load_model(str(plain), torch.device("cpu"), "float32").module)
    save_feature_draft(random_head(target, seed), root / f"head{seed}", target)
    (root / f"merged{seed}").mkdir()
    merge_heads(root / f"head{seed}", plain, root / f"merged{seed}")
    return root / f"head{seed}"


@pytest.mark.parametrize("own", [False, True], ids=["in the checkpoint", "in a folder of its own"])
def test_chains_of_four_are_vllms(own: bool, checkpoint: Path, tmp_path: Path) -> None:
    model = load_model(str(checkpoint), torch.device("cpu"), "float32")
    target, head = FeatureTarget(model.module, str(checkpoint)), tmp_path / "head"
    head.mkdir()
    assert take_heads(checkpoint, head)
    if own:
        save_feature_draft(load_feature_draft(head, target), head, target, whole=True)
    prompts = some_prompts("sql", 6)
    method = {"method": "mtp", "num_speculative_tokens": GAMMA} | ({"model": str(head)} if own else {})
    theirs = vllm_chains(checkpoint, prompts, tmp_path, method)
    require_same(load_feature_model(head, model), target, prompts, theirs, GAMMA)
    answers = [theirs[f"tokens.{number}"].tolist() for number in range(len(prompts))]
    assert answers == [answer[:NEW] for answer in alone(checkpoint, prompts)]


def test_a_running_vllm_takes_a_newer_head_and_nothing_of_the_target(
    checkpoint: Path, python: Path, plugin: str, tmp_path: Path
) -> None:
    before, newer = model_digest(str(checkpoint)), merged(checkpoint.parent / "plain", tmp_path, 9)
    variables = plugin_variables(tmp_path, TOKEN, "http://127.0.0.1:9") | {"PYTHONPATH": plugin, "OSD_VLLM_SPOOL": ""}
    speculation = ("--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": 4}))
    with server(python, checkpoint, tmp_path / "log", (*speculation, *PLUGIN, *WORKER), variables) as url:
        engine = VllmEngine(url, TOKEN)
        facts = engine.probe()
        assert (facts.method, facts.digest) == ("mtp", before)
        assert facts.serves == weights_digest(checkpoint) == weights_digest(checkpoint.parent / "head4")
        answers = [engine.complete(trial_prompt(number), 24) for number in range(4)]
        ranks = engine.publish(newer, weights_digest(newer), "newer")
        assert [rank.sha256 for rank in ranks] == [weights_digest(newer)] != [facts.serves]
        assert [engine.complete(trial_prompt(number), 24) for number in range(4)] == answers
        with pytest.raises(Exception, match="lm_head"):
            engine.publish(spoilt(newer, checkpoint, tmp_path), weights_digest(tmp_path / "spoilt"), "spoilt")
    assert model_digest(str(checkpoint)) == before


def spoilt(head: Path, checkpoint: Path, folder: Path) -> Path:
    """A head's folder with an output layer that is not the target's."""
    from safetensors.torch import save_file

    shutil.copytree(head, folder / "spoilt")
    other = load_file(checkpoint / "model.safetensors")["lm_head.weight"] + 1
    tensors = load_file(head / "model.safetensors") | {"lm_head.weight": other}
    save_file(tensors, folder / "spoilt" / "model.safetensors", metadata={"format": "pt"})
    return folder / "spoilt"
