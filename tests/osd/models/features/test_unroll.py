"""Feature drafts over whole texts, against the chain at each place computed anew; and what they read of a target."""

from __future__ import annotations

import pytest
import torch

from osd.models.features.eagle import depths
from osd.models.features.new import KINDS, new_feature_draft
from osd.models.features.target import FeatureTarget, read_features
from tests.support.models import CONFIGS, VOCABULARY, random_module, some
from tests.support.plain_features import plain_step

LIST = [1, 4, 9, 16, 25, 36, 49, 64, 81]


def made(kind: str, target: FeatureTarget, token_map: list[int] | None = None):
    draft = new_feature_draft(kind, target, token_map=token_map)
    generator = torch.Generator().manual_seed(4)
    for weight in draft.parameters():
        weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return draft


@pytest.mark.parametrize("token_map", [None, LIST])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_at_each_place_is_the_chain_that_is_drafted_there(kind: str, token_map: list[int] | None) -> None:
    target = FeatureTarget(random_module("llama"))
    draft, tokens, steps = made(kind, target, token_map), some(2, 9, 3), 3
    features, _ = read_features(target.module, tokens, draft.feature_layers(target.module))
    unrolled = draft.unroll(features, tokens, target.embed, target.head, steps)
    assert [each.shift for each in unrolled] == [2, 3, 4]
    for row in range(2):
        for step, each in enumerate(unrolled):
            for column in range(9 - step - 1):
                known = tokens[row, 1 : column + 2 + step].tolist()
                plain = plain_step(draft, target, features[row, : column + 1], known, step)
                assert torch.allclose(each.logits[row, column], plain, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_before_the_first_chain_are_only_looked_back_at(kind: str) -> None:
    target = FeatureTarget(random_module("llama"))
    draft, tokens, first = made(kind, target).requires_grad_(True), some(2, 9, 3), 4
    features, _ = read_features(target.module, tokens, draft.feature_layers(target.module))

    def computed(*begin: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        logits = [
            each.logits[:, -(9 - first) :]
            for each in draft.unroll(features, tokens, target.embed, target.head, 3, *begin)
        ]
        loss = sum(each.log_softmax(-1)[..., 5].sum() for each in logits)
        return logits, list(torch.autograd.grad(loss, list(draft.parameters()), allow_unused=True))

    (some_, gradients), (every, theirs) = computed(first), computed()
    for one, other in zip(some_, every, strict=True):
        assert one.shape[1] == 9 - first and torch.allclose(one, other, atol=1e-5)
    for one, other in zip(gradients, theirs, strict=True):
        assert (one is None and other is None) or torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_of_a_draft_learns_and_none_of_the_target(kind: str) -> None:
    target = FeatureTarget(random_module("llama"))
    draft, tokens = made(kind, target).requires_grad_(True), some(2, 9, 3)
    features, _ = read_features(target.module, tokens, draft.feature_layers(target.module))
    steps = 4 if kind == "medusa" else 2
    loss = sum(
        each.logits[:, : -each.shift].log_softmax(-1).gather(2, tokens[:, each.shift :, None]).mean()
        for each in draft.unroll(features, tokens, target.embed, target.head, steps)
    )
    loss.backward()
    assert all(bool(weight.grad.any()) for weight in draft.parameters())
    assert all(weight.grad is None for weight in target.module.parameters())


@pytest.mark.parametrize("family", CONFIGS)
def test_what_is_read_of_a_target_is_its_hidden_states(family: str) -> None:
    module = random_module(family)
    tokens, layers = some(2, 7, 1), (0, 1, 2)
    features, logits = read_features(module, tokens, layers)
    told = module(input_ids=tokens, use_cache=False, output_hidden_states=True)
    assert torch.equal(features, torch.cat([told.hidden_states[each] for each in layers], dim=-1))
    assert torch.equal(logits, told.logits)
    target = FeatureTarget(module)
    assert torch.allclose(target.head(features[..., -target.hidden_size :]), logits, atol=1e-4)


def test_eagle_3_reads_an_early_a_middle_and_a_late_layer() -> None:
    assert depths(30) == (2, 15, 27)
    assert [depths(layers) for layers in (1, 2, 3, 4, 6, 8)] == [
        (0, 1), (0, 1, 2), (0, 1, 2), (1, 2, 3), (3, 4, 5), (2, 4, 5),
    ]  # fmt: skip


def test_a_draft_vocabulary_is_spread_over_the_targets_ids() -> None:
    target = FeatureTarget(random_module("llama"))
    draft = made("eagle", target, LIST)
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    whole, every = draft.whole(draft.logits(hidden, target.head)), target.head(hidden)
    assert whole.shape == (3, VOCABULARY) and torch.allclose(whole[:, LIST], every[:, LIST], atol=1e-5)
    assert int(whole.isinf().sum()) == 3 * (VOCABULARY - len(LIST))
