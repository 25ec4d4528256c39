"""Each drafted token's embedding is the one that it had when it was drafted, computed here by plain passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from storage.records import TokenKind
from tests.support.models import CONFIGS, random_module
from tests.trainer.models import samples_of, tiny_llama
from trainer.heads.examples import Drafted, drafted_of, embed, visible

A, R, U = TokenKind.ACCEPTED, TokenKind.REJECTED, TokenKind.UNDRAFTED


def random_items(count: int, seed: int = 0, vocabulary: int = 48) -> list[Drafted]:
    """Texts of different length with some tokens accepted, some refused, some not drafted."""
    rng = np.random.default_rng(seed)
    items = []
    for _ in range(count):
        n = int(rng.integers(4, 20))
        tokens = rng.integers(2, vocabulary, n)
        positions = np.sort(rng.choice(np.arange(1, n), int(rng.integers(1, n)), replace=False))
        drafted = tokens[positions].copy()
        refused = rng.random(len(positions)) < 0.4
        drafted[refused] = (drafted[refused] + 1) % vocabulary
        items.append(Drafted(tokens, positions, drafted, rng.random(len(positions)).astype(np.float32)))
    return items


@torch.no_grad()
def plainly(model: PreTrainedModel, item: Drafted, index: int) -> torch.Tensor:
    """What the output layer is given when (x_prefix, Y_1 … Y_i) is fed alone."""
    given: list[torch.Tensor] = []
    text = [*item.tokens[: item.positions[index]].tolist(), int(item.drafted[index])]
    head = model.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    model(input_ids=torch.tensor([text]), use_cache=False)
    handle.remove()
    return given[0][0, -1]


@pytest.mark.parametrize("kind", CONFIGS)
def test_embeddings_are_those_of_drafting_one_by_one(kind: str) -> None:
    model, items = random_module(kind), random_items(7)
    assert any(item.refused.any() for item in items) and any((~item.refused).any() for item in items)
    examples = embed(model, items)
    row = 0
    for index, item in enumerate(items):
        for i in range(len(item)):
            torch.testing.assert_close(examples.embeddings[row], plainly(model, item, i), rtol=1e-3, atol=1e-4)
            assert (examples.requests[row], examples.chances[row]) == (index, item.chances[i])
            row += 1
    assert row == len(examples)


def test_batches_of_like_width_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, items = tiny_llama(), random_items(12, seed=1)
    whole = embed(model, items)
    monkeypatch.setattr("trainer.heads.examples.BATCH_TOKENS", 40)
    beats: list[int] = []
    some = embed(model, items, lambda: beats.append(1))
    torch.testing.assert_close(some.embeddings, whole.embeddings, rtol=1e-4, atol=1e-5)
    assert torch.equal(some.chances, whole.chances) and len(beats) > 3


def test_some_requests_of_many() -> None:
    items = random_items(5, seed=2)
    some = embed(tiny_llama(), items).first(2)
    assert some.chances.tolist() == [*items[0].chances.tolist(), *items[1].chances.tolist()]
    assert some.requests.tolist() == [0] * len(items[0]) + [1] * len(items[1])


def test_who_sees_whom() -> None:
    """Text x0 x1 x2, then y1 refused at position 1, then padding."""
    seen = visible(torch.tensor([[0, 1, 2, 1, 0]]), torch.tensor([[True, True, True, False, False]]))
    assert seen[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]


def test_what_a_recorded_request_teaches() -> None:
    tokens = [5, 6, 7, 8, 9, 10]
    chances = np.array([1.0, 0.25, np.nan, 0.5], np.float16)
    drafted = np.array([7, 40, 9, 10], np.int32)
    item = drafted_of(samples_of(tokens, [2, 3, 4, 5], kinds=[A, R, U, A], drafted=drafted, acceptance=chances))
    assert item is not None
    assert item.positions.tolist() == [2, 3, 5] and item.drafted.tolist() == [7, 40, 10]
    assert item.chances.tolist() == [1.0, 0.25, 0.5] and item.refused.tolist() == [False, True, False]
    assert (item.context, item.columns) == (6, 7)


@pytest.mark.parametrize(
    "fields",
    [
        {"acceptance": None},
        {"acceptance": np.full(2, np.nan, np.float16)},
        {"acceptance": np.array([0.5, 0.5], np.float16), "kinds": np.array([R, R], np.uint8)},  # mistakes alone
    ],
)
def test_requests_without_chances_teach_nothing(fields: dict[str, object]) -> None:
    assert drafted_of(samples_of([5, 6, 7, 8, 9, 10], [2, 4], **fields)) is None  # type: ignore[arg-type]
