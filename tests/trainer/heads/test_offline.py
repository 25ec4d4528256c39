"""Token mixing against a loop over positions, and the commands that train and compare heads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from osd.demo.prompts import prompts as shipped
from osd.models.acceptance_head import digest_of_model, load_head
from osd.server.start import SHIPPED
from storage.sampling import Sampling
from tests.support.models import prompts, random_pair
from trainer.__main__ import app
from trainer.heads.offline import Proposals, mix, propose

PAIR = ("--target", SHIPPED / "target", "--draft", SHIPPED / "draft")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    texts = shipped("arithmetic", 24)
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in texts))
    return path


@torch.inference_mode()
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(0.7, top_k=5)])
def test_proposals_are_the_drafts_and_their_chances_the_rules(sampling: Sampling) -> None:
    pair = random_pair("llama", noise=0.3)
    prompt, answer = prompts(1, seed=2)[0], prompts(1, seed=3, longest=40)[0]
    proposals = propose(pair, prompt, answer, sampling, np.random.default_rng(0))
    for i in range(len(answer)):
        text = torch.tensor([[*prompt, *answer[:i]]])
        drafted = int(proposals.drafted[i])
        p, q = (model.module(text).logits[0, -1] for model in (pair.target, pair.draft))
        if sampling.temperature == 0:
            assert drafted == int(q.argmax())
            expected = float(drafted == int(p.argmax()))
        else:
            p, q = (warped(logits, sampling) for logits in (p, q))
            expected = min(1.0, float(p[drafted] / q[drafted]))
        assert float(proposals.chances[i]) == pytest.approx(expected, abs=1e-4)


def warped(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    logits = logits / sampling.temperature
    if sampling.top_k:
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[-1], -torch.inf)
    return logits.softmax(-1)


def test_token_mixing_by_hand() -> None:
    """Share 0.5 with the uniforms 0.9, 0.2, 0.7, 0.4: positions 1 and 3 are the target's, 0 and 2 are learnt from."""

    class Chance:
        def random(self, count: int) -> np.ndarray:
            return np.array([0.9, 0.2, 0.7, 0.4])[:count]

    proposals = Proposals(torch.tensor([11, 12, 23, 14]), torch.tensor([0.5, 1.0, 0.25, 0.0]))
    item = mix((1, 2), (21, 22, 23, 24), proposals, 0.5, Chance())
    assert item is not None
    assert item.tokens.tolist() == [1, 2, 11, 22, 23, 24]
    assert item.positions.tolist() == [2, 4] and item.drafted.tolist() == [11, 23]
    assert item.chances.tolist() == [0.5, 0.25] and not item.refused.any()  # fed in place, as the paper does
    assert mix((1, 2), (21, 22, 23, 24), proposals, 1.0, np.random.default_rng(0)) is None


def test_head_writes_a_folder_for_this_draft(questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    arguments = ("head", *PAIR, "--prompts", questions, "--out", out, "--max-tokens", 24, "--epochs", 2)
    done = call(*arguments, "--count", 12, "--json")
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["prompts"] == 12 and said["loss_last"] < said["loss_first"]
    config = load_head(out).config
    assert config.draft == config.trained_for == digest_of_model(SHIPPED / "draft")
    assert (config.depth, config.reject_weight) == (3, 6.0)
    again = call(*arguments)
    assert again.exit_code == 2 and "give the name of a new folder" in again.stderr


def test_head_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "ok"}\n{"prompt": ""}\n')
    done = call("head", *PAIR, "--prompts", bad, "--out", tmp_path / "head")
    assert done.exit_code == 2 and "line 2" in done.stderr and not (tmp_path / "head").exists()
