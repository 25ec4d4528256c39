"""`osd drafts examine`: what it reads of answers is what serving accepts; what it says of a draft names the cause; and
what it leaves."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from osd.bench.examine.examine import ExaminedPair, examine
from osd.bench.examine.figures import Figures, figures_of
from osd.bench.examine.reading import classes_of, looked_up, read_answer, rounds_of
from osd.bench.examine.verdict import verdict
from osd.bench.plans import Examination
from osd.demo import DRAFT, TARGET
from osd.demo.prompts import prompts as shipped
from osd.engine.engine import Engine
from osd.models.features.decoder import feature_target
from osd.models.features.files import save_feature_draft
from osd.models.features.new import new_feature_draft
from osd.models.pair import Pair, load_pair
from osd.models.weights import read_weights
from router.throughput import Costs
from storage.records import Request
from storage.settings import Settings, load_settings
from tests.support.features import feature_pair
from tests.support.models import model_of, prompts, random_module, random_pair

GAMMA, NEW = 4, 24
COSTS = Costs(1.0, [10.0 + 0.5 * width for width in range(9)])


def settings() -> Settings:
    return load_settings(gamma={"rule": "fixed", "initial": GAMMA}, serve={"device": "cpu", "max_length": 128})


@pytest.mark.parametrize("kind", ["model", "eagle", "mtp", "medusa"])
def test_what_is_read_is_what_serving_accepts(kind: str) -> None:
    """Round by round: how many there are, and how far each chain came."""
    pair = random_pair() if kind == "model" else feature_pair(kind)
    judged: list[int] = []
    for done in Engine(pair, settings()).run([Request(p, max_new_tokens=NEW) for p in prompts(6)]):
        reading, place = read_answer(pair, done.request.prompt_tokens, done.tokens, "any"), 0
        for one in done.rounds:
            if place and place + GAMMA < len(done.tokens):
                steps = min(GAMMA, len(reading.right))
                chain = [bool(reading.right[step, place - 1 + step]) for step in range(steps)] + [False]
                assert one.drafted == steps and one.accepted == chain.index(False)
                judged.append(one.accepted)
            place += one.accepted + 1
    assert len(judged) > 10 and len(set(judged)) > 1


def test_rounds_are_those_of_a_plain_count() -> None:
    right = np.array([[True, True, False, True, True, True], [True, False, False, True, True, True]])
    rounds, counts = rounds_of(right, 2)  # place 0 is right and 1 is not; 2 is not; 3 and 4 are, and 5 is the target's
    assert rounds == 3 and counts.tolist() == [[3, 2], [2, 1]]


def test_the_overlap_is_the_sum_of_the_lesser_chances() -> None:
    pair = random_pair()
    prompt, answer = prompts(1)[0], prompts(2, seed=5)[1]
    reading = read_answer(pair, prompt, answer, "any")
    tokens = torch.tensor([[*prompt, *answer]])
    p, q = (model.module(tokens).logits[0].softmax(-1) for model in (pair.target, pair.draft))
    plain = torch.minimum(p, q).sum(-1)[len(prompt) : len(prompt) + len(answer) - 1]
    assert np.allclose(reading.overlap, plain.detach().numpy(), atol=1e-4)


def test_lookup_and_classes_are_as_they_are_said() -> None:
    assert looked_up([1, 2, 3, 1, 2, 3, 1, 2, 9], 4).tolist() == [True, True, True, False]
    pieces = ["Ask", " Anna", " for", " 12", "\n", "x", " = ", "f(2)", "\n", ", ", "<tool_call>", "go"]
    assert classes_of(pieces) == [
        "names", "names", "words", "digits", "white space", "code", "code", "code", "white space", "punctuation",
        "behind a tool call", "behind a tool call",
    ]  # fmt: skip


def figures(pair: Pair, count: int = 10) -> Figures:
    done = Engine(pair, settings()).run([Request(p, max_new_tokens=NEW) for p in prompts(count)])
    readings = [read_answer(pair, one.request.prompt_tokens, one.tokens, "any") for one in done]
    return figures_of(readings, None, pair.eos_ids, COSTS)


def test_a_draft_of_another_target_and_one_that_learned_nothing_are_told_apart(tmp_path: Path) -> None:
    foreign = read_weights(DRAFT, torch.float32)
    rows = foreign.get_output_embeddings().weight.detach()
    own = torch.nn.Linear(rows.shape[1], len(rows), bias=False)
    own.weight = torch.nn.Parameter(rows.roll(7, 0))  # sure of its tokens, by another numbering
    foreign.config.tie_word_embeddings = False
    foreign.set_output_embeddings(own)
    foreign.save_pretrained(tmp_path / "foreign")
    for file in DRAFT.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "foreign")
    asked = tmp_path / "asked.jsonl"
    asked.write_text("\n".join(json.dumps({"prompt": text}) for text in shipped("sql", 5)))
    plan = Examination(str(tmp_path / "foreign"), prompts=[asked], count=5, max_tokens=16, out=tmp_path / "out")
    found = examine(plan, str(TARGET), tmp_path / "foreign", [], settings())
    assert found.findings[0].startswith("This draft was made for another target"), found.findings
    assert found.figures is not None
    unsure = replace(found.figures, confidence=0.1)
    assert verdict(unsure, {}, None)[0].startswith("This draft has learned nothing yet")
    assert verdict(found.figures, {}, None, bound=True)[0].startswith("This draft has learned nothing yet")


def test_a_draft_of_random_weights_made_for_this_target_has_learned_nothing(tmp_path: Path) -> None:
    target = feature_target(load_pair(str(TARGET), DRAFT, device="cpu", dtype="float32").target)
    save_feature_draft(new_feature_draft("eagle", target), tmp_path / "draft", target)
    asked = tmp_path / "asked.jsonl"
    asked.write_text("\n".join(json.dumps({"prompt": text}) for text in shipped("sql", 5)))
    plan = Examination(str(tmp_path / "draft"), prompts=[asked], count=5, max_tokens=16, out=tmp_path / "out")
    found = examine(plan, str(TARGET), tmp_path / "draft", [], settings())
    assert found.findings[0].startswith("This draft has learned nothing yet"), found.findings


def group(name: str, alpha: float, positions: int = 400) -> dict[str, Any]:
    return {"group": name, "positions": positions, "alpha": alpha, "right": alpha, "error": 0.01}


@pytest.fixture(scope="module")
def good() -> Figures:
    return replace(figures(feature_pair("eagle"), 4), alpha=0.6, right=0.6, ends=(10, 9))


def test_what_it_never_learned_is_named(good: Figures) -> None:
    by = {"class": [group("words", 0.7), group("code", 0.2)], "topic": [], "context": [group("64 to 256", 0.6)]}
    assert verdict(replace(good, by=by), {}, None)[0].startswith("It never learned code: of such tokens 0.20 are")
    by |= {
        "class": [group("words", 0.6), group("code", 0.5)],
        "context": [group("0 to 64", 0.7), group("64 to 256", 0.1)],
    }
    assert verdict(replace(good, by=by), {}, None)[0].startswith("It knows other lengths of text: at 64 to 256")
    by["topic"] = [group("sql", 0.7), group("code", 0.1)]
    both = verdict(replace(good, by=by), {}, None)
    assert both[0].startswith("It never learned code") and not any("other lengths" in each for each in both)
    few = {"class": [group("words", 0.7), group("code", 0.2, 20)]}
    assert verdict(replace(good, by=few), {}, None)[0].startswith(("Serve", "Do not", "Draft by"))


def test_a_wrong_template_and_end_are_named(good: Figures) -> None:
    bad = replace(good, alpha=0.3, right=0.3, by={})
    said = verdict(bad, {"without a chat template": good}, "another chat template")
    assert said[0].startswith("The chat template is wrong") and "0.60 without a chat template" in said[0]
    assert "chat template" not in verdict(good, {"without a chat template": bad}, None)[0]
    ended = verdict(replace(good, answers=4, empty=8), {"in the target's chat template": good}, None)[0]
    assert ended.startswith("The chat template is wrong: as you serve 67% of the answers end at once, and 0% in the")
    strange = replace(good, alpha=0.04, right=0.04, confidence=0.6, by={})  # and hardly better in another template
    assert verdict(strange, {"raw": replace(good, alpha=0.1)}, None)[0].startswith("This draft was made for another")
    assert any("past the end" in each for each in verdict(replace(good, by={}, ends=(10, 0)), {}, None))


def test_it_leaves_a_page_a_picture_and_numbers(tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text("\n".join(json.dumps({"prompt": text}) for text in shipped("sql", 5)))
    plan = Examination(str(DRAFT), prompts=[asked], count=5, max_tokens=16, out=tmp_path / "out")
    found = examine(plan, str(TARGET), DRAFT, [], settings())
    page, numbers = found.files["page"].read_text(), json.loads(found.files["numbers"].read_text())
    assert found.findings[0] in page.replace("&#39;", "'") and "data:image/png" in page
    assert numbers["sentence"] == found.findings[0] and found.files["picture"].stat().st_size > 1000
    assert {"depth", "class", "topic", "context"} == numbers["figures"]["by"].keys()
    assert numbers["figures"]["positions"] == sum(row["positions"] for row in numbers["figures"]["by"]["class"])
    assert all(row["speed"] and row["lookup speed"] for row in found.figures.gammas), "whatever the rule, it was timed"


@pytest.mark.parametrize(("kind", "passes"), [("eagle", True), ("medusa", False)])
def test_a_draft_that_drafts_all_tokens_at_once_costs_one_pass(kind: str, passes: bool) -> None:
    plan = Examination("draft", max_tokens=NEW)
    costs = ExaminedPair(feature_pair(kind), settings(), plan).costs()
    assert costs and (costs.draft_ms > 0) is passes and costs.verify_ms[1] > 0


def test_a_draft_that_names_another_target_is_told_at_once(tmp_path: Path) -> None:
    target = replace(feature_target(model_of(random_module("llama"))), digest="ab" * 32)
    save_feature_draft(new_feature_draft("eagle", target), tmp_path / "draft", target)
    plan = Examination(str(tmp_path / "draft"), prompts=[tmp_path / "none"], out=tmp_path / "out")
    found = examine(plan, str(TARGET), tmp_path / "draft", [], settings())
    assert "does not go with this target" in found.findings[0] and "abababab" in found.findings[0]
    assert found.figures is None and found.files["page"].is_file()
