"""The bench of acceptance by set of prompts, on tiny pairs."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.acceptance import AnsweredPrompt, _names, draw, read_all, read_answer
from osd.bench.harness.plan import sampling_of
from osd.bench.harness.watch import Watch
from osd.models.features.target import FeatureTarget, read_features
from storage.settings import load_settings
from tests.support.models import model_of, noisy, prompts, random_module, random_pair
from tests.support.plain_features import plain_step
from tests.trainer.feature_drafts import KINDS, answered, feature_draft, tiny_target


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """The target itself, a near copy and a stranger as drafts, over two sets."""
    pair = random_pair("llama")
    strangers = {"near": model_of(noisy(pair.target.module, 0.05)), "far": model_of(random_module("llama", seed=7))}
    sets = {"one": prompts(4, seed=1), "two": prompts(3, seed=2)}
    settings = load_settings(serve={"max_length": 64, "max_batch": 2})
    return read_all(pair, {"itself": pair.target} | strangers, sets, settings, 8, Watch())


def test_the_target_agrees_with_itself_and_others_less_the_further_they_are(figures: dict[str, Any]) -> None:
    for kind in ("right", "overlap"):
        shares = figures[kind]["all"]
        assert shares["itself"] == pytest.approx(1.0, abs=1e-5) and shares["itself"] > shares["near"] > shares["far"]


def test_sampled_answers_are_read_by_what_they_were_drawn_from() -> None:
    """The target accepts itself everywhere, and is not always the likeliest token itself."""
    pair, sampling = random_pair("llama"), sampling_of(0.7, 0.9)
    settings = load_settings(serve={"max_length": 64, "max_batch": 2})
    found = read_all(pair, {"itself": pair.target}, {"one": prompts(4, seed=1)}, settings, 8, Watch(), sampling)
    assert found["overlap"]["all"]["itself"] == pytest.approx(1.0, abs=1e-5)
    assert found["right"]["all"]["itself"] < 1.0


def test_all_is_the_mean_over_the_positions_of_the_sets(figures: dict[str, Any]) -> None:
    counts = figures["positions"]
    assert counts == {"one": 32, "two": 24, "all": 56}
    for kind in ("right", "overlap"):
        one, two, both = (figures[kind][name]["near"] for name in ("one", "two", "all"))
        assert both == pytest.approx((one * 32 + two * 24) / 56)


def test_it_draws_a_line_a_set(figures: dict[str, Any], tmp_path: Path) -> None:
    assert draw(figures, tmp_path).stat().st_size > 1000


def test_drafts_of_one_name_are_told_apart() -> None:
    assert _names(["runs/v1", "runs/v2"]) == ["v1", "v2"]
    assert _names(["a/one/draft", "a/other/draft"]) == ["one/draft", "other/draft"]
    assert _names(["a/one/draft", "b/one/draft"]) == ["a/one/draft", "b/one/draft"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_feature_draft_is_read_as_its_plain_chains_would_be_drafted(kind: str) -> None:
    module = tiny_target(layers=3)
    target, draft = FeatureTarget(module), feature_draft(kind, module)
    (answer,) = answered(module, 1, 9)
    prompt, tokens = answer.tokens[: answer.prompt_len].tolist(), answer.tokens[answer.prompt_len :].tolist()
    (reading,) = read_answer(model_of(module), {"it": draft}, AnsweredPrompt("set", tuple(prompt), tuple(tokens)))
    text, place, rounds, right = [*prompt, *tokens], len(prompt) + 1, 0, 0
    firsts = [plain_chain(draft, target, text[:at], 1)[0] == text[at] for at in range(len(prompt) + 1, len(text))]
    while place < len(text):
        drafted = plain_chain(draft, target, text[:place], min(4, draft.heads if kind == "medusa" else 4))
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafted, text[place:-1], strict=False)))
        place, rounds = place + right + 1, rounds + 1
    assert (reading.right, reading.positions, reading.rounds) == (sum(firsts), len(firsts), rounds)


@torch.no_grad()
def plain_chain(draft: Any, target: FeatureTarget, text: list[int], count: int) -> list[int]:
    """The greedy chain after a text whose last token the target has not read yet."""
    features, _ = read_features(target.module, torch.tensor([text[:-1]]), draft.feature_layers(target.module))
    drafted: list[int] = []
    for step in range(count):
        logits = plain_step(draft, target, features[0], [*text[1:], *drafted], step)
        drafted.append(int(logits.argmax()))
    return drafted
