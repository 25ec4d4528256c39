"""EAGLE-3.1's fields and a window, each on and off: whole texts, gradients, cached chains and trees, against a plain
draft of the same folder; and folders that keep them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from osd.attached.vllm.plugin.osd_vllm.weights import Refused, check, shapes, weights_digest
from osd.draft_tree import Tree
from osd.models.attention_metadata import lay_out
from osd.models.features.decoder import feature_model
from osd.models.features.eagle import Eagle3Draft
from osd.models.features.files import load_feature_draft, save_feature_draft
from osd.models.features.target import FeatureTarget, read_features
from tests.support.models import model_of, random_module, some
from tests.support.plain_eagle3 import VARIANTS, plain_chain, random_eagle3

LENGTH, STEPS = 9, 4
Texts = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def target() -> FeatureTarget:
    return FeatureTarget(random_module("llama"), "the-target")


def texts_of(target: FeatureTarget, draft: Eagle3Draft) -> Texts:
    """Tokens (2, T) and what the draft reads of them."""
    tokens = some(2, LENGTH, 3)
    return tokens, read_features(target.module, tokens, draft.feature_layers(target.module))[0]


def plain_steps(
    draft: Eagle3Draft, target: FeatureTarget, texts: Texts, row: int, column: int, facts: dict[str, Any]
) -> list[torch.Tensor]:
    """What a plain draft of the same weights says at a column, as far as the text's own tokens reach."""
    tokens, features = texts
    weights = {name.replace("layers.0.", "midlayer."): each for name, each in draft.named_parameters()}
    known, steps = tokens[row, 1:].tolist(), min(STEPS, LENGTH - 1 - column)
    of = target.embeddings, target.head.weight
    return plain_chain(weights, facts, *of, features[row, : column + 1], known, steps)


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_and_gradients_are_those_of_a_plain_draft(variant: str, target: FeatureTarget) -> None:
    draft = random_eagle3(target, variant).requires_grad_(True)
    facts, texts = draft.config.to_dict(), texts_of(target, draft)
    ours = draft.unroll(texts[1], texts[0], target.embed, target.head, STEPS)
    loss, same = torch.zeros(()), torch.zeros(())
    for row in range(2):
        for column in range(LENGTH - 1):
            for step, plain in enumerate(plain_steps(draft, target, texts, row, column, facts)):
                assert torch.allclose(ours[step].logits[row, column], plain, atol=1e-4)
                loss = loss + ours[step].logits[row, column].log_softmax(-1)[5]
                same = same + plain.log_softmax(-1)[5]
    weights = list(draft.parameters())
    for one, other in zip(torch.autograd.grad(loss, weights), torch.autograd.grad(same, weights), strict=True):
        assert one.any() and torch.allclose(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_field_changes_what_is_said(variant: str, target: FeatureTarget) -> None:
    """Otherwise the test above would hold whatever is computed."""
    draft = random_eagle3(target, variant)
    texts = texts_of(target, draft)
    facts = draft.config.to_dict()
    for name in VARIANTS[variant]:
        other = facts | {name: 1 if name == "sliding_window" else None}
        steps = [plain_steps(draft, target, texts, 0, 4, each) for each in (facts, other)]
        assert any(not torch.allclose(one, other, atol=1e-2) for one, other in zip(*steps, strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_a_cached_chain_is_that_of_a_plain_draft(variant: str, target: FeatureTarget) -> None:
    draft = random_eagle3(target, variant)
    texts, model = texts_of(target, draft), model_of(target.module)
    tokens, features = texts
    decoder = feature_model("draft", draft, model).decoder(2, 64)
    decoder.read([0, 0], features[:, :2], tokens[:, 1:3], [2, 2])
    hidden = decoder.read([2, 2], features[:, 2:5], tokens[:, 3:6], [3, 3])
    plain = [plain_steps(draft, target, texts, row, 4, draft.config.to_dict()) for row in range(2)]
    for step in range(LENGTH - 6):
        assert torch.allclose(decoder.logits(hidden), torch.stack([steps[step] for steps in plain]), atol=1e-4)
        hidden = decoder.go_on([5 + step] * 2, hidden, tokens[:, 6 + step])


@pytest.mark.parametrize("variant", ["norm_output", "window", "all"])
@torch.inference_mode()
def test_a_node_of_a_tree_is_the_chain_to_it(variant: str, target: FeatureTarget) -> None:
    """Four levels of three nodes, so that nodes of a level stand further apart than the window sees."""
    draft = random_eagle3(target, variant)
    tokens, features = texts_of(target, draft)
    decoder = feature_model("draft", draft, model_of(target.module)).decoder(1, 64)
    tree, parents = Tree(), [0, 0, 0]
    lines: list[list[int]] = [[], [], []]
    hidden = decoder.read([0], features[:1, :5], tokens[:1, 1:6], [5]).unsqueeze(1).expand(-1, 3, -1)
    weights = {name.replace("layers.0.", "midlayer."): each for name, each in draft.named_parameters()}
    for level in range(4):
        new = [3 + 7 * level + each for each in range(3)]
        parents = [tree.add(parent, token) for parent, token in zip(parents, new, strict=True)]
        lines = [[*line, token] for line, token in zip(lines, new, strict=True)]
        seen = lay_out([tree], len(tree) + 1, decoder.device).seen[:, -3:, 1:]
        layout = torch.full((1, 3), level), seen
        hidden = decoder.branch([5], 3 * level, layout, hidden, torch.tensor([new]))
        for node, line in enumerate(lines):
            known, facts = [*tokens[0, 1:6].tolist(), *line], draft.config.to_dict()
            of = target.embeddings, target.head.weight
            plain = plain_chain(weights, facts, *of, features[0, :5], known, level + 2)[-1]
            assert torch.allclose(decoder.logits(hidden)[0, node], plain, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_folder_keeps_the_fields(variant: str, target: FeatureTarget, tmp_path: Path) -> None:
    draft = random_eagle3(target, variant)
    save_feature_draft(draft, tmp_path, target)
    facts = json.loads((tmp_path / "config.json").read_text())
    assert {name: facts[name] for name in VARIANTS[variant]} == VARIANTS[variant]
    again, texts = load_feature_draft(tmp_path, target), texts_of(target, draft)
    for one, other in zip(
        *(each.unroll(texts[1], texts[0], target.embed, target.head, STEPS) for each in (draft, again)), strict=True
    ):
        assert torch.equal(one.logits, other.logits)
    names = {name.split(".")[0] for name in load_file(tmp_path / "model.safetensors")}
    norms = {"input_norm": "norm_before_fc", "fc_norm": "fc_norm"}
    assert names - {"fc", "midlayer", "norm"} == {name for name, flag in norms.items() if facts.get(flag)}


@pytest.mark.parametrize("name", ["norm_output", "norm_before_residual", "window"])
def test_a_running_vllm_refuses_a_version_that_computes_otherwise(
    name: str, target: FeatureTarget, tmp_path: Path
) -> None:
    """These fields have no tensor whose shape would tell."""
    folders = {variant: tmp_path / variant for variant in ("3", name)}
    for variant, folder in folders.items():
        save_feature_draft(random_eagle3(target, variant), folder, target)
    for one, other in ((name, "3"), ("3", name)):
        field = "sliding_window" if name == "window" else name
        with pytest.raises(Refused, match=f"^{field} is "):
            published(folders[other], over=folders[one])
        save_feature_draft(load_feature_draft(folders[one], target), tmp_path / "newer", target)
        assert published(tmp_path / "newer", over=folders[one])


def published(folder: Path, *, over: Path) -> dict[str, torch.Tensor]:
    """What a vLLM that was started with a folder would load of another."""
    loaded = SimpleNamespace(**json.loads((over / "config.json").read_text()))
    return check(folder, weights_digest(folder), loaded, shapes(over), {})
