"""A feature draft's passes over ragged rows: against the chain at one place computed anew, and trees against chains."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from osd.draft_tree import Tree
from osd.drafters.feature_tree import draw_distinct
from osd.models.attention_metadata import lay_out
from osd.models.features.decoder import FeatureDecoder, feature_model
from osd.models.features.new import KINDS
from osd.models.features.target import read_features
from osd.models.model import Model
from tests.support.features import trained
from tests.support.models import CONFIGS, model_of, random_module, some
from tests.support.plain_features import plain_step

LENGTHS = (9, 4, 12)


@pytest.fixture(scope="module")
def target() -> Model:
    return model_of(random_module("llama"))


def rows_of(draft: object, target: Model) -> tuple[list[Tensor], list[Tensor]]:
    """Texts and their features."""
    texts = [some(1, length, length)[0] for length in LENGTHS]
    layers = draft.feature_layers(target.module)  # type: ignore[attr-defined]
    return texts, [read_features(target.module, text[None, :-1], layers)[0][0] for text in texts]


def read_all(decoder: FeatureDecoder, texts: list[Tensor], features: list[Tensor]) -> Tensor:
    """Read the first columns of each row alone, the rest together; the features after the last of them."""
    for row, (text, own) in enumerate(zip(texts, features, strict=True)):
        decoder.read([0], own[None, :2], text[None, 1:3], [2], first=row)
    most = max(len(own) for own in features) - 2
    rest = torch.zeros(len(texts), most, features[0].shape[1])
    tokens = torch.zeros(len(texts), most, dtype=torch.long)
    for row, (text, own) in enumerate(zip(texts, features, strict=True)):
        rest[row, : len(own) - 2], tokens[row, : len(own) - 2] = own[2:], text[3:]
    return decoder.read([2] * len(texts), rest, tokens, [len(own) - 2 for own in features], ahead=3)


@pytest.mark.parametrize("token_map", [None, [1, 4, 9, 16]])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_chain_is_the_plain_one(kind: str, token_map: list[int] | None, target: Model) -> None:
    draft = trained(kind, target, steps=3, token_map=token_map)
    decoder = feature_model("draft", draft, target).decoder(4, 64)
    texts, features = rows_of(draft, target)
    hidden, drafted = read_all(decoder, texts, features), some(3, 3, 5)
    for step in range(3):
        said = decoder.logits(hidden, step)
        for row, (text, own) in enumerate(zip(texts, features, strict=True)):
            known = [*text[1:].tolist(), *drafted[row, :step].tolist()]
            plain = draft.whole(
                plain_step(draft, feature_model("d", draft, target).decoder(1, 8).target, own, known, step)
            )
            assert torch.allclose(said[row], plain, atol=1e-4)
        hidden = decoder.go_on([len(text) - 1 + step for text in texts], hidden, drafted[:, step])


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@torch.inference_mode()
def test_the_nodes_of_a_tree_are_the_chains_to_them(kind: str, target: Model) -> None:
    """Two levels, read one after the other."""
    draft = trained(kind, target, steps=3)
    texts, features = rows_of(draft, target)
    tree = Tree()
    for token, parent in ((3, 0), (7, 0), (5, 1), (6, 1), (9, 2)):
        tree.add(parent, token)
    chains = {3: [3, 5], 4: [3, 6], 5: [7, 9]}
    decoder = feature_model("draft", draft, target).decoder(4, 64)
    root, starts = read_all(decoder, texts, features), [len(text) - 1 for text in texts]
    seen = lay_out([tree] * 3, 6, decoder.device).seen[:, 1:, 1:]
    depths = torch.tensor([[0, 0]] * 3), torch.tensor([[1, 1, 1]] * 3)
    level = decoder.branch(
        starts, 0, (depths[0], seen[:, :2, :2]), root[:, None].expand(-1, 2, -1), torch.tensor([[3, 7]] * 3)
    )
    parents = level[:, [0, 0, 1]]
    below = decoder.branch(starts, 2, (depths[1], seen[:, 2:]), parents, torch.tensor([[5, 6, 9]] * 3))
    for node, tokens in chains.items():
        other = feature_model("draft", draft, target).decoder(4, 64)
        hidden = read_all(other, texts, features)
        for step, token in enumerate(tokens):
            hidden = other.go_on([start + step for start in starts], hidden, torch.tensor([token] * 3))
        assert torch.allclose(below[:, node - 3], hidden, atol=1e-4)


@pytest.mark.parametrize("family", CONFIGS)
@torch.inference_mode()
def test_the_targets_cache_keeps_its_hidden_states(family: str) -> None:
    """Prefilled, verified in a tree, compacted, moved and grown: they are those of a plain pass, the last layer's
    output too."""
    module = random_module(family)
    decoder = model_of(module).decoder(3, 1100)
    decoder.cache.keep_features(range(4))
    texts = [some(1, length, length)[0].tolist() for length in (9, 5, 12)]
    for row, text in enumerate(texts):
        decoder.prefill(row, text[:-1])
    tree = Tree()
    for token, parent in enumerate((0, 0, 1, 1, 3), 1):
        tree.add(parent, token)
    trees = [tree, Tree(), Tree()]
    lines = [[text[-1], *own.tokens, *[0] * (5 - len(own))] for text, own in zip(texts, trees, strict=True)]
    starts = [len(text) - 1 for text in texts]
    counts = [len(own) + 1 for own in trees]
    decoder.scored(torch.tensor(lines), starts, counts, lay_out(trees, 6, decoder.device))
    decoder.cache.close_up(starts, [(0, 3, 2), (0, 5, 3)])
    texts[0] = [*texts[0], tree.tokens[0], tree.tokens[2], tree.tokens[4]]
    decoder.cache.grow(5)
    decoder.move_row(0, 4, len(texts[0]))
    decoder.swap_rows(1, 2, 12)
    for row, text in ((4, texts[0]), (2, texts[1]), (1, texts[2])):
        wanted, _ = read_features(module, torch.tensor([text]), range(4))
        kept = [decoder.cache.features[number].read(row, 0, len(text)) for number in range(4)]
        assert torch.allclose(torch.cat(kept, dim=-1), wanted[0], atol=1e-3, rtol=1e-3)
    assert decoder.cache.features[0].has(4, 0, len(texts[0])) and not decoder.cache.features[0].has(3, 0, 1)


def test_draws_without_replacement_have_the_chances_of_that() -> None:
    """Ordered pairs by a grid of uniforms, against q(a) q(b) ÷ (1 − q(a))."""
    q = np.array([0.5, 0.0, 0.3, 0.2])
    points = (np.arange(200) + 0.5) / 200
    seen = np.zeros((4, 4))
    for one in points:
        for other in points:
            first, second = draw_distinct(q, np.array([one, other]))
            seen[first, second] += 1 / len(points) ** 2
    wanted = np.array([[q[a] * q[b] / (1 - q[a]) * (a != b) for b in range(4)] for a in range(4)])
    assert np.abs(seen - wanted).max() < 0.01
    assert sorted(draw_distinct(q, np.full(9, 0.5))) == [0, 2, 3]
