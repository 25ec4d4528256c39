"""Texts drawn from target and draft together: beside a plain loop, with the target's say at each token; and offline
distillation on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from osd.models.encoder_decoder import decoder_inputs, own_forward
from osd.models.model import Model
from osd.verification.warping import Warp
from storage.errors import BadInput
from storage.records import RequestSamples
from storage.replay.exports import write_export
from storage.sampling import Sampling
from storage.settings import Settings
from tests.support.encoder_decoders import KINDS, random_encoder_decoder
from tests.trainer.models import VOCAB, answers, random_prompts, samples_of, tiny_llama
from trainer.distil.gate import score
from trainer.distil.offline import DrawnWith, SampleSelection, distil_offline
from trainer.distil.on_policy import ROWS, TextMixer

EOS = 7


def model_of(module: PreTrainedModel) -> Model:
    return Model("tiny", module, 128, own_forward)


def mixer(target: PreTrainedModel, draft: PreTrainedModel, share: float, sampling: Sampling) -> TextMixer:
    return TextMixer(model_of(target), frozenset([EOS]), share, sampling, model_of(draft), k=8)


@torch.inference_mode()
def plain_text(
    target: PreTrainedModel, draft: PreTrainedModel, asked: RequestSamples, share: float, sampling: Sampling,
    chances: list[float],
) -> tuple[list[int], list[torch.Tensor]]:  # fmt: skip
    """One text, token by token, by whole passes and the inverse of the cumulated sum."""
    text, said = asked.tokens[: asked.prompt_len].tolist(), []
    warp = Warp([sampling], VOCAB, torch.device("cpu"))
    for chance in chances[: len(asked.tokens) - asked.prompt_len]:
        read = torch.tensor([text])
        logits, other = (
            m(**decoder_inputs(m, read, asked.prompt_len - 1)).logits[:, -1:].float() for m in (target, draft)
        )
        mixed = (share * warp(logits) + (1 - share) * warp(other))[0, 0].double().cumsum(0)
        text.append(int((mixed <= chance * mixed[-1]).sum()))
        said.append(logits[0, 0].log_softmax(-1))
        if text[-1] == EOS:
            break
    return text, said


@pytest.mark.parametrize(
    ("share", "sampling"),
    [(0.0, Sampling(1.0)), (0.5, Sampling(0.8, top_p=0.9)), (0.3, Sampling()), (1.0, Sampling(1.0))],
)
def test_texts_are_drawn_token_by_token_from_both(share: float, sampling: Sampling) -> None:
    target, draft = tiny_llama(1, spread=0.1), tiny_llama(2, spread=0.1)
    asked = answers(target, random_prompts(3, 4) + random_prompts(ROWS, 6), new=9)
    ended = check(target, draft, asked, share, sampling)
    assert ended or sampling.greedy  # some texts end before the others, and no one's numbers move


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_so_they_are_where_an_encoder_reads_the_prompt(kind: str, share: float) -> None:
    target, draft = (random_encoder_decoder(kind, VOCAB, seed) for seed in (1, 2))
    start = target.generation_config.decoder_start_token_id
    asked = [samples_of([*read, start, *range(9, 15)], range(len(read) + 1, len(read) + 7), prompt_len=len(read) + 1)
             for read in random_prompts(3, 4) + random_prompts(5, 9)]  # fmt: skip
    check(target, draft, asked, share, Sampling(1.0))


def check(
    target: PreTrainedModel, draft: PreTrainedModel, asked: list[RequestSamples], share: float, sampling: Sampling
) -> int:
    """Draw texts and compare them with plain ones; return how many ended early."""
    found = mixer(target, draft, share, sampling)(draft, asked, seed=4)
    rng, ended = np.random.default_rng(4), 0
    for begin in range(0, len(asked), ROWS):
        some = asked[begin : begin + ROWS]
        drawn = found[begin : begin + ROWS]
        steps = max(len(text.tokens) - text.prompt_len for text in drawn)
        chances = np.array([rng.random(len(some)) for _ in range(steps)])
        for row, (one, text) in enumerate(zip(some, drawn, strict=True)):
            tokens, said = plain_text(target, draft, one, share, sampling, chances[:, row].tolist())
            assert text.tokens.tolist() == tokens
            assert text.positions.tolist() == list(range(one.prompt_len, len(tokens)))
            top = torch.stack(said).topk(8)
            assert np.allclose(text.topk_logprobs.astype(np.float32), top.values, atol=1e-2)
            assert np.allclose(text.outside, 1 - top.values.exp().sum(1), atol=1e-4)
            ended += tokens[-1] == EOS
    return ended


def test_a_texts_share_of_the_targets_tokens_is_what_was_asked_for() -> None:
    """Greedy: each token is the target's likeliest with chance β, else the draft's."""
    target, draft = tiny_llama(1), tiny_llama(2)
    asked = answers(target, random_prompts(64, 4), new=8)
    for share in (0.0, 0.25):
        texts = mixer(target, draft, share, Sampling())(draft, asked, seed=0)
        apart = [text.kinds == 1 for text in texts]
        own = [text.tokens[text.positions] == text.topk_ids[:, 0] for text in texts]
        taken = np.concatenate([mine[where] for mine, where in zip(own, apart, strict=True)])
        assert len(taken) > 200  # where they disagree
        # five standard errors: a false alarm in 1.7 million
        assert abs(taken.mean() - share) <= 5 * (share * (1 - share) / len(taken)) ** 0.5


@pytest.mark.parametrize("sampling", ["student", "mixed"])
def test_offline_distillation_draws_anew_in_each_epoch(tmp_path: Path, settings: Settings, sampling: str) -> None:
    target, draft = tiny_llama(1), tiny_llama(2)
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(tmp_path / name)
    samples = answers(target, random_prompts(16), new=12)
    write_export(tmp_path / "samples.parquet", [samples], overwrite=False)
    own = settings.changed(learn={"sampling": sampling, "epochs": 8}, storage={"top_k": 8})
    chosen, drawn = (
        SampleSelection(samples=tmp_path / "samples.parquet"),
        DrawnWith(str(tmp_path / "target"), Sampling(1.0)),
    )
    done = distil_offline(own, tmp_path / "draft", tmp_path / "out", chosen, drawn=drawn)
    assert done["requests"] == 16 and done["drawn_seconds"] > 0 and done["loss_last"] < done["loss_first"]
    learned = type(draft).from_pretrained(tmp_path / "out")
    assert score(learned, samples).expected.sum() > 1.1 * score(draft, samples).expected.sum()


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, settings: Settings) -> None:
    write_export(tmp_path / "samples.parquet", [answers(tiny_llama(1), random_prompts(2))], overwrite=False)
    tiny_llama(2).save_pretrained(tmp_path / "draft")
    chosen, out = SampleSelection(samples=tmp_path / "samples.parquet"), tmp_path / "out"
    with pytest.raises(BadInput, match="Teacher sampling learns the recorded texts"):
        distil_offline(settings, tmp_path / "draft", out, chosen, drawn=DrawnWith("target", Sampling(1.0)))
    student = settings.changed(learn={"sampling": "student"})
    with pytest.raises(BadInput, match=r"no samples with tokens behind refused ones.*--target"):
        distil_offline(student, tmp_path / "draft", out, chosen)
    assert not out.exists()
