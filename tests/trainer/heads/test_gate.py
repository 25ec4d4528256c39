"""The gate for heads: a better predictor passes, an equal or worse one does not; training that breaks says so."""

from __future__ import annotations

import math

import pytest
import torch

from osd.models.acceptance_head import AcceptanceHead, HeadConfig
from storage.settings import GateSettings, LearnSettings
from trainer.distil.optimizer import steps_done
from trainer.distil.step import NotFinite
from trainer.heads.examples import HeadExamples
from trainer.heads.fit import adam, binary_kl, calibration_error, fit
from trainer.heads.learner import judge, score_both

GATE = GateSettings(confidence=0.95)


def head(slope: float, weight: float = 6.0) -> AcceptanceHead:
    """Estimates sigmoid(slope · the first number)."""
    made = AcceptanceHead(HeadConfig(4, 0, weight, "", ""))
    with torch.no_grad():
        made.out.weight[0, 0] = slope
        made.out.bias.fill_(-math.log(weight))
    return made


def examples(requests: int = 20, each: int = 10, seed: int = 0) -> HeadExamples:
    """Tokens whose chance is sigmoid(2 · the first number)."""
    g = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(requests * each, 4, generator=g)
    return HeadExamples(embeddings, (2 * embeddings[:, 0]).sigmoid(), torch.arange(requests).repeat_interleave(each))


@pytest.mark.parametrize(
    ("before", "after", "better", "worse"),
    [(0.0, 2.0, True, False), (2.0, 0.0, False, True), (2.0, 2.0, False, False), (0.0, 1.0, True, False)],
)
def test_who_passes(before: float, after: float, better: bool, worse: bool) -> None:
    verdict = judge([score_both(head(before), head(after), examples())], GATE)
    assert (verdict.better, verdict.worse) == (better, worse)
    evidence = verdict.evidence
    assert (evidence["requests"], evidence["positions"]) == (20, 200)
    for name, slope in (("before", before), ("after", after)):
        logits, chances = slope * examples().embeddings[:, 0], examples().chances
        assert evidence[f"kl_{name}"] == pytest.approx(float(binary_kl(chances, logits).mean()), abs=1e-5)
        expected = calibration_error(chances, logits.sigmoid())
        assert evidence[f"calibration_{name}"] == pytest.approx(expected, abs=1e-5)


def test_heads_of_different_weights_compare() -> None:
    verdict = judge([score_both(head(2.0, 6.0), head(2.0, 1.0), examples())], GATE)
    assert verdict.evidence["gain"] == pytest.approx(0.0, abs=1e-6)


def test_one_request_proves_nothing_and_none_is_said() -> None:
    assert not judge([score_both(head(0.0), head(2.0), examples(1))], GATE).better
    verdict = judge([None, score_both(head(0.0), head(2.0), None)], GATE)
    assert not verdict.better and verdict.evidence["reason"] == "nothing to judge on"


def test_what_was_judged_before_and_after_is_pooled() -> None:
    lots = [score_both(head(0.0), head(2.0), examples(n, seed=n)) for n in (5, 8)]
    assert judge(lots, GATE).evidence["requests"] == 13


def test_fitting_finds_the_chances_and_goes_on_from_its_moments() -> None:
    learn = LearnSettings(head_learning_rate=2e-2, head_epochs=40, head_batch=64)
    student, data = head(0.0), examples(60)
    optimizer = adam(student, learn)
    done = fit(student, data, learn, optimizer=optimizer)
    assert done.tokens == 600 and done.steps == 40 * 10 and done.loss_last < done.loss_first
    assert float(binary_kl(data.chances, student.estimate(data.embeddings).detach()).mean()) < 0.01
    fit(student, data, learn, optimizer=optimizer)
    assert steps_done(optimizer) == 2 * done.steps


def test_a_loss_that_is_no_number_ends_the_run() -> None:
    data = examples()
    data.embeddings[3] = torch.nan
    with pytest.raises(NotFinite):
        fit(head(1.0), data, LearnSettings())
